"""Linear and LayerNormLinear: their weights, and what they save."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn import Parameter

from transformer_engine.pytorch.distributed import (
    gather,
    gather_columns,
    gather_rows,
    num_ranks,
    quantize_and_gather,
    scatter_sum,
)
from transformer_engine.pytorch.formats import QuantFormat, Quantized, format_of, gemm, quantize
from transformer_engine.pytorch.fp8 import FP8GlobalStateManager
from transformer_engine.pytorch.module.base import TransformerEngineBaseModule, weight_grad
from transformer_engine.pytorch.norms import norm_backward, norm_forward

Operand = torch.Tensor | Quantized


def release(*tensors: torch.Tensor | None) -> None:
    """Free the data of internal tensors before autograd lets go of them (2.11 `clear_tensor_data`)."""
    for tensor in tensors:
        if tensor is not None:
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)


@dataclass(frozen=True)
class Plan:
    """How one call runs. ``group`` is None without tensor parallelism; ``fmt`` None computes in the input's type.

    ``trains``: the weight has a gradient; a frozen one needs no input in the backward pass.
    """

    parallel_mode: str | None
    sequence_parallel: bool
    group: object
    fmt: QuantFormat | None
    saves_original_input: bool
    records_grad: bool
    trains: bool = True

    @property
    def gathers_input(self) -> bool:
        """Column-parallel: the input is cut along the sequence, its gradient summed into such cuts."""
        return self.parallel_mode == "column" and self.sequence_parallel

    @property
    def gathers_grad(self) -> bool:
        """Row-parallel: the output is summed into cuts along the sequence, its gradient gathered from them."""
        return self.parallel_mode == "row" and self.sequence_parallel

    def quantized_input(self, x: torch.Tensor) -> Quantized:
        """Quantise the input for this GEMM, and for the weight gradient unless that reads the original."""
        needs_columns = self.records_grad and self.trains and not self.saves_original_input
        columns = needs_columns and not (self.gathers_input and self.fmt.per_tensor)
        return quantize(x, self.fmt, rows=True, columns=columns)

    def kept_of(self, operand: Operand) -> Operand:
        """Return the part of a quantised input that the weight gradient needs: row data only if it must be gathered."""
        if isinstance(operand, torch.Tensor):
            return operand
        return operand.only_rows() if self.gathers_input and self.fmt.per_tensor else operand.only_columns()

    def kept_of_norm(self, operand: Operand) -> Operand:
        """As :meth:`kept_of`, for a norm's output; 2.11 drops row data by format, but not for NVFP4."""
        is_nvfp4 = isinstance(operand, Quantized) and operand.format.name == "nvfp4"
        return operand if is_nvfp4 and self.gathers_input else self.kept_of(operand)


def product(plan: Plan, operand: Operand, weight: torch.Tensor, gathered: torch.Tensor | None = None) -> torch.Tensor:
    """Gather the input (or take it ``gathered``, in high precision), multiply, and sum the output over the ranks."""
    num_out, num_in = weight.shape
    if gathered is not None:
        total = gathered if plan.fmt is None else quantize(gathered, plan.fmt, rows=True, columns=False)
    elif plan.gathers_input:
        total = gather(operand, plan.group) if isinstance(operand, torch.Tensor) else gather_rows(operand, plan.group)
    else:
        total = operand
    out = gemm((total.shape[0], num_in, num_out), weight, plan.fmt)
    del total
    if plan.parallel_mode == "row" and num_ranks(plan.group) > 1:
        if plan.sequence_parallel:
            return scatter_sum(out, plan.group)
        dist.all_reduce(out, group=plan.group)
    return out


@dataclass
class Gradients:
    """Gradients of input, weight and bias; ``buffers`` live until the layer's backward returns."""

    input: torch.Tensor
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    buffers: tuple = ()


def gradients(
    plan: Plan, grad: torch.Tensor, kept: Operand | None, weight: torch.Tensor, main_grad, *, bias: bool
) -> Gradients:
    """Run both backward GEMMs with their communication; ``kept`` is the saved input. A frozen weight has one GEMM."""
    num_out, num_in = weight.shape
    grad = grad.reshape(-1, num_out).contiguous()
    if plan.fmt:
        total_grad = quantize_and_gather(grad, plan.fmt, plan.group if plan.gathers_grad else None)
    else:
        total_grad = gather(grad, plan.group) if plan.gathers_grad else grad
    grad_bias = torch.empty(num_out, dtype=weight.dtype, device=grad.device) if bias else None
    total_input = _input_for_weight_grad(plan, kept) if plan.trains else None
    num_rows = total_grad.shape[0]
    grad_total_input = gemm((num_rows, num_out, num_in), weight, plan.fmt)
    grad_input = _reduced(plan, grad_total_input)
    if not plan.trains:
        return Gradients(grad_input, None, grad_bias, (grad_total_input, total_grad))
    if plan.fmt:
        total_input = total_input.with_columns()
        if plan.gathers_input:
            total_input = total_input.in_order()  # 2.11 waits for the gather only here, beside the input's gradient
    sizes = (num_out, num_rows, num_in)
    wgrad = main_grad if main_grad is not None else weight_grad(weight, None, grad)
    gemm(sizes, weight, plan.fmt, out=wgrad)
    if main_grad is not None:
        wgrad = weight_grad(weight, main_grad, grad)
    if plan.gathers_grad and plan.fmt:
        total_grad = None
    return Gradients(grad_input, wgrad, grad_bias, (grad_total_input, total_grad))


