"""Layer parts that megatron-core's local spec lacks: norms under sequence parallelism, flash-like and MLA attention."""

import torch
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule


def _marked(norm: torch.nn.Module, config) -> torch.nn.Module:
    """Mark replicated weights, so that megatron all-reduces their gradients over the TP ranks."""
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel
    return norm


class Norm:
    """RMSNorm or LayerNorm by `config.normalization`; megatron's WrappedTorchNorm refuses sequence parallelism."""

    def __new__(cls, config, hidden_size: int, eps: float = 1e-5, **_unused) -> torch.nn.Module:
        """Called by megatron as a class: Norm(config=..., hidden_size=..., eps=...)."""
        if config.layernorm_zero_centered_gamma:
            return _marked(_ZeroCenteredNorm(config.normalization, hidden_size, eps, config.params_dtype), config)
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        return _marked(kind(hidden_size, eps=eps, dtype=config.params_dtype), config)


class _ZeroCenteredNorm(torch.nn.Module):
    """A norm whose scale is stored as gamma - 1 (`layernorm_zero_centered_gamma`)."""

    def __init__(self, normalization: str, hidden_size: int, eps: float, dtype: torch.dtype):
        super().__init__()
        self.eps, self.shape = eps, (hidden_size,)
        self.weight = torch.nn.Parameter(torch.zeros(hidden_size, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size, dtype=dtype)) if normalization == "LayerNorm" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension of ``x``."""
        if self.bias is None:
            return torch.nn.functional.rms_norm(x, self.shape, 1 + self.weight, self.eps)
        return torch.nn.functional.layer_norm(x, self.shape, 1 + self.weight, self.bias, self.eps)


class FlashCoreAttention(MegatronModule):
    """Causal attention on torch's scaled_dot_product_attention: no score matrix is saved, as with flash attention.

    Takes q [sq, b, heads, d], k and v [sk, b, groups, d or d_v]; returns [sq, b, heads * d_v].
    """

    def __init__(self, config, attn_mask_type, attention_dropout=None, softmax_scale=None, **_other_megatron_arguments):
        super().__init__(config=config)
        if attn_mask_type != AttnMaskType.causal:
            raise ValueError(f"flash-like attention is causal only, not {attn_mask_type}")
        if config.context_parallel_size > 1:
            raise ValueError("context parallelism needs transformer-engine's attention")
        self.softmax_scale = softmax_scale
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout

    def forward(self, query, key, value, *_mask, **_other_megatron_arguments):
        """Attend; causality implies the mask."""
        groups = query.size(2) // key.size(2)
        if groups > 1:
            key, value = key.repeat_interleave(groups, dim=2), value.repeat_interleave(groups, dim=2)
        context = torch.nn.functional.scaled_dot_product_attention(
            query.permute(1, 2, 0, 3),
            key.permute(1, 2, 0, 3),
            value.permute(1, 2, 0, 3),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
            scale=self.softmax_scale,
        )
        return context.permute(2, 0, 1, 3).reshape(query.size(0), query.size(1), -1)


class UnfusedCoreAttention(DotProductAttention):
    """megatron's own attention, which saves the score matrix; also for MLA, whose k and v have sizes of their own."""

    def __init__(self, *args, v_channels=None, **kwargs):
        kwargs.pop("k_channels", None)  # the base class takes neither size
        super().__init__(*args, **kwargs)
        if v_channels:
            self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition
