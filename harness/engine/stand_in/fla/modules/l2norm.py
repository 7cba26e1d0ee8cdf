"""flash-linear-attention's norm of queries and keys: saves its output and one fp32 per row (0.4)."""

import torch

from harness.engine.tracing.collectives import peak_key, tensor_bytes
from harness.engine.tracing.tracer import active


class _L2Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        ctx.save_for_backward(out, torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device))
        active().kernel("elementwise", peak_key(x.dtype), num_bytes=2 * tensor_bytes(x))
        return out

    @staticmethod
    def backward(ctx, _grad):
        out, _ = ctx.saved_tensors
        active().kernel("elementwise", peak_key(out.dtype), num_bytes=3 * tensor_bytes(out))
        return torch.empty_like(out)


def l2norm(x, _eps=1e-6):
    """[..., d] -> [..., d]."""
    return _L2Norm.apply(x)
