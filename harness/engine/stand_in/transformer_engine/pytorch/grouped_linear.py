"""GroupedLinear: one product per expert (2.11 `module/grouped_linear.py`), padded for quantised GEMMs."""

import torch
from torch.nn import Parameter

from transformer_engine.common import recipe as recipes
from transformer_engine.pytorch.formats import format_of, quantize, record_gemm
from transformer_engine.pytorch.fp8 import FP8GlobalStateManager
from transformer_engine.pytorch.module.base import TransformerEngineBaseModule, weight_grad

# 2.11 `quantization.py`, get_align_size_for_quantization: rows of one expert's input that quantised products need.
_ALIGNED = {recipes.MXFP8BlockScaling: 32, recipes.NVFP4BlockScaling: 64}


class _Resize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, num_rows):
        ctx.num_rows = x.shape[0]
        return x.new_empty((num_rows, x.shape[1]))

    @staticmethod
    def backward(ctx, grad):
        return grad.new_empty((ctx.num_rows, grad.shape[1])), None


class Fp8Padding(torch.nn.Module):
    """Rows of each expert up to a multiple of ``align_size``, by default that of the recipe."""

    def __init__(self, num_gemms, align_size=None):
        super().__init__()
        self.num_gemms, self.align_size = num_gemms, align_size

    def forward(self, x, m_splits):
        """[sum(m_splits), k] -> [sum of padded, k] and the padded splits."""
        if self.align_size is None:
            self.align_size = _ALIGNED.get(type(FP8GlobalStateManager.get_fp8_recipe()), 16)
        padded = [-(-m // self.align_size) * self.align_size for m in m_splits]
        return (x, list(m_splits)) if padded == list(m_splits) else (_Resize.apply(x, sum(padded)), padded)


class Fp8Unpadding(torch.nn.Module):
    """Takes the padding out again."""

    def __init__(self, num_gemms, align_size=None):
        super().__init__()
        self.num_gemms, self.align_size = num_gemms, align_size

    def forward(self, x, m_splits):
        """[sum of padded, k] -> [sum(m_splits), k]."""
        return x if x.shape[0] == sum(m_splits) else _Resize.apply(x, sum(m_splits))


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer, splits, fmt, num_copies, records_grad, *tensors):
        weights = tensors[: layer.num_gemms]
        matrix = x.reshape(-1, layer.in_features)
        operand = matrix
        trains = weights[0].requires_grad
        if fmt:
            columns = records_grad and trains and not layer.save_original_input
            operand = quantize(matrix, fmt, rows=True, columns=columns, splits=splits)
        out = torch.empty((matrix.shape[0], layer.out_features), dtype=weights[0].dtype, device=x.device)
        record_gemm((matrix.shape[0], layer.in_features, layer.out_features), out, fmt, len(weights))
        if records_grad:
            # the input, for the weight gradients: as it came, or what columns read of its quantised form
            kept = matrix if not fmt or layer.save_original_input else operand.only_columns().columns
            kept = kept if trains else None
            ctx.save_for_backward(kept, *tensors)
            ctx.layer, ctx.splits, ctx.fmt, ctx.num_copies, ctx.shape = layer, splits, fmt, num_copies, x.shape
        return out.view(*x.shape[:-1], out.shape[-1])

    @staticmethod
    def backward(ctx, grad):
        layer, fmt, splits = ctx.layer, ctx.fmt, ctx.splits
        kept, *tensors = ctx.saved_tensors
        weights = [getattr(layer, f"weight{i}") for i in range(layer.num_gemms)]
        biases = tensors[layer.num_gemms + ctx.num_copies :]
        grad = grad.contiguous().view(-1, layer.out_features)
        quantized_grad = quantize(grad, fmt, rows=True, columns=True, splits=splits) if fmt else grad
        dgrad = torch.empty((grad.shape[0], layer.in_features), dtype=weights[0].dtype, device=grad.device)
        record_gemm((grad.shape[0], layer.out_features, layer.in_features), dgrad, fmt, len(weights))
        if not weights[0].requires_grad:
            return dgrad.view(ctx.shape), *(None,) * (5 + len(tensors))
        requantized = None
        if fmt and layer.save_original_input:
            requantized = quantize(kept, fmt, rows=fmt.per_tensor, columns=True, splits=splits)
        main_grads = _main_grads(layer, weights)
        wgrads = [weight_grad(w, None, grad) if m is None else m for w, m in zip(weights, main_grads, strict=True)]
        # the inner dimension is the tokens, however they are split over the experts
        record_gemm((layer.out_features, grad.shape[0], layer.in_features), dgrad, fmt)
        wgrads = [
            g if m is None else weight_grad(w, m, grad) for g, w, m in zip(wgrads, weights, main_grads, strict=True)
        ]
        del quantized_grad, requantized
        grad_biases = [None if layer.return_bias else torch.empty_like(b) for b in biases]
        return dgrad.view(ctx.shape), *(None,) * 5, *wgrads, *(None,) * ctx.num_copies, *grad_biases


def _main_grads(layer, weights):
    fused = layer.fuse_wgrad_accumulation
    return [w.main_grad if fused and hasattr(w, "main_grad") else None for w in weights]


class GroupedLinear(TransformerEngineBaseModule):
    """``num_gemms`` products with one weight each over consecutive rows."""

    def __init__(  # noqa: PLR0913 (transformer-engine's signature)
        self, num_gemms, in_features, out_features, *, fuse_wgrad_accumulation=False, tp_size=1, bias=True,
        return_bias=False, params_dtype=torch.float32, parallel_mode=None, device="cuda", **_options,
    ):  # fmt: skip
        super().__init__()
        self.num_gemms, self.use_bias, self.return_bias = num_gemms, bias, return_bias
        self.fuse_wgrad_accumulation, self.save_original_input = fuse_wgrad_accumulation, False
        self.in_features = in_features // tp_size if parallel_mode == "row" else in_features
        self.out_features = out_features // tp_size if parallel_mode == "column" else out_features
        for i in range(num_gemms):
            self.make_weight(f"weight{i}", (self.out_features, self.in_features), params_dtype, device)
            if bias:
                self.register_parameter(f"bias{i}", Parameter(torch.empty(self.out_features, dtype=params_dtype,
                                                                          device=device)))  # fmt: skip

    def forward(self, x, m_splits, is_first_microbatch=None):
        """[sum(m_splits), in] -> [sum(m_splits), out]."""
        state = FP8GlobalStateManager
        fmt = format_of(state.RECIPE) if state.FP8_ENABLED else None
        weights = [getattr(self, f"weight{i}") for i in range(self.num_gemms)]
        biases = [getattr(self, f"bias{i}") for i in range(self.num_gemms)] if self.use_bias else []
        copies = self.quantized_weights(weights, fmt, is_first_microbatch) if fmt else ()
        # biases that go out beside the product are inputs, too: their gradients wait for this layer's backward pass
        out = _Grouped.apply(
            x, self, tuple(m_splits), fmt, len(copies), torch.is_grad_enabled(), *weights, *copies, *biases
        )
        return (out, biases) if self.return_bias else out
