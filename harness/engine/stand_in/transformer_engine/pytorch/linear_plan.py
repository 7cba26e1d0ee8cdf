"""The two passes that Linear and LayerNormLinear share (2.11 `module/linear.py`, `module/layernorm_linear.py`)."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from transformer_engine.pytorch.communication import (
    gather,
    gather_columns,
    gather_rows,
    num_ranks,
    quantize_and_gather,
    scatter_sum,
)
from transformer_engine.pytorch.formats import QuantFormat, Quantized, quantize
from transformer_engine.pytorch.gemm import gemm
from transformer_engine.pytorch.module.base import weight_grad

Operand = torch.Tensor | Quantized


def release(*tensors: torch.Tensor | None) -> None:
    """Free the data of internal tensors before autograd lets go of them (2.11 `clear_tensor_data`)."""
    for tensor in tensors:
        if tensor is not None:
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)


@dataclass(frozen=True)
class Plan:
    """How one call runs. ``group`` is None without tensor parallelism; ``fmt`` None computes in the input's type."""

    parallel_mode: str | None
    sequence_parallel: bool
    group: object
    fmt: QuantFormat | None
    saves_original_input: bool
    records_grad: bool

    @property
    def gathers_input(self) -> bool:
        """Column-parallel: the input is cut along the sequence, its gradient summed into such cuts."""
        return self.parallel_mode == "column" and self.sequence_parallel

    @property
    def gathers_grad(self) -> bool:
        """Row-parallel: the output is summed into cuts along the sequence, its gradient gathered from them."""
        return self.parallel_mode == "row" and self.sequence_parallel

    def quantized_input(self, x: torch.Tensor) -> Quantized:
        """The input for this GEMM, with what the weight gradient will read unless the original is kept for that."""
        needs_columns = self.records_grad and not self.saves_original_input
        columns = needs_columns and not (self.gathers_input and self.fmt.per_tensor)
        return quantize(x, self.fmt, rows=True, columns=columns)

    def kept_of(self, operand: Operand) -> Operand:
        """What the weight gradient needs of a quantised input: row data only where it must be gathered as such."""
        if isinstance(operand, torch.Tensor):
            return operand
        return operand.only_rows() if self.gathers_input and self.fmt.per_tensor else operand.only_columns()

    def kept_of_norm(self, operand: Operand) -> Operand:
        """Likewise of a norm's output; 2.11 `layernorm_linear.py` drops row data by format, and knows none of NVFP4."""
        is_nvfp4 = isinstance(operand, Quantized) and operand.format.name == "nvfp4"
        return operand if is_nvfp4 and self.gathers_input else self.kept_of(operand)


def product(plan: Plan, operand: Operand, weight: torch.Tensor) -> torch.Tensor:
    """Input gathered, multiplied, output summed over the ranks; the gathered input is gone afterwards."""
    num_out, num_in = weight.shape
    if plan.gathers_input:
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
    """Of input, weight and bias; ``buffers`` live as long as 2.11's local variables: until the layer's backward returns."""

    input: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    buffers: tuple = ()


def gradients(
    plan: Plan, grad: torch.Tensor, kept: Operand, weight: torch.Tensor, main_grad, *, bias: bool
) -> Gradients:
    """Both backward GEMMs with their communication; ``kept`` is the input as saved, the layer's own unless original."""
    num_out, num_in = weight.shape
    grad = grad.reshape(-1, num_out).contiguous()
    if plan.fmt:
        total_grad = quantize_and_gather(grad, plan.fmt, plan.group if plan.gathers_grad else None)
    else:
        total_grad = gather(grad, plan.group) if plan.gathers_grad else grad
    grad_bias = torch.empty(num_out, dtype=weight.dtype, device=grad.device) if bias else None
    total_input = _input_for_weight_grad(plan, kept)
    num_rows = total_grad.shape[0]
    grad_total_input = gemm((num_rows, num_out, num_in), weight, plan.fmt)
    grad_input = _reduced(plan, grad_total_input)
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
    """The saved input, gathered; quantised first where the original was kept."""
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
