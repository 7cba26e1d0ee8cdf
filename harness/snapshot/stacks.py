"""Groups stacks by the module of megatron-core that allocated."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.snapshot.fields import text


@dataclass(frozen=True)
class ModuleRow:
    """Frames whose path ends in ``path``, with one of ``functions`` where any are given, belong to ``module``.

    ``is_model``: a part of the model, whose constructors allocate parameters and which can be recomputed.
    """

    path: str
    module: str
    functions: tuple[str, ...] = ()
    is_model: bool = True


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    path: str
    line: int
    function: str


_MCORE = "megatron/core/"
_MLA = ("qkv_up_proj_and_rope_apply", "qkv_up_proj_and_rope_apply_for_cached_latent_kv")
# The first matching row decides for a frame; the innermost matching frame decides for a stack.
ROWS = (
    ModuleRow(_MCORE + "transformer/moe/shared_experts.py", "shared_experts"),
    ModuleRow(_MCORE + "transformer/moe/experts.py", "moe_act", ("bias_act_func", "activation_func_with_probs", "glu")),
    ModuleRow(_MCORE + "transformer/moe/", "moe"),
    ModuleRow(_MCORE + "transformer/multi_latent_attention.py", "mla_up_proj", _MLA),
    ModuleRow(_MCORE + "transformer/multi_latent_attention.py", "attention"),
    ModuleRow(_MCORE + "transformer/dot_product_attention.py", "core_attn"),
    ModuleRow(_MCORE + "fusions/fused_softmax.py", "core_attn"),
    ModuleRow("harness/engine/model.py", "core_attn", ("forward",)),  # attention without transformer-engine
    ModuleRow("transformer_engine/pytorch/attention/", "core_attn"),
    ModuleRow("transformer_engine/pytorch/module/layernorm.py", "layernorm"),
    ModuleRow("transformer_engine/pytorch/module/rmsnorm.py", "layernorm"),
    ModuleRow("transformer_engine/pytorch/ops/basic/layer_norm.py", "layernorm"),
    ModuleRow("transformer_engine/pytorch/ops/basic/rmsnorm.py", "layernorm"),
    ModuleRow(_MCORE + "transformer/torch_norm.py", "layernorm"),
    ModuleRow(_MCORE + "fusions/fused_layer_norm.py", "layernorm"),
    ModuleRow("torch/nn/modules/normalization.py", "layernorm"),
    ModuleRow(_MCORE + "transformer/attention.py", "attention"),
    ModuleRow(_MCORE + "transformer/mlp.py", "mlp"),
    ModuleRow(_MCORE + "ssm/gated_delta_net.py", "gated delta net"),
    ModuleRow(_MCORE + "ssm/", "mamba"),
    ModuleRow(_MCORE + "models/common/embeddings/rope_utils.py", "attention"),
    ModuleRow(_MCORE + "models/common/embeddings/", "embedding"),
    ModuleRow(_MCORE + "tensor_parallel/cross_entropy.py", "loss", is_model=False),
    ModuleRow(_MCORE + "fusions/fused_cross_entropy.py", "loss", is_model=False),
    ModuleRow("transformer_engine/pytorch/cross_entropy.py", "loss", is_model=False),
    ModuleRow(_MCORE + "models/common/language_module/", "loss"),
    ModuleRow(_MCORE + "transformer/multi_token_prediction.py", "mtp"),
    ModuleRow(_MCORE + "distributed/param_and_grad_buffer.py", "gradient buffers", is_model=False),
    ModuleRow(_MCORE + "distributed/", "data parallelism", is_model=False),
    ModuleRow(_MCORE + "optimizer/", "optimizer", is_model=False),
    ModuleRow(_MCORE + "pipeline_parallel/p2p_communication.py", "pipeline communication", is_model=False),
    ModuleRow(_MCORE + "transformer/cuda_graphs.py", "CUDA graphs", is_model=False),
    ModuleRow(_MCORE + "models/gpt/gpt_model.py", "output_layer"),
    ModuleRow(_MCORE + "transformer/transformer_layer.py", "transformer layer"),
    ModuleRow(_MCORE + "transformer/transformer_block.py", "transformer layer"),
)  # fmt: skip
_RECOMPUTING = _MCORE + "tensor_parallel/random.py"
_BACKWARD = ("backward", "_back")
_CONSTRUCTING = ("__init__", "reset_parameters")
UNKNOWN, BACKWARD = "not in a module", "backward pass"

_LIBRARIES = re.compile(
    r"(?:^|/)(?:torch|transformer_engine|triton|apex|flash_attn|einops|numpy|cuda)/"
    r"|/lib(?:64)?/python3[.\d]*/(?!site-packages|dist-packages)"
)
_INSTALLED = re.compile(r"^.*/(?:site-packages|dist-packages)/")
_KEPT_PARTS = 4


def module_of(frames: Iterable[Frame]) -> str:
    """Return the module of a stack (innermost frame first), with the allocation's purpose if the stack shows it.

    ``mlp (weights)`` where a constructor allocated, ``mlp (recompute)`` inside a recomputation in the backward pass.
    A backward function of megatron-core is called by autograd, so the frames above it do not name its module.
    """
    frames = tuple(frames)
    found: ModuleRow | None = None
    for frame in frames:
        if found is None or found.module == "mlp":
            found = _within(found, _row(frame))
    if found is None:
        is_backward = any(_MCORE in frame.path and frame.function.endswith(_BACKWARD) for frame in frames)
        return BACKWARD if is_backward else UNKNOWN
    if not found.is_model:
        return found.module
    if any(_RECOMPUTING in frame.path and frame.function in ("backward", "_recompute") for frame in frames):
        return f"{found.module} (recompute)"
    is_constructing = any(_is_megatron(frame) and frame.function in _CONSTRUCTING for frame in frames)
    return f"{found.module} (weights)" if is_constructing else found.module


def site_of(frames: Iterable[Frame]) -> str:
    """Return ``file:line function`` of the innermost frame above libraries; empty without a stack."""
    first: Frame | None = None
    for frame in frames:
        if not frame.path or frame.path == "??":
            continue
        first = first or frame
        if frame.path.endswith(".py") and not _LIBRARIES.search(frame.path):
            return _text(frame)
    return _text(first) if first else ""


def _is_megatron(frame: Frame) -> bool:
    return _MCORE in frame.path or "transformer_engine/" in frame.path


def _within(inner: ModuleRow | None, outer: ModuleRow | None) -> ModuleRow | None:
    """Choose between two modules: experts contain the dense block, so its memory there belongs to the experts."""
    if inner is None or (outer is not None and outer.module in ("moe", "shared_experts")):
        return outer
    return inner


def _row(frame: Frame) -> ModuleRow | None:
    rows = (row for row in ROWS if row.path in frame.path)
    return next((row for row in rows if not row.functions or frame.function in row.functions), None)


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


class Stacks:
    """Owners of stacks. It identifies frames and stacks by ``id``, so keep the snapshot in memory meanwhile."""

    def __init__(self) -> None:
        self._frames: dict[int, Frame] = {}
        self._owners: dict[tuple[int, ...], Owner] = {}
        self._by_list: dict[int, Owner] = {}

    def owner(self, frames: object) -> Owner:
        """Return the owner of ``frames``, a list of dicts, innermost first; any other value counts as no stack."""
        if not isinstance(frames, (list, tuple)) or not frames:
            return Owner(NO_STACK, "")
        known = self._by_list.get(id(frames))
        if known is None:
            key = tuple(map(id, frames[:_DEEPEST]))
            known = self._owners.get(key)
            if known is None:
                known = self._owners[key] = self._made([self._frame(frame) for frame in frames[:_DEEPEST]])
            self._by_list[id(frames)] = known
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

    @staticmethod
    def _made(frames: list[Frame]) -> Owner:
        site = site_of(frames)
        return Owner(module_of(frames), site) if site else Owner(NO_STACK, "")
