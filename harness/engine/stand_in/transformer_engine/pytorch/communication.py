"""Gathers and scatters along the first dimension, plain and quantised."""

import torch
import torch.distributed as dist

from transformer_engine.pytorch.formats import QuantFormat, Quantized, quantize


def num_ranks(group) -> int:
    """Ranks of a process group; None is one."""
    return 1 if group is None else group.size()


def gather(x: torch.Tensor, group, *, overlapped: bool = False) -> torch.Tensor:
    """All ranks' rows of ``x``; ``x`` itself for one rank."""
    if num_ranks(group) == 1:
        return x
    out = torch.empty((x.shape[0] * group.size(), *x.shape[1:]), dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(out, x.contiguous(), group=group, async_op=overlapped)
    return out


def scatter_sum(x: torch.Tensor, group, *, overlapped: bool = False) -> torch.Tensor:
    """Rows of this rank in the sum of all ranks' ``x``."""
    if num_ranks(group) == 1:
        return x
    out = torch.empty((x.shape[0] // group.size(), *x.shape[1:]), dtype=x.dtype, device=x.device)
    dist.reduce_scatter_tensor(out, x.contiguous(), group=group, async_op=overlapped)
    return out


def gather_rows(x: Quantized, group, *, overlapped: bool = False) -> Quantized:
    """All ranks' row data."""
    shape = (x.shape[0] * num_ranks(group), x.shape[1])
    return Quantized(x.format, shape, gather(x.rows, group, overlapped=overlapped), None)


def gather_columns(x: Quantized, group) -> Quantized:
    """All ranks' column data, for the weight gradient, rank by rank: `Quantized.in_order` puts it in order.

    Per-tensor formats cannot be gathered so: their rows are gathered and transposed.
    """
    shape = (x.shape[0] * num_ranks(group), x.shape[1])
    columns = gather(x.columns, group, overlapped=True)
    ahead = torch.empty_like(columns) if x.format.name == "nvfp4" and num_ranks(group) > 1 else None
    return Quantized(x.format, shape, None, columns, ahead)


def quantize_and_gather(x: torch.Tensor, fmt: QuantFormat, group) -> Quantized:
    """Row and column data of all ranks' ``x``: a gradient on its way into both backward GEMMs."""
    if num_ranks(group) == 1:
        return quantize(x, fmt, rows=True, columns=True)
    if fmt.per_tensor:
        return gather_rows(quantize(x, fmt, rows=True, columns=False), group).with_columns()
    local = quantize(x, fmt, rows=True, columns=True)
    return Quantized(fmt, (x.shape[0] * group.size(), x.shape[1]), gather_rows(local, group).rows,
                     gather_columns(local, group).in_order().columns)  # fmt: skip
