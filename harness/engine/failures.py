"""An exception of a rank as a recorded failure: out of memory, non-finite loss, or an error.

Imports neither torch nor megatron-core, whose import may be what failed.
"""

import re
import traceback

from harness.records.rank import Failure, Phase
from harness.records.redact import redact

# Texts of torch 2.0 to 2.15 and of the libraries that allocate beside torch's caching allocator.
OOM_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        r"out of memory",
        r"CUBLAS_STATUS_ALLOC_FAILED",
        r"CUDNN_STATUS_ALLOC_FAILED",
        r"CUDNN_STATUS_INTERNAL_ERROR_(?:DEVICE|HOST)_ALLOCATION_FAILED",
        r"Failed to CUDA calloc",
        r"exceed per_process_memory_fraction limit",
        r"DefaultCPUAllocator: can't allocate memory",
    )
)
REQUEST = re.compile(
    r"(?:[Tt]ried to allocate|Requested size:|CUDA calloc(?: async)?) (\d+(?:\.\d+)?) (bytes|[KMGT]iB)"
)
UNIT_BYTES = {"bytes": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
MAX_TEXT = 8000  # characters; twice as many are searched for secrets, so that none is cut in two at the edge


class NonFiniteLossError(RuntimeError):
    """The loss or the gradient norm became NaN or infinite."""


def failure_of(error: BaseException, *, phase: Phase, step: int | None) -> Failure:
    """Classify ``error``; the failed request in bytes is read from the text where torch gives one."""
    text = f"{type(error).__name__}: {error}"
    kind = "error"
    if isinstance(error, NonFiniteLossError):
        kind = "non_finite_loss"
    elif isinstance(error, MemoryError) or any(p.search(text) for p in OOM_PATTERNS):
        kind = "oom"
    request = REQUEST.search(text) if kind == "oom" else None
    return Failure(
        kind=kind,
        message=redact(text[: 2 * MAX_TEXT])[:MAX_TEXT],
        phase=phase,
        step=step,
        request_bytes=round(float(request[1]) * UNIT_BYTES[request[2]]) if request else None,
        traceback=redact("".join(traceback.format_exception(error))[-2 * MAX_TEXT :])[-MAX_TEXT:],
    )
