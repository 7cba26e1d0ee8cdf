"""Attention; 2.11 exports no `_SplitAlongDim` here, so megatron-core splits Q, K and V with torch."""

from transformer_engine.pytorch.attention.dot_product_attention import DotProductAttention

__all__ = ["DotProductAttention"]
