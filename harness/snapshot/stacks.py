"""Groups stacks by the module of megatron-core that allocated."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from harness.experiment.modules import MODULES, Frames
from harness.snapshot.fields import text


class ModuleRow(NamedTuple):
    """``is_model``: a part of the model, whose constructors allocate parameters and which can be recomputed."""

    module: str
    frames: Frames
    is_model: bool = True


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    path: str
    line: int
    function: str


_MCORE = "megatron/core/"
# Modules that cannot be recomputed alone. Of several rows that match a frame, the most precise decides.
_OTHERS = (
    ModuleRow("attention", Frames(f"{_MCORE}transformer/multi_latent_attention.py")),
    ModuleRow("attention", Frames(f"{_MCORE}transformer/attention.py")),
    ModuleRow("gated delta net", Frames(f"{_MCORE}ssm/gated_delta_net.py")),
    ModuleRow("mamba", Frames(f"{_MCORE}ssm/")),
    ModuleRow("attention", Frames(f"{_MCORE}models/common/embeddings/rope_utils.py")),
    ModuleRow("embedding", Frames(f"{_MCORE}models/common/embeddings/")),
    ModuleRow("loss", Frames(f"{_MCORE}tensor_parallel/cross_entropy.py"), is_model=False),
    ModuleRow("loss", Frames(f"{_MCORE}fusions/fused_cross_entropy.py"), is_model=False),
    ModuleRow("loss", Frames("transformer_engine/pytorch/cross_entropy.py"), is_model=False),
    ModuleRow("loss", Frames(f"{_MCORE}models/common/language_module/")),
    ModuleRow("mtp", Frames(f"{_MCORE}transformer/multi_token_prediction.py")),
    ModuleRow("gradient buffers", Frames(f"{_MCORE}distributed/param_and_grad_buffer.py"), is_model=False),
    ModuleRow("data parallelism", Frames(f"{_MCORE}distributed/"), is_model=False),
    ModuleRow("optimizer", Frames(f"{_MCORE}optimizer/"), is_model=False),
    ModuleRow("pipeline communication", Frames(f"{_MCORE}pipeline_parallel/p2p_communication.py"), is_model=False),
    ModuleRow("CUDA graphs", Frames(f"{_MCORE}transformer/cuda_graphs.py"), is_model=False),
    ModuleRow("output_layer", Frames(f"{_MCORE}models/gpt/gpt_model.py")),
    ModuleRow("transformer layer", Frames(f"{_MCORE}transformer/transformer_layer.py")),
    ModuleRow("transformer layer", Frames(f"{_MCORE}transformer/transformer_block.py")),
)
_RECOMPUTABLE = (ModuleRow(name, frames) for name, row in MODULES.items() for frames in row.frames)
ROWS = tuple(
    sorted((*_RECOMPUTABLE, *_OTHERS), key=lambda row: (len(row.frames.path), row.frames.functions), reverse=True)
)
_RECOMPUTING = _MCORE + "tensor_parallel/random.py"
_BACKWARD = ("backward", "_back")
_CONSTRUCTING = ("__init__", "reset_parameters")
_PREDICTED = "predicted"  # the file in frames that `plan --step_trace` writes
UNKNOWN, BACKWARD = "not in a module", "backward pass"

_LIBRARIES = re.compile(
    r"(?:^|/)(?:torch|transformer_engine|triton|apex|flash_attn|einops|numpy|cuda)/"
    r"|/lib(?:64)?/python3[.\d]*/(?!site-packages|dist-packages)"
)
_INSTALLED = re.compile(r"^.*/(?:site-packages|dist-packages)/")
_KEPT_PARTS = 4
# torch's recorder of stacks and its allocator, the innermost frames of a stack with C++.
_RECORDER = re.compile(r"gather_with_cpp|CapturedTraceback::gather|torch::unwind|CUDACachingAllocator::")

_OPERATION = re.compile(r"autograd::generated::(?P<node>\w+)::apply\b|\bat::_ops::(?P<operation>\w+)::")


def module_of(frames: Iterable[Frame]) -> str:
    """Return the module of a stack, innermost frame first, as ``mlp``, ``mlp (weights)`` or ``mlp (recompute)``."""
    frames = tuple(frames)
    if frames and frames[0].path == _PREDICTED:
        return frames[0].function
    found: ModuleRow | None = None
    for frame in frames:
        row = _row(frame)  # experts contain the dense block, so its memory there belongs to the experts
        if row and (found is None or (found.module == "mlp" and row.module in ("moe", "shared_experts"))):
            found = row
    if found is None:
        return BACKWARD if any(map(_runs_backward, frames)) else UNKNOWN
    if not found.is_model:
        return found.module
    if _is_recomputing(frames):
        return f"{found.module} (recompute)"
    is_constructing = any(_is_megatron(frame) and frame.function in _CONSTRUCTING for frame in frames)
    return f"{found.module} (weights)" if is_constructing else found.module


def _runs_backward(frame: Frame) -> bool:
    node = _OPERATION.search(frame.function)
    return bool(node and node["node"]) or (_MCORE in frame.path and frame.function.endswith(_BACKWARD))


def forward_modules(frames: Sequence[Frame]) -> frozenset[str]:
    """Return the modules in whose forward pass a stack lies; none inside a recomputation. mlp of experts is theirs."""
    if _is_recomputing(frames) or any(
        _is_megatron(frame) and (frame.function in _CONSTRUCTING or frame.function.endswith(_BACKWARD))
        for frame in frames
    ):
        return frozenset()
    found = {row.module for frame in frames if (row := _row(frame))} & MODULES.keys()
    return frozenset(found - {"mlp"} if found & {"moe", "shared_experts"} else found)


def site_of(frames: Iterable[Frame]) -> str:
    """Return ``file:line function`` of the innermost frame above libraries, else ``MmBackward0`` or ``at::bmm``."""
    first: Frame | None = None
    operation = ""
    for frame in frames:
        if found := _OPERATION.search(frame.function):
            operation = found["node"] or operation or f"at::{found['operation']}"
        if not frame.path or frame.path == "??":
            continue
        first = first or frame
        if frame.path.endswith(".py") and not _LIBRARIES.search(frame.path):
            return _text(frame)
    return operation or (_text(first) if first else "")


def _is_recomputing(frames: Iterable[Frame]) -> bool:
    return any(_RECOMPUTING in frame.path and frame.function in ("backward", "_recompute") for frame in frames)


def _is_megatron(frame: Frame) -> bool:
    return _MCORE in frame.path or "transformer_engine/" in frame.path


@cache
def _row(frame: Frame) -> ModuleRow | None:
    rows = (row for row in ROWS if row.frames.path in frame.path)
    return next((row for row in rows if frame.function in (row.frames.functions or (frame.function,))), None)


def _text(frame: Frame) -> str:
    path = _INSTALLED.sub("", frame.path)
    if _MCORE in path:
        path = path[path.index(_MCORE) :]
    return f"{'/'.join(path.split('/')[-_KEPT_PARTS:])}:{frame.line} {frame.function}".strip()


NO_STACK = "no stack recorded"
_DEEPEST = 400  # frames; torch's own limit on Python frames is lower


class Owner(NamedTuple):
    """The module and the line of code that allocated memory."""

    module: str
    site: str


class Known(NamedTuple):
    """What a stack shows: its owner, and the modules in whose forward pass it lies; none inside a recomputation."""

    owner: Owner
    forward: frozenset[str]


_NOTHING = Known(Owner(NO_STACK, ""), frozenset())


class Stacks:
    """Owners of stacks. It identifies frames by ``id``, so keep the snapshot in memory meanwhile."""

    def __init__(self) -> None:
        self._frames: dict[int, Frame] = {}
        self._by_frames: dict[tuple[int, ...], Known] = {}

    def of(self, frames: object) -> Known:
        """Look at ``frames``, a list of dicts, innermost first; any other value counts as no stack."""
        if not isinstance(frames, (list, tuple)) or not frames:
            return _NOTHING
        stack = frames[0] if type(frames[0]) is list else frames  # shared while the file was read
        key = tuple(map(id, stack[:_DEEPEST]))
        known = self._by_frames.get(key)
        if known is None:
            made = [each for each in map(self._frame, stack[:_DEEPEST]) if not _RECORDER.search(each.function)]
            site = site_of(made)
            known = Known(Owner(module_of(made), site), forward_modules(made)) if site else _NOTHING
            self._by_frames[key] = known
        return known

    def _frame(self, value: Any) -> Frame:
        known = self._frames.get(id(value))
        if known is None:
            entry = value if isinstance(value, dict) else {}
            line = entry.get("line")
            number = line if type(line) is int and 0 <= line < 10_000_000 else 0
            known = Frame(text(entry.get("filename")), number, text(entry.get("name")))
            self._frames[id(value)] = known
        return known
