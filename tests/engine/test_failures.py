"""An exception becomes a recorded failure: its kind, and the allocation that failed."""

import pytest

from harness.engine.rank_log import MAX_TEXT, NonFiniteLossError, failure_of
from harness.failures.classify import classify
from tests.engine.conftest import answer_of
from tests.failures.test_classify import VARIANTS

MIB, GIB = 1024**2, 1024**3
# In each of their spellings, the bytes that were asked for.
ASKED = {
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 79.15 GiB total capacity)": 20 * MIB,
    "CUDA out of memory. Tried to allocate 3.91 GiB. GPU 3 has a total capacty of 79.11 GiB": round(3.91 * GIB),
    "CUDA out of memory. Tried to allocate 896.00 KiB. GPU 0 has a total capacity of 79.11 GiB.": 896 * 1024,
    "CUDA out of memory. Tried to allocate 512 bytes.": 512,
    "CUDA out of memory. Tried to allocate more than 1EB memory.": None,
    "Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: 2.00 GiB": 2
    * GIB,
    "NCCL error in: x.cpp:1, unhandled cuda error. Last error:\nFailed to CUDA calloc async 2097152 bytes": 2097152,
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 17179869184 bytes.": 16 * GIB,
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED": None,
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED": None,
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": None,
    "CUDA driver error: out of memory": None,
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported": None,
}


NO_FIGURES = ("cut short", "a negative size without its sign", "a device of any name", "XPU, since 2.1")
WHOLE = [text for name, (text, *_) in VARIANTS.items() if name not in NO_FIGURES]


@pytest.mark.parametrize("text", [*ASKED, *WHOLE], ids=lambda text: text[:60])
def test_out_of_memory_is_known_in_all_its_words(text):
    failure = failure_of(RuntimeError(text), phase="forward_backward", step=3)
    assert (failure.kind, failure.phase, failure.step) == ("oom", "forward_backward", 3)
    assert failure.message == f"RuntimeError: {text}"
    assert failure.request_bytes == ASKED.get(text, failure.request_bytes)
    verdict = classify(failure.message)
    assert (verdict.is_oom, verdict.request_bytes) == (True, failure.request_bytes)


def test_an_exception_may_say_what_it_is_by_its_type():
    assert failure_of(MemoryError(), phase="build_model", step=None).kind == "oom"
    assert failure_of(NonFiniteLossError("loss is nan at step 4"), phase="step", step=4).kind == "non_finite_loss"


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: device-side assert triggered",
        "Connection closed by peer [127.0.0.1]:43210",
        "NCCL communicator was aborted on rank 1",
        "Tried to allocate 3 tickets",
        "CUBLAS_STATUS_NOT_INITIALIZED",
    ],
)
def test_other_errors_are_not_out_of_memory(text):
    failure = failure_of(RuntimeError(text), phase="step", step=1)
    assert (failure.kind, failure.request_bytes) == ("error", None)


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return failure_of(caught, phase="start", step=None)


def test_the_traceback_is_kept_without_secrets():
    failure = raised(ValueError("HF_TOKEN=hf_canarycanarycanary is wrong"))
    assert failure.message == "ValueError: HF_TOKEN=*** is wrong"
    assert "in raised" in failure.traceback
    assert "canary" not in failure.message + failure.traceback


def test_endless_texts_are_cut_and_the_end_of_the_traceback_stays():
    failure = raised(ValueError("x" * 100_000 + " the end"))
    assert len(failure.message) == MAX_TEXT
    assert len(failure.traceback) == MAX_TEXT
    assert failure.traceback.endswith("the end\n")


def test_failures_can_be_classified_when_torch_itself_cannot_be_imported():
    script = "import sys; sys.modules.update(torch=None, megatron=None); import harness.engine.rank_log"
    answer_of("-c", script)
