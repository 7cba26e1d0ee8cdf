"""Fused attention and rotary embeddings (csrc/extensions/attention.cpp, apply_rope.cpp).

Arguments of the attention kernels move from release to release, so tensors are found by their ranks. The workspaces of
the backward kernel are cuDNN's and were taken over from the stand-in: that both are equal there proves nothing.
"""

import torch

from transformer_engine_torch.enumerations import Member, NVTE_Fused_Attn_Backend
from transformer_engine_torch.tensors import empty


def get_fused_attn_backend(*_arguments, **_options):
    """cuDNN's kernel for any length."""
    return NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen


def fused_attn_fwd(max_seqlen_q, max_seqlen_kv, is_training, *more, **_options):
    """Output; when training also one statistic per row of scores, the generator's state, and sinks if there are any."""
    query, _key, value = _query_key_value(more)
    batch, length = _batch_and_length(query, more)
    out = empty((*query.shape[:-1], value.shape[-1]), query.dtype)
    if not is_training:
        return [out]
    return [out, empty((batch, query.shape[2], length, 1), torch.float32), empty((2,), torch.int64), *_sinks(more)]


def fused_attn_bwd(*arguments, **_options):
    """Gradients of Q, K and V, of the bias, of which there is none, and of the sinks."""
    query, key, value = _query_key_value(arguments)
    batch, length = _batch_and_length(query, arguments)
    workspaces = empty(query.shape, torch.float32), empty((batch, query.shape[2], length, 1), torch.float32)
    grads = [empty(t.shape, t.dtype) for t in (query, key, value)]
    del workspaces
    return [*grads, None, *(torch.empty_like(sinks) for sinks in _sinks(_kept_for_backward(arguments)))]


def fused_rope_forward(input, freqs, *_arguments, **_options):
    """A new tensor."""
    return torch.empty_like(input, memory_format=torch.contiguous_format)


def fused_rope_backward(output_grads, freqs, *_arguments, **_options):
    """A new tensor."""
    return torch.empty_like(output_grads, memory_format=torch.contiguous_format)


def _kept_for_backward(arguments):
    """What the forward kernel kept, which the backward kernel takes as one list."""
    return next(a for a in arguments if isinstance(a, list | tuple) and a and isinstance(a[0], torch.Tensor))


def _sinks(arguments):
    """The logit of each head, [1, h, 1, 1], as a list of at most one."""
    found = [a for a in arguments if isinstance(a, torch.Tensor) and a.dim() == 4]
    return [a for a in found if a.shape == (1, a.shape[1], 1, 1) and a.dtype == torch.float32][:1]


def _query_key_value(arguments):
    return [a for a in arguments if isinstance(a, torch.Tensor) and a.dim() >= 3][:3]


def _batch_and_length(query, arguments):
    layout = next(a.name for a in arguments if isinstance(a, Member) and a.kind == "NVTE_QKV_Layout")
    first, second = query.shape[:2]
    return (first, second) if layout.split("_")[1].startswith("BS") else (second, first)
