"""DotProductAttention: which kernel runs, and in which memory layout it gets Q, K and V (2.11 `dot_product_attention/`)."""

import os
from math import sqrt

import torch
from torch.nn import functional as F  # noqa: N812 (torch's own spelling)

from transformer_engine.pytorch.attention.kernels import fused_attention, ring_attention


def fitted(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Q, K and V in a layout that kernels take: as they are, or all three copied (2.11 `get_qkv_layout`).

    V of a model with rotary embeddings is a view of the QKV projection next to rotated copies of Q and K. No layout
    covers that, so V is copied too and the projection's output is free once the layer's forward pass is over.
    """
    tensors = (query, key, value)
    storages = [t.untyped_storage()._cdata for t in tensors]
    offsets = [t.storage_offset() for t in tensors]
    width = query.shape[-1]
    one_storage = len(set(storages)) == 1
    alike = all(t.stride() == query.stride() and t.shape == query.shape for t in tensors)
    steps = (width, query.shape[-2] * width)  # heads of Q, K, V side by side, or Q, K, V one after another
    if one_storage and alike and any(offsets == [i * step for i in range(3)] for step in steps):
        return tensors
    separate = len(set(storages)) == 3 and not any(offsets)
    if separate and _same_steps(key, value) and key.shape[:-1] == value.shape[:-1]:
        return tensors
    return tuple(t.contiguous() for t in tensors)


def _same_steps(key: torch.Tensor, value: torch.Tensor) -> bool:
    """Strides equal but for the width of a head."""
    scaled = zip(key.stride()[:-1], value.stride()[:-1], strict=True)
    return all(k * value.shape[-1] == v * key.shape[-1] for k, v in scaled)


class DotProductAttention(torch.nn.Module):
    """Causal attention over [s, b, heads, d]; returns [s, b, heads * d_v].

    The backend is chosen as megatron-core chooses it, by `NVTE_FLASH_ATTN`, `NVTE_FUSED_ATTN` and `NVTE_UNFUSED_ATTN`;
    with all allowed, cuDNN's fused kernel, which 2.11 prefers on Hopper and later.
    """

    def __init__(self, num_attention_heads, kv_channels, attention_dropout=0.0, softmax_scale=None, cp_group=None,
                 **_options):  # fmt: skip
        super().__init__()
        width = kv_channels[0] if isinstance(kv_channels, tuple) else kv_channels
        self.num_attention_heads = num_attention_heads
        self.softmax_scale = softmax_scale or 1 / sqrt(width)
        self.dropout, self.cp_group = attention_dropout, cp_group

    def set_context_parallel_group(self, cp_group, *_more) -> None:
        """megatron-core sets it late when groups come late."""
        self.cp_group = cp_group

    def forward(self, query, key, value, _attention_mask=None, **_options):
        """The mask is causal; Q, K and V may have their own widths and numbers of heads."""
        query, key, value = fitted(query, key, value)
        if self.cp_group is not None and self.cp_group.size() > 1:
            out = ring_attention(query, key, value, self.cp_group)
        elif _allowed("UNFUSED") and not _allowed("FUSED") and not _allowed("FLASH"):
            out = unfused_attention(query, key, value, self.softmax_scale, self.dropout)
        elif _allowed("FLASH") and not _allowed("FUSED"):
            out = flash_attention(query, key, value)
        else:
            out = fused_attention(query, key, value)
        return out.reshape(out.shape[0], out.shape[1], -1)


def _allowed(backend: str) -> bool:
    return os.environ.get(f"NVTE_{backend}_ATTN", "1") == "1"


def flash_attention(query, key, value):
    """flash-attn wants the batch outside: everything is copied for it, and its output back, unless the batch is one."""
    swapped = [t.transpose(0, 1).contiguous() for t in (query, key, value)]
    return fused_attention(*swapped, batch_first=True).transpose(0, 1).contiguous()


def unfused_attention(query, key, value, scale: float, dropout: float):
    """Scores in memory: product, masked softmax (one kernel that saves its output), dropout, product."""
    length, batch, heads, _ = query.shape
    if key.shape[2] != heads:
        key, value = (t.repeat_interleave(heads // t.shape[2], dim=2) for t in (key, value))
    query, key, value = (t.reshape(t.shape[0], batch * heads, -1) for t in (query, key, value))
    scores = torch.baddbmm(
        torch.empty(batch * heads, length, key.shape[0], dtype=query.dtype, device=query.device),
        query.transpose(0, 1), key.transpose(0, 1).transpose(1, 2), beta=0.0, alpha=scale,
    )  # fmt: skip
    probs = F.dropout(torch.softmax(scores, dim=-1), dropout)
    context = torch.bmm(probs, value.transpose(0, 1)).view(batch, heads, length, -1)
    return context.permute(2, 0, 1, 3).contiguous()
