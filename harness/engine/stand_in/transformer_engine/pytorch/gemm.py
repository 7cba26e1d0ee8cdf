"""Matrix products: an output and a cost."""

import torch

from harness.engine.tracing.collectives import peak_key
from harness.engine.tracing.flops import gemm_flops
from harness.engine.tracing.tracer import active
from transformer_engine.pytorch.formats import QuantFormat


def gemm(sizes: tuple[int, int, int], like: torch.Tensor, fmt: QuantFormat | None, out: torch.Tensor | None = None):
    """[m, k] x [k, n] -> [m, n] in the type of ``like``; ``out`` is accumulated into instead.

    Operands are of one type: quantised by ``fmt``, or that of ``like``. ``sizes`` is (m, k, n).
    """
    record_gemm(sizes, like, fmt)
    m, _, n = sizes
    return torch.empty((m, n), dtype=like.dtype, device=like.device) if out is None else out


def record_gemm(sizes: tuple[int, int, int], like: torch.Tensor, fmt: QuantFormat | None, num_weights: int = 1) -> None:
    """The cost of a product; ``num_weights`` matrices of [k, n] in a grouped one."""
    m, k, n = sizes
    bits = like.element_size() * 8 if fmt is None else fmt.bits
    moved = bits * (m * k + num_weights * k * n) // 8 + like.element_size() * m * n
    active().kernel("gemm", fmt.peak if fmt else peak_key(like.dtype), flops=gemm_flops(m, k, n), num_bytes=moved)
