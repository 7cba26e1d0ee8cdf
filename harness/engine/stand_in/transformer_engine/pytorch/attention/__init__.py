"""Attention; 2.11 exports no `_SplitAlongDim` here, so megatron-core splits Q, K and V with torch."""
