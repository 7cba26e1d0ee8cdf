"""The kernels that torch would pick on the target device, where a tensor without data would get others."""

import torch
from torch.nn import functional as F  # noqa: N812 (torch's own spelling)

from harness.engine.tracing.collectives import peak_key, tensor_bytes
from harness.engine.tracing.routing import PLACE
from harness.engine.tracing.tracer import active

aten = torch.ops.aten


class FusedRmsNorm(torch.autograd.Function):
    """CUDA's `_fused_rms_norm`: one kernel that saves its input, its weight and one reciprocal root per row in fp32."""

    @staticmethod
    def forward(ctx, x, weight):
        """[..., h] -> [..., h]."""
        out = torch.empty_like(x)
        ctx.save_for_backward(x, weight, torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device))
        active().kernel("elementwise", peak_key(x.dtype), num_bytes=2 * tensor_bytes(x))
        return out

    @staticmethod
    def backward(ctx, _grad):
        """Gradients of input and weight."""
        x, weight, _ = ctx.saved_tensors
        active().kernel("elementwise", peak_key(x.dtype), num_bytes=3 * tensor_bytes(x))
        return torch.empty_like(x), torch.empty_like(weight)


class TritonKernel:
    """A Triton kernel that reads and writes its tensors once; the functions around it allocate as they do on a GPU."""

    def __getitem__(self, _grid):
        """How Triton is given the grid of a launch."""
        return self._launch

    def _launch(self, *arguments, **_constants) -> None:
        tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
        active().kernel("elementwise", peak_key(tensors[0].dtype), num_bytes=sum(map(tensor_bytes, tensors)))


def install_latent_rope() -> None:
    """Launch the fused rotary embedding of multi-latent attention on tensors without data."""
    from megatron.core.fusions import fused_mla_yarn_rope_apply

    for name in [name for name in vars(fused_mla_yarn_rope_apply) if name.endswith("_kernel")]:
        setattr(fused_mla_yarn_rope_apply, name, TritonKernel())


def install() -> None:
    """Route dropout, RMSNorm and attention; real tensors and other devices keep torch's own choice."""
    plain_dropout, plain_rms, plain_sdpa = F.dropout, F.rms_norm, F.scaled_dot_product_attention

    def dropout(x, p=0.5, training=True, inplace=False):  # noqa: FBT002 (torch's signature)
        # CUDA keeps a mask of one byte per element, other devices the scaled noise in the input's type
        if PLACE.is_real or not PLACE.stands_for_cuda or not training or p == 0:
            return plain_dropout(x, p, training, inplace)
        return torch.native_dropout(x, p, True)[0]

    def rms_norm(x, normalized_shape, weight=None, eps=None):
        if PLACE.is_real or not PLACE.stands_for_cuda:
            return plain_rms(x, normalized_shape, weight, eps)
        return FusedRmsNorm.apply(x, weight)

    def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, **more):  # noqa: FBT002
        # meta tensors would get the unfused composite, whatever the device they stand for
        kernel = None if PLACE.is_real or attn_mask is not None else _attention_kernel(query, value, dropout_p)
        if kernel is None:
            return plain_sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **more)
        return kernel(query, key, value, dropout_p, is_causal, scale)

    F.dropout, F.rms_norm, F.scaled_dot_product_attention = dropout, rms_norm, attention


def _attention_kernel(query, value, dropout_p):
    """What torch's `_fused_sdp_choice` takes on the target; None for the unfused composite."""
    same_width = query.shape[-1] == value.shape[-1]
    if PLACE.stands_for_cuda:
        return _cuda_flash if same_width else _cuda_efficient
    return _cpu_flash if same_width and not dropout_p else None


def _cpu_flash(query, key, value, dropout_p, is_causal, scale):
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p, is_causal, scale=scale)[0]


def _cuda_flash(query, key, value, dropout_p, is_causal, scale):
    return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]


def _cuda_efficient(query, key, value, dropout_p, is_causal, scale):
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, None, True, dropout_p, is_causal, scale=scale
    )[0]
