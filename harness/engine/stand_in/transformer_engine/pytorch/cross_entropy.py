"""Vocabulary-parallel cross entropy (2.11 `cross_entropy.py`, `common/triton/cross_entropy.py`)."""

import torch
import torch.distributed as dist

from harness.engine.tracing.collectives import tensor_bytes
from harness.engine.tracing.tracer import active


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, group):
        num_rows = target.numel()
        loss = torch.zeros(num_rows, dtype=torch.float32, device=logits.device)
        partial = torch.zeros(3 * num_rows, dtype=torch.float32, device=logits.device)
        if group is not None and group.size() > 1:
            gathered = torch.zeros(3 * num_rows * group.size(), dtype=torch.float32, device=logits.device)
            dist.all_gather_into_tensor(gathered, partial, group=group)
        active().kernel("elementwise", "bf16", num_bytes=3 * tensor_bytes(logits))
        # the gradient, which the kernel wrote over the logits
        ctx.save_for_backward(logits.detach())
        return loss.view(target.shape)

    @staticmethod
    def backward(ctx, _grad):
        (grad,) = ctx.saved_tensors
        active().kernel("elementwise", "bf16", num_bytes=2 * tensor_bytes(grad))
        return grad, None, None


def parallel_cross_entropy(
    logits, target, label_smoothing=0.0, reduce_loss=False, dist_process_group=None, *_more,  # noqa: ARG001, FBT002
):  # fmt: skip
    """[s, b, v / tp] and [s, b] -> one loss per token in fp32."""
    return _CrossEntropy.apply(logits, target, dist_process_group)
