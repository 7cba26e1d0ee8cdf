"""Fused rotary embedding (2.11 `attention/rope.py`)."""

import torch

from harness.engine.tracing.collectives import peak_key, tensor_bytes
from harness.engine.tracing.tracer import active


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, freqs):
        # the angles, a table that all layers share
        ctx.save_for_backward(freqs)
        return _turned(x)

    @staticmethod
    def backward(_ctx, grad):
        return _turned(grad), None


def _turned(x: torch.Tensor) -> torch.Tensor:
    active().kernel("elementwise", peak_key(x.dtype), num_bytes=2 * tensor_bytes(x))
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def apply_rotary_pos_emb(t, freqs, tensor_format="sbhd", **_options):  # noqa: ARG001
    """[s, b, h, d] -> the same, contiguous."""
    return _Rope.apply(t, freqs)
