"""Ring attention over context-parallel ranks (2.11 `context_parallel.py`, AttnFuncWithCPAndKVP2P, the default)."""

import torch

from harness.engine.tracing.collectives import tensor_bytes
from harness.engine.tracing.tracer import active
from transformer_engine.pytorch.attention.kernels import causal_flops, record, row_statistics


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