def _input_for_weight_grad(plan: Plan, kept: Operand) -> Operand:
    """Gather the saved input; quantise it first if the original was kept."""
    if plan.fmt is None:
        return gather(kept, plan.group, overlapped=True) if plan.gathers_input else kept
    if isinstance(kept, torch.Tensor):
        rows = plan.fmt.per_tensor
        kept = quantize(kept, plan.fmt, rows=rows, columns=not (rows and plan.gathers_input))
    if not plan.gathers_input:
        return kept
    if plan.fmt.per_tensor:
        return gather_rows(kept, plan.group, overlapped=True)
    return gather_columns(kept, plan.group)


def _reduced(plan: Plan, grad_total_input: torch.Tensor) -> torch.Tensor:
    if plan.parallel_mode != "column" or num_ranks(plan.group) == 1:
        return grad_total_input
    if plan.sequence_parallel:
        return scatter_sum(grad_total_input, plan.group, overlapped=True)
    dist.all_reduce(grad_total_input, group=plan.group, async_op=True)
    return grad_total_input


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, layer, plan, copies):
        matrix = x.reshape(-1, x.shape[-1])
        operand = matrix if plan.fmt is None else plan.quantized_input(matrix)
        out = product(plan, operand, weight)
        if plan.records_grad:
            kept = None if not plan.trains else matrix if plan.saves_original_input else plan.kept_of(operand)
            _save(ctx, layer, plan, x.shape, kept, bias, (weight, *copies))
        return out.view(-1, *x.shape[1:-1], out.shape[-1])

    @staticmethod
    def backward(ctx, grad):
        kept, _tensors = _restore(ctx)
        weight = ctx.layer.weight
        result = gradients(ctx.plan, grad, kept, weight, _main_grad(ctx.layer, weight), bias=ctx.has_bias)
        return result.input.view(ctx.input_shape), result.weight, result.bias, None, None, None


class _NormLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, norm_weight, norm_bias, layer, plan, copies):  # noqa: PLR0913, PLR0917
        matrix = x.reshape(-1, x.shape[-1])
        operand, mean, deviation, returned = _normalized(plan, matrix, layer)
        is_gathered = plan.gathers_input and layer.return_layernorm_output_gathered
        out = product(plan, operand, weight, returned if is_gathered else None)
        if plan.records_grad:
            # input and row statistics for the norm's backward; the norm's output for the weight gradient
            norm = (matrix, norm_weight, norm_bias, mean, deviation)
            kept = plan.kept_of_norm(operand) if plan.trains else operand if layer.return_layernorm_output else None
            _save(ctx, layer, plan, x.shape, kept, bias, (weight, *norm, *copies))
        out = out.view(-1, *x.shape[1:-1], out.shape[-1])
        return out if returned is None else (out, returned.view(-1, *x.shape[1:]))

    @staticmethod
    def backward(ctx, grad, grad_returned=None):
        kept, (_weight, matrix, norm_weight, norm_bias, mean, deviation, *_copies) = _restore(ctx)
        weight = ctx.layer.weight  # the one with the gradient buffer: offloading hands out another
        result = gradients(ctx.plan, grad, kept, weight, _main_grad(ctx.layer, weight), bias=ctx.has_bias)
        if ctx.plan.trains:
            release(*((kept,) if isinstance(kept, torch.Tensor) else {t for t in kept.tensors() if t is not None}))
        if grad_returned is not None and not ctx.layer.return_layernorm_output_gathered:
            result.input = result.input + grad_returned.view_as(result.input)
        grad_matrix, *grad_norm = norm_backward(matrix, norm_weight, norm_bias)
        release(mean, deviation)
        return grad_matrix.view(ctx.input_shape), result.weight, result.bias, *grad_norm, None, None, None


