"""FLOPs of aten operations: matrix products and attention kernels; everything else is bound by memory."""

from math import prod

import torch
from torch.utils.flop_counter import flop_registry

from harness.records.trace import OpKind

aten = torch.ops.aten


def attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool) -> int:
    """Two products over the scores, ``2 b a s s_k (d_k + d_v)``; half of it under a causal mask.

    Takes [b, a, s, d] as torch's kernels do; heads of key and value may be fewer (grouped queries).
    """
    batch, heads, length, _ = query.shape
    flops = 2 * batch * heads * length * key.shape[2] * (key.shape[3] + value.shape[3])
    return flops // 2 if causal else flops


# Kernels by packet: where the causal flag stands among the arguments, and how many products they do for the forward's
# two. Backward kernels recompute the scores: five; their arguments begin with the output's gradient.
_KERNELS = {
    aten._scaled_dot_product_flash_attention: (4, 2),
    aten._scaled_dot_product_flash_attention_backward: (11, 5),
    aten._scaled_dot_product_flash_attention_for_cpu: (4, 2),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (7, 5),
    aten._scaled_dot_product_efficient_attention: (6, 2),
    aten._scaled_dot_product_efficient_attention_backward: (11, 5),
}


def _attention(packet: object, args: tuple) -> int:
    causal_place, products = _KERNELS[packet]
    tensors = args[:3] if products == 2 else args[1:4]
    causal = len(args) > causal_place and bool(args[causal_place])
    return attention_flops(*tensors, causal=causal) * products // 2


def classify(packet: object, args: tuple, kwargs: dict, out: object) -> tuple[OpKind, int]:
    """What kind of operation an aten packet is, and its FLOPs (multiply and add are two)."""
    if packet in _KERNELS:
        return "attention", _attention(packet, args)
    formula = flop_registry.get(packet)
    if formula is None:
        return "elementwise", 0
    return "gemm", int(formula(*args, **kwargs, out_val=out))


def gemm_flops(*sizes: int) -> int:
    """``2 m n k``."""
    return 2 * prod(sizes)
