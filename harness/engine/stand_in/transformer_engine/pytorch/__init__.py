"""The layers that megatron-core builds on, and the modules of which it only asks for names."""

import sys
from types import ModuleType

import torch

from transformer_engine.pytorch import (
    attention,
    cpp_extensions,
    cpu_offload,
    cross_entropy,
    distributed,
    fp8,
    module,
    permutation,
)
from transformer_engine.pytorch.attention.dot_product_attention import DotProductAttention
from transformer_engine.pytorch.fp8 import fp8_autocast, fp8_model_init
from transformer_engine.pytorch.grouped_linear import Fp8Padding, Fp8Unpadding, GroupedLinear
from transformer_engine.pytorch.linear import LayerNormLinear, Linear
from transformer_engine.pytorch.norms import LayerNorm, RMSNorm

# Types that megatron-core tests or annotates tensors and modules with: the stand-in's parameters are plain tensors with
# a note of their size, and nothing is ever one of these. Fused routing and operations are off unless asked for, which
# no spec can.
_NAMES: dict[str, dict[str, object]] = {
    "tensor": {"QuantizedTensor": type("QuantizedTensor", (torch.Tensor,), {})},
    "float8_tensor": {"Float8Tensor": type("Float8Tensor", (torch.Tensor,), {})},
    "ops": {
        "FusibleOperation": type("FusibleOperation", (torch.nn.Module,), {}),
        "Sequential": type("Sequential", (torch.nn.Sequential,), {}),
    },
    "router": dict.fromkeys(
        ("fused_topk_with_score_function", "fused_compute_score_for_moe_aux_loss", "fused_moe_aux_loss")
    ),
}
for _name, _contents in _NAMES.items():
    _module = sys.modules[f"{__name__}.{_name}"] = globals()[_name] = ModuleType(f"{__name__}.{_name}")
    vars(_module).update(_contents)

__all__ = [
    "DotProductAttention", "Fp8Padding", "Fp8Unpadding", "GroupedLinear", "LayerNorm", "LayerNormLinear", "Linear",
    "RMSNorm", "attention", "cpp_extensions", "cpu_offload", "cross_entropy", "distributed", "float8_tensor", "fp8",
    "fp8_autocast", "fp8_model_init", "module", "ops", "permutation", "router", "tensor",
]  # fmt: skip
