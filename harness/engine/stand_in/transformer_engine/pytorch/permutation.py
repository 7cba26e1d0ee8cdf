"""Fused token permutation (2.11 `permutation.py`, `triton/permutation.py`)."""

import torch

from harness.engine.tracing.collectives import tensor_bytes
from harness.engine.tracing.tracer import active


def _move(*tensors: torch.Tensor) -> None:
    active().kernel("elementwise", "bf16", num_bytes=sum(map(tensor_bytes, tensors)))


def _row_map(num_tokens: int, width: int, like: torch.Tensor) -> torch.Tensor:
    return torch.empty((num_tokens, width) if width > 1 else num_tokens, dtype=torch.int32, device=like.device)


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, probs, num_experts, num_out_tokens):
        row_map = _row_map(x.shape[0], 2 * num_experts + 1, x)
        out = x.new_empty((num_out_tokens, x.shape[1]))
        out_probs = None if probs is None else probs.new_empty(num_out_tokens)
        _move(x, out)
        # where every token went: two numbers per expert and one per token
        ctx.save_for_backward(row_map)
        ctx.shape, ctx.probs_shape = x.shape, None if probs is None else probs.shape
        ctx.mark_non_differentiable(row_map)
        return out, row_map, out_probs

    @staticmethod
    def backward(ctx, grad, _row_map_grad, grad_probs):
        out = grad.new_empty(ctx.shape)
        _move(grad, out)
        return out, None if ctx.probs_shape is None else grad_probs.new_empty(ctx.probs_shape), None, None


class _Unpermute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, row_map, probs, shape):
        out = x.new_empty(shape)
        _move(x, out)
        # with probabilities the tokens too, since their gradient needs them
        ctx.save_for_backward(row_map, *(() if probs is None else (x, probs)))
        ctx.shape = x.shape
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(ctx.shape)
        _move(grad, out)
        probs = ctx.saved_tensors[2:]
        return out, None, torch.empty_like(probs[0]) if probs else None, None


class _SortChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, probs):
        # where every row went: one number each
        ctx.save_for_backward(_row_map(x.shape[0], 1, x))
        out = torch.empty_like(x)
        _move(x, out)
        return out, None if probs is None else torch.empty_like(probs)

    @staticmethod
    def backward(_ctx, grad, grad_probs):
        out = torch.empty_like(grad)
        _move(grad, out)
        return out, None if grad_probs is None else torch.empty_like(grad_probs)


def moe_permute(inp, routing_map, num_out_tokens=-1, max_token_num=-1, map_type="mask"):  # noqa: ARG001
    """[tokens, h] -> [num_out_tokens, h] and the map."""
    out, row_map, _ = _Permute.apply(inp, None, routing_map.shape[1], num_out_tokens)
    return out, row_map


def moe_permute_with_probs(inp, probs, routing_map, num_out_tokens=-1):
    """As :func:`moe_permute`, with one probability per row."""
    out, row_map, out_probs = _Permute.apply(inp, probs, routing_map.shape[1], num_out_tokens)
    return out, out_probs, row_map


def moe_unpermute(inp, row_id_map, merging_probs=None, restore_shape=None, map_type="mask", probs=None):  # noqa: ARG001
    """Back to ``restore_shape``, rows of one token added up."""
    return _Unpermute.apply(inp, row_id_map, merging_probs, restore_shape)


def moe_sort_chunks_by_index(inp, split_sizes, sorted_index):  # noqa: ARG001
    """Rows in another order."""
    return _SortChunks.apply(inp, None)[0]


def moe_sort_chunks_by_index_with_probs(inp, probs, split_sizes, sorted_index):  # noqa: ARG001
    """Rows and probabilities in another order."""
    return _SortChunks.apply(inp, probs)
