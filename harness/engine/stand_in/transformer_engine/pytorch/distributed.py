"""Checkpointing under quantisation (2.11 `distributed.py`), megatron-core's generator tracker, and gathers."""

from contextlib import contextmanager

import torch
import torch.distributed as dist

from harness.engine.tracing.tracer import active
from transformer_engine.pytorch.formats import QuantFormat, Quantized, quantize
from transformer_engine.pytorch.fp8 import FP8GlobalStateManager, fp8_autocast


class CudaRNGStatesTracker:
    """Tracks nothing: megatron-core derives a class from it, of which a trace makes no object."""


def get_all_rng_states() -> dict:
    """None."""
    return {}


class _Phase:
    enabled = False
    recomputing = False


def is_fp8_activation_recompute_enabled() -> bool:
    """Return whether a checkpoint is running."""
    return _Phase.enabled


def in_fp8_activation_recompute_phase() -> bool:
    """Return whether it repeats its forward pass."""
    return _Phase.recomputing


@contextmanager
def activation_recompute_forward(activation_recompute=False, recompute_phase=False):  # noqa: FBT002
    """Marks the first or the repeated forward pass of a checkpoint."""
    before = _Phase.enabled, _Phase.recomputing
    _Phase.enabled, _Phase.recomputing = activation_recompute, recompute_phase
    try:
        yield
    finally:
        _Phase.enabled, _Phase.recomputing = before


class _Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, distribute, group, kwargs, *args):
        with torch.no_grad(), activation_recompute_forward(True, False):
            out = function(*args, **kwargs)
        if distribute:
            ctx.first_shape = args[0].shape
            args[0].data = torch.empty(args[0].numel() // group.size(), dtype=args[0].dtype, device=args[0].device)
        # inputs only: everything else is computed again
        ctx.save_for_backward(*(a if torch.is_tensor(a) else None for a in args))
        ctx.others = [None if torch.is_tensor(a) else a for a in args]
        ctx.function, ctx.distribute, ctx.group, ctx.kwargs = function, distribute, group, kwargs
        ctx.enabled, ctx.recipe = FP8GlobalStateManager.FP8_ENABLED, FP8GlobalStateManager.RECIPE
        return out

    @staticmethod
    def backward(ctx, *grads):
        args = [other if saved is None else saved for saved, other in zip(ctx.saved_tensors, ctx.others, strict=True)]
        if ctx.distribute:
            whole = torch.empty(ctx.first_shape, dtype=args[0].dtype, device=args[0].device)
            dist.all_gather_into_tensor(whole.view(-1), args[0], group=ctx.group)
            args[0].data = whole
        args = [a.detach().requires_grad_(a.requires_grad) if torch.is_tensor(a) else a for a in args]
        with (
            active().recomputing(),
            torch.enable_grad(),
            activation_recompute_forward(True, True),
            fp8_autocast(ctx.enabled, fp8_recipe=ctx.recipe),
        ):
            out = ctx.function(*args, **ctx.kwargs)
        outputs = out if isinstance(out, tuple) else (out,)
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if torch.is_tensor(o) and o.requires_grad]
        torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        return *(None,) * 4, *(a.grad if torch.is_tensor(a) else None for a in args)


def checkpoint(
    function,
    *args,
    distribute_saved_activations=False,
    get_rng_state_tracker=None,  # noqa: ARG001 (no random number decides what is saved)
    tp_group=None,
    **kwargs,
):
    """Keep the inputs, repeat the forward pass in backward."""
    return _Checkpoint.apply(function, distribute_saved_activations, tp_group, kwargs, *args)


def num_ranks(group) -> int:
    """Ranks of a process group; None is one."""
    return 1 if group is None else group.size()


def gather(x: torch.Tensor, group, *, overlapped: bool = False) -> torch.Tensor:
    """Return all ranks' rows of ``x``; ``x`` itself for one rank."""
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
    """Return all ranks' row data."""
    shape = (x.shape[0] * num_ranks(group), x.shape[1])
    return Quantized(x.format, shape, gather(x.rows, group, overlapped=overlapped), None)


def gather_columns(x: Quantized, group) -> Quantized:
    """Return all ranks' column data, for the weight gradient, rank by rank: `Quantized.in_order` puts it in order."""
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
