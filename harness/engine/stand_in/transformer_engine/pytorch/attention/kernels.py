"""Attention that keeps no scores: cuDNN's fused kernel and flash-attn save the same, on one rank and over context-parallel ones."""

import torch

from harness.engine.tracing.collectives import peak_key, tensor_bytes
from harness.engine.tracing.tracer import active, attention_flops


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


class _Ring(torch.autograd.Function):
    """Every rank attends to one rank's keys and values after another's.

    The causal mask is cut so that all ranks do the same work; buffers are those of the last rank, whose steps all have
    full queries.
    """

    @staticmethod
    def forward(ctx, query, key, value, group):
        num_ranks = group.size()
        buffers = [torch.cat((key.reshape(-1), value.reshape(-1)))]
        outputs, statistics = [], []
        # the whole sequence's causal work, shared evenly: num_ranks times a rank's own causal block
        flops = causal_flops(query, key, value) * num_ranks
        for step in range(num_ranks):
            if step < num_ranks - 1:
                buffers.append(torch.empty_like(buffers[-1]))
                active().send(tensor_bytes(buffers[-1]), "cp", overlapped=True)
            outputs.append(query.new_empty((*query.shape[:3], value.shape[3])))
            statistics.append(row_statistics(query))
            record(flops // num_ranks, query, buffers[step], outputs[step])
        total_statistics = torch.clone(statistics[0])
        out = torch.empty_like(outputs[0])
        for partial in outputs:
            active().kernel("elementwise", "bf16", num_bytes=3 * tensor_bytes(partial))
        # queries, the keys and values that arrived last, output, statistics over the whole sequence; generator states
        generators = [torch.empty(2, dtype=torch.int64, device=query.device) for _ in range(num_ranks)]
        ctx.save_for_backward(query, buffers[-1], out, total_statistics, *generators)
        ctx.group, ctx.flops, ctx.shapes = group, flops, (key.shape, value.shape)
        return out

    @staticmethod
    def backward(ctx, grad):
        query, keys_values, out, *_ = ctx.saved_tensors
        num_ranks = ctx.group.size()
        grad = grad.contiguous()
        grad_query = torch.empty_like(query)
        # keys and values travel on together with their gradients, in two buffers that take turns
        travelling = [keys_values.new_empty((2, keys_values.numel())) for _ in range(2)]
        travelling[0][0].copy_(keys_values)
        for step in range(num_ranks):
            parts = 2 if 0 < step < num_ranks - 1 else 1
            active().send(parts * tensor_bytes(keys_values), "cp", overlapped=True)
            step_grads = torch.empty_like(query), torch.empty_like(keys_values)
            record(ctx.flops * 5 // 2 // num_ranks, query, keys_values, out, grad, *step_grads)
            active().kernel("elementwise", "bf16", num_bytes=3 * sum(map(tensor_bytes, step_grads)))
            del step_grads
        grad_key_value = [keys_values.new_empty(shape) for shape in ctx.shapes]
        return grad_query, *grad_key_value, None


def ring_attention(query, key, value, group):
    """[s / ranks, b, h, d] -> [s / ranks, b, h, d_v]."""
    return _Ring.apply(query, key, value, group)
