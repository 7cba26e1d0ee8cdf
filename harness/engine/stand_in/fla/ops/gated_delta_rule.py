"""flash-linear-attention's gated delta rule over chunks of 64 tokens (0.4): what it allocates and saves."""

import torch

from harness.engine.tracing.collectives import peak_key, tensor_bytes
from harness.engine.tracing.tracer import active

_CHUNK = 64


class _DeltaRule(torch.autograd.Function):
    """Takes q, k [b, s, h, d_k], v [b, s, h, d_v], g and beta [b, s, h]."""

    @staticmethod
    def forward(ctx, query, key, value, decay, beta):
        decay = torch.empty_like(decay)  # summed up within each chunk
        inverse = key.new_empty((*key.shape[:3], _CHUNK))
        keys, values, states, new_values = _unrolled(key, value)
        out = torch.empty_like(value)
        ctx.save_for_backward(query, key, value, decay, beta, inverse)
        ctx.flops = _flops(key, value)
        _record(ctx.flops, query, key, value, inverse, keys, values, states, new_values, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        query, key, value, decay, beta, inverse = ctx.saved_tensors
        keys, values, states, new_values = _unrolled(key, value)  # again: the forward pass let them go
        grad_values = torch.empty_like(grad)
        grad_states = torch.empty_like(states)
        grad_values = torch.empty_like(grad_values)
        grad_query, grad_key, grad_keys = (torch.empty_like(each) for each in (key, key, keys))
        grad_decay = torch.empty_like(decay)
        more_of_key, grad_value, grad_beta, more_of_decay = (torch.empty_like(t) for t in (key, value, beta, decay))
        _record(3 * ctx.flops, query, key, value, inverse, grad, keys, values, states, states, new_values, grad_states,
                grad_values, grad_query, grad_key, grad_keys, more_of_key, grad_value)  # fmt: skip
        del more_of_key, more_of_decay
        return grad_query, grad_key, grad_value, torch.empty_like(grad_decay), grad_beta


def _unrolled(key, value):
    """Keys and values of the unrolled recurrence, one state per chunk, and the values less what the state has."""
    batch, length, heads, width = key.shape
    states = key.new_empty((batch, -(-length // _CHUNK), heads, width, value.shape[3]))
    return torch.empty_like(key), torch.empty_like(value), states, torch.empty_like(value)


def _flops(key, value) -> int:
    """Three products with the state and five inside a chunk, a multiplication and an addition each."""
    tokens, key_width, value_width = key.shape[:3].numel(), key.shape[3], value.shape[3]
    return tokens * (6 * key_width * value_width + _CHUNK * (6 * key_width + 4 * value_width))


def _record(flops: int, *moved: torch.Tensor) -> None:
    active().kernel("attention", peak_key(moved[0].dtype), flops=flops, num_bytes=sum(map(tensor_bytes, moved)))


def chunk_gated_delta_rule(q, k, v, *, g, beta, **_options):
    """[b, s, h, d_v], and no final state."""
    return _DeltaRule.apply(q, k, v, g, beta), None
