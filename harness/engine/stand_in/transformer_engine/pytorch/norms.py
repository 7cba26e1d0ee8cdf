"""RMSNorm and LayerNorm: one kernel each way."""

import torch
from torch.nn import Parameter

from harness.engine.tracing.collectives import peak_key, tensor_bytes
from harness.engine.tracing.tracer import active


def norm_forward(x: torch.Tensor, *, normalization: str):
    """Output, mean (LayerNorm only) and reciprocal deviation, the last two one fp32 per row."""
    statistics = [torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device) for _ in range(2)]
    active().kernel("elementwise", peak_key(x.dtype), num_bytes=2 * tensor_bytes(x))
    return torch.empty_like(x), statistics[0] if normalization == "LayerNorm" else None, statistics[1]


def norm_backward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None):
    """Gradients of input, weight and bias."""
    active().kernel("elementwise", peak_key(x.dtype), num_bytes=3 * tensor_bytes(x))
    return torch.empty_like(x), torch.empty_like(weight), None if bias is None else torch.empty_like(bias)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, normalization):
        # Q and K are views of the QKV projection: saving a view would keep the whole projection alive
        x = x.contiguous()
        out, mean, deviation = norm_forward(x, normalization=normalization)
        # the input, from which the normalised values are rebuilt, and the row statistics (2.11 ops/basic/rmsnorm.py)
        ctx.save_for_backward(x, weight, bias, mean, deviation)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight, bias, _mean, _deviation = ctx.saved_tensors
        grad = grad.contiguous()
        return *norm_backward(x, weight, bias), None


class RMSNorm(torch.nn.Module):
    """Scale by the root mean square."""

    normalization = "RMSNorm"

    def __init__(
        self, normalized_shape=None, eps=1e-5, sequence_parallel=False, params_dtype=None,  # noqa: FBT002
        device="cuda", hidden_size=None, **_options,
    ):  # fmt: skip
        """``hidden_size`` is the older name of ``normalized_shape``; megatron-core until 0.18 gives that."""
        super().__init__()
        hidden_size = normalized_shape if hidden_size is None else hidden_size
        self.eps = eps
        names = ("weight", "bias") if self.normalization == "LayerNorm" else ("weight",)
        self.bias = None
        for name in names:
            parameter = Parameter(torch.empty(hidden_size, dtype=params_dtype, device=device))
            parameter.sequence_parallel = sequence_parallel
            setattr(self, name, parameter)

    def forward(self, x):
        """[..., h] -> [..., h]."""
        return _Norm.apply(x, self.weight, self.bias, self.normalization)


class LayerNorm(RMSNorm):
    """Shift by the mean, scale by the deviation."""

    normalization = "LayerNorm"
