"""Linear and LayerNormLinear: their weights, and what they save."""

import torch
from torch.nn import Parameter

from transformer_engine.pytorch.formats import Quantized, format_of
from transformer_engine.pytorch.fp8 import FP8GlobalStateManager
from transformer_engine.pytorch.linear_plan import Operand, Plan, gradients, product, release
from transformer_engine.pytorch.module.base import TransformerEngineBaseModule
from transformer_engine.pytorch.norms import norm_backward, norm_forward


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, layer, plan, copies):
        matrix = x.reshape(-1, x.shape[-1])
        operand = matrix if plan.fmt is None else plan.quantized_input(matrix)
        out = product(plan, operand, weight)
        if plan.records_grad:
            kept = matrix if plan.saves_original_input else plan.kept_of(operand)
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
        operand, mean, deviation = _normalized(plan, matrix, layer.normalization)
        out = product(plan, operand, weight)
        if plan.records_grad:
            # input and row statistics for the norm's backward; the norm's output for the weight gradient
            norm = (matrix, norm_weight, norm_bias, mean, deviation)
            _save(ctx, layer, plan, x.shape, plan.kept_of_norm(operand), bias, (weight, *norm, *copies))
        return out.view(-1, *x.shape[1:-1], out.shape[-1])

    @staticmethod
    def backward(ctx, grad):
        kept, (_weight, matrix, norm_weight, norm_bias, mean, deviation, *_copies) = _restore(ctx)
        weight = ctx.layer.weight  # the one with the gradient buffer: offloading hands out another
        result = gradients(ctx.plan, grad, kept, weight, _main_grad(ctx.layer, weight), bias=ctx.has_bias)
        release(*((kept,) if isinstance(kept, torch.Tensor) else {t for t in kept.tensors() if t is not None}))
        grad_matrix, *grad_norm = norm_backward(matrix, norm_weight, norm_bias)
        release(mean, deviation)
        return grad_matrix.view(ctx.input_shape), result.weight, result.bias, *grad_norm, None, None, None


def _normalized(plan: Plan, matrix: torch.Tensor, normalization: str):
    """The norm's output as the GEMM takes it; some recipes quantise inside the norm kernel and write nothing else."""
    if plan.fmt and plan.fmt.fused_norm:
        statistics = [torch.empty(matrix.shape[0], dtype=torch.float32, device=matrix.device) for _ in range(2)]
        return plan.quantized_input(matrix), statistics[0] if normalization == "LayerNorm" else None, statistics[1]
    out, mean, deviation = norm_forward(matrix, normalization=normalization)
    return (out if plan.fmt is None else plan.quantized_input(out)), mean, deviation


def _save(ctx, layer, plan: Plan, input_shape, kept: Operand, bias, tensors: tuple) -> None:
    ctx.layer, ctx.plan, ctx.input_shape, ctx.has_bias = layer, plan, input_shape, bias is not None
    ctx.kept_shape = None if isinstance(kept, torch.Tensor) else kept.shape
    # the GEMM's input, for the weight gradient
    ctx.save_for_backward(*((kept, None) if ctx.kept_shape is None else kept.tensors()), *tensors)


def _restore(ctx) -> tuple[Operand, tuple]:
    first, second, *tensors = ctx.saved_tensors
    if ctx.kept_shape is None:
        return first, tensors
    return Quantized(ctx.plan.fmt, ctx.kept_shape, first, second), tensors


def _main_grad(layer, weight):
    """The buffer that the weight gradient is accumulated into, where `fuse_wgrad_accumulation` is on."""
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
        """How a call now would run."""
        state = FP8GlobalStateManager
        return Plan(
            parallel_mode=self.parallel_mode,
            sequence_parallel=self.sequence_parallel,
            group=self.tp_group if self.tp_size > 1 else None,
            fmt=format_of(state.RECIPE) if state.FP8_ENABLED else None,
            saves_original_input=self.save_original_input,
            records_grad=torch.is_grad_enabled(),
        )

    def forward(self, x, is_first_microbatch=None):
        """[s, b, in] -> [s', b, out], the sequence gathered or cut by tensor parallelism."""
        x = x.contiguous()  # 2.11 `prepare_forward`: a view of a larger projection is not kept alive
        plan = self.plan()
        copies = self.quantized_weights((self.weight,), plan.fmt, is_first_microbatch) if plan.fmt else ()
        out = self.multiply(x, None if self.return_bias else self.bias, plan, copies)
        return (out, self.bias) if self.return_bias else out

    def multiply(self, x, bias, plan, copies):
        """The product itself, under autograd."""
        return _Linear.apply(x, self.weight, bias, self, plan, copies)


class LayerNormLinear(Linear):
    """A norm and a product in one module; the norm's output is its own and can be quantised on the way."""

    def __init__(self, in_features, out_features, *, eps=1e-5, normalization="LayerNorm", **options):
        super().__init__(in_features, out_features, **options)
        self.eps, self.normalization = eps, normalization
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