def _normalized(plan: Plan, matrix: torch.Tensor, layer):
    """Return the norm's output as the GEMM takes it, row statistics, and the output that an adapter reads."""
    normalization, returns = layer.normalization, layer.return_layernorm_output
    if plan.fmt and plan.fmt.fused_norm and not returns:
        mean, deviation = (torch.empty(matrix.shape[0], dtype=torch.float32, device=matrix.device) for _ in range(2))
        return plan.quantized_input(matrix), mean if normalization == "LayerNorm" else None, deviation, None
    out, mean, deviation = norm_forward(matrix, normalization=normalization)
    returned = None
    if returns:
        returned = gather(out, plan.group) if plan.gathers_input and layer.return_layernorm_output_gathered else out
    return (out if plan.fmt is None else plan.quantized_input(out)), mean, deviation, returned


def _save(ctx, layer, plan: Plan, input_shape, kept: Operand | None, bias, tensors: tuple) -> None:
    ctx.layer, ctx.plan, ctx.input_shape, ctx.has_bias = layer, plan, input_shape, bias is not None
    ctx.kept_shape = kept.shape if isinstance(kept, Quantized) else None
    # the GEMM's input, for the weight gradient
    ctx.save_for_backward(*((kept, None) if ctx.kept_shape is None else kept.tensors()), *tensors)


def _restore(ctx) -> tuple[Operand, tuple]:
    first, second, *tensors = ctx.saved_tensors
    if ctx.kept_shape is None:
        return first, tensors
    return Quantized(ctx.plan.fmt, ctx.kept_shape, first, second), tensors


def _main_grad(layer, weight):
    """Return the buffer that accumulates the weight gradient; None without `fuse_wgrad_accumulation`."""
    return weight.main_grad if layer.fuse_wgrad_accumulation and hasattr(weight, "main_grad") else None


class Linear(TransformerEngineBaseModule):
    """``y = x W^T + b`` under tensor parallelism."""

    def __init__(  # noqa: PLR0913 (transformer-engine's signature)
        self, in_features, out_features, *, sequence_parallel=False, fuse_wgrad_accumulation=False, tp_group=None,
        tp_size=1, bias=True, return_bias=False, params_dtype=torch.float32, parallel_mode=None, device="cuda",
        **_options,
    ):  # fmt: skip
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        if parallel_mode == "column":
            self.out_features = out_features // tp_size
        elif parallel_mode == "row":
            self.in_features = in_features // tp_size
        self.tp_group, self.tp_size, self.parallel_mode = tp_group, tp_size, parallel_mode
        self.sequence_parallel = sequence_parallel and tp_size > 1
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.use_bias, self.return_bias, self.save_original_input = bias, return_bias, False
        self.make_weight("weight", (self.out_features, self.in_features), params_dtype, device)
        self.bias = Parameter(torch.empty(self.out_features, dtype=params_dtype, device=device)) if bias else None

    def plan(self) -> Plan:
        """Return how a call would run now."""
        state = FP8GlobalStateManager
        return Plan(
            parallel_mode=self.parallel_mode,
            sequence_parallel=self.sequence_parallel,
            group=self.tp_group if self.tp_size > 1 else None,
            fmt=format_of(state.RECIPE) if state.FP8_ENABLED else None,
            saves_original_input=self.save_original_input,
            records_grad=torch.is_grad_enabled(),
            trains=self.weight.requires_grad,
        )

    def forward(self, x, is_first_microbatch=None):
        """[s, b, in] -> [s', b, out], the sequence gathered or cut by tensor parallelism."""
        x = x.contiguous()  # 2.11 `prepare_forward`: a view of a larger projection is not kept alive
        plan = self.plan()
        copies = self.quantized_weights((self.weight,), plan.fmt, is_first_microbatch) if plan.fmt else ()
        out = self.multiply(x, None if self.return_bias else self.bias, plan, copies)
        if isinstance(out, tuple) and self.return_bias:
            return out[0], self.bias, out[1]
        return (out, self.bias) if self.return_bias else out

    def multiply(self, x, bias, plan, copies):
        """The product itself, under autograd."""
        return _Linear.apply(x, self.weight, bias, self, plan, copies)


class LayerNormLinear(Linear):
    """A norm and a product in one module; the norm's output is its own and can be quantised on the way."""

    def __init__(self, in_features, out_features, *, eps=1e-5, normalization="LayerNorm", **options):
        super().__init__(in_features, out_features, **options)
        self.eps, self.normalization = eps, normalization
        self.return_layernorm_output = self.return_layernorm_output_gathered = False
        dtype, device = options.get("params_dtype", torch.float32), options.get("device", "cuda")
        self.layer_norm_bias = None
        for name in ("weight", "bias") if normalization == "LayerNorm" else ("weight",):
            parameter = Parameter(torch.empty(in_features, dtype=dtype, device=device))
            parameter.sequence_parallel = self.sequence_parallel
            setattr(self, f"layer_norm_{name}", parameter)

    def multiply(self, x, bias, plan, copies):
        """The product itself, under autograd."""
        norm = (self.layer_norm_weight, self.layer_norm_bias)
        return _NormLinear.apply(x, self.weight, bias, *norm, self, plan, copies)
