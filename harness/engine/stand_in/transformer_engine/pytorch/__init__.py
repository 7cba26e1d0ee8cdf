"""The layers that megatron-core builds on."""

from transformer_engine.pytorch import (
    attention,
    cpp_extensions,
    cpu_offload,
    cross_entropy,
    distributed,
    float8_tensor,
    fp8,
    module,
    ops,
    permutation,
    router,
    tensor,
)
from transformer_engine.pytorch.attention import DotProductAttention
from transformer_engine.pytorch.fp8 import fp8_autocast, fp8_model_init
from transformer_engine.pytorch.grouped_linear import GroupedLinear
from transformer_engine.pytorch.linear import LayerNormLinear, Linear
from transformer_engine.pytorch.norms import LayerNorm, RMSNorm
from transformer_engine.pytorch.padding import Fp8Padding, Fp8Unpadding

__all__ = [
    "DotProductAttention", "Fp8Padding", "Fp8Unpadding", "GroupedLinear", "LayerNorm", "LayerNormLinear", "Linear",
    "RMSNorm", "attention", "cpp_extensions", "cpu_offload", "cross_entropy", "distributed", "float8_tensor", "fp8", "fp8_autocast",
    "fp8_model_init", "module", "ops", "permutation", "router", "tensor",
]  # fmt: skip
