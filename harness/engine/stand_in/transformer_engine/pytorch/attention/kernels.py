"""Attention that keeps no scores: cuDNN's fused kernel and flash-attn save the same."""

import torch

from harness.engine.tracing.collectives import peak_key, tensor_bytes
from harness.engine.tracing.flops import attention_flops
from harness.engine.tracing.tracer import active


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, batch_first):
        out = query.new_empty((*query.shape[:3], value.shape[3]))
        statistics, generator = row_statistics(query, batch_first=batch_first), _generator_state(query)
        flops = causal_flops(query, key, value, batch_first=batch_first)
        record(flops, query, key, value, out)
        # inputs and output, from which backward rebuilds the scores with one statistic per row; generator state
        ctx.save_for_backward(query, key, value, out, statistics, generator)
        ctx.flops, ctx.batch_first = flops, batch_first
        return out

    @staticmethod
    def backward(ctx, grad):
        query, key, value, out, *_ = ctx.saved_tensors
        grad = grad.contiguous()
        # five products for the forward's two; an fp32 accumulator of Q's gradient and one more statistic per row
        record(ctx.flops * 5 // 2, query, key, value, out, grad, query, key, value)
        accumulator = torch.empty(query.shape, dtype=torch.float32, device=query.device)
        statistics = row_statistics(query, batch_first=ctx.batch_first)
        grads = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (query, key, value)]
        del accumulator, statistics
        return *grads, None


def fused_attention(query, key, value, *, batch_first: bool = False):
    """[s, b, h, d] (or [b, s, h, d]) -> [s, b, h, d_v]."""
    return _Fused.apply(query, key, value, batch_first)


def row_statistics(query: torch.Tensor, *, batch_first: bool = False) -> torch.Tensor:
    """One fp32 per row of scores: [b, h, s, 1]."""
    length, batch = query.shape[1::-1] if batch_first else query.shape[:2]
    return torch.empty((batch, query.shape[2], length, 1), dtype=torch.float32, device=query.device)


def _generator_state(query: torch.Tensor) -> torch.Tensor:
    return torch.empty(2, dtype=torch.int64, device=query.device)


def causal_flops(query, key, value, *, batch_first: bool = False) -> int:
    """FLOPs of the forward kernel."""
    order = (0, 2, 1, 3) if batch_first else (1, 2, 0, 3)
    return attention_flops(*(t.permute(order) for t in (query, key, value)), causal=True)


def record(flops: int, *moved: torch.Tensor) -> None:
    """The cost of a kernel that reads or writes each of ``moved`` once."""
    active().kernel("attention", peak_key(moved[0].dtype), flops=flops, num_bytes=sum(map(tensor_bytes, moved)))
