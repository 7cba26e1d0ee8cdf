"""Adds LoRA adapters to linear layers of a model, and freezes all other weights.

An adapter has the communication of Megatron-Bridge's (`peft/utils.py` ParallelLinearAdapter): the first matrix is cut
like its layer's input, or else over the rank of the adapter, the second over its layer's output.
"""

import copy
from functools import partial

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    gather_from_sequence_parallel_region,
    scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.transformer_block import TransformerBlock

from harness.experiment.experiment import PeftSpec


def attach(model: torch.nn.Module, peft: PeftSpec) -> None:
    """Freeze the weights of ``model`` and wrap its target modules. Call it before weights move or get buffers."""
    for parameter in model.parameters():
        parameter.requires_grad = False
    for path, parent in [*model.named_modules()]:
        for name in peft.target_modules:
            linear = getattr(parent, name, None)
            if linear is not None:
                setattr(parent, name, AdaptedLinear(linear, peft, is_expert=".experts" in path))
    for block in model.modules():
        if isinstance(block, TransformerBlock):
            block.register_forward_pre_hook(_let_input_require_grad, with_kwargs=True)


def _let_input_require_grad(block: TransformerBlock, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Let the input of checkpointed layers require a gradient: behind a frozen embedding none would run backward."""
    hidden = kwargs.get("hidden_states")
    if block.config.recompute_method and hidden is not None and torch.is_grad_enabled() and not hidden.requires_grad:
        kwargs = {**kwargs, "hidden_states": hidden.detach().requires_grad_()}
    return args, kwargs


class AdaptedLinear(torch.nn.Module):
    """A linear layer of megatron-core or transformer-engine and the adapter whose output is added to its own."""

    def __init__(self, linear: torch.nn.Module, peft: PeftSpec, *, is_expert: bool) -> None:
        super().__init__()
        if hasattr(linear, "normalization"):  # the adapter reads the output of the layer's own norm
            linear.return_layernorm_output = True
            config = linear.config
            linear.return_layernorm_output_gathered = config.sequence_parallel and not config.tp_comm_overlap
        self.linear, self.adapter = linear, Adapter(linear, peft, is_expert=is_expert)

    def forward(self, x: torch.Tensor, *args, **kwargs):
        """Take and return what the layer does: its input, then its output and its bias."""
        out, bias = self.linear(x, *args, **kwargs)
        if isinstance(out, tuple):
            out, x = out
        return out + self.adapter(x.contiguous()).reshape(out.shape), bias


class Adapter(torch.nn.Module):
    """``x A^T B^T alpha / dim`` for a layer whose weight is cut over the tensor-parallel ranks."""

    def __init__(self, linear: torch.nn.Module, peft: PeftSpec, *, is_expert: bool) -> None:
        super().__init__()
        is_grouped = hasattr(linear, "weight0")
        num_out, num_in = (linear.weight0 if is_grouped else linear.weight).shape
        tp, etp = parallel_state.get_tensor_model_parallel_group, parallel_state.get_expert_tensor_parallel_group
        ranks = (etp if is_expert else tp)().size()
        cuts_input = "RowParallel" in type(linear).__name__  # as all such classes of megatron-core are called
        sends = _cuts_sequence(linear) and not is_expert
        self.gathers, self.scatters = sends and not cuts_input, sends and cuts_input
        self.scale = peft.alpha / peft.dim
        config = copy.copy(linear.config)
        config.sequence_parallel = False  # the layers of an adapter leave that to forward()
        options = {"config": config, "bias": False, "is_expert": is_expert}
        begin, end = torch.nn.init.xavier_normal_, torch.nn.init.zeros_
        if cuts_input:
            self.linear_in = RowParallelLinear(
                num_in * ranks, peft.dim, input_is_parallel=True, skip_bias_add=True, init_method=begin, **options
            )
        else:
            num_out *= ranks
            reduces = linear.config.sequence_parallel  # the gather of the sequence sums its gradient
            self.linear_in = ColumnParallelLinear(
                num_in, peft.dim, gather_output=True, disable_grad_reduce=reduces, init_method=begin, **options
            )
        self.linear_out = ColumnParallelLinear(peft.dim, num_out, gather_output=cuts_input, init_method=end, **options)
        if is_expert and is_grouped:
            self._share_over_experts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[s, b, in] -> [s', b, out], cut like the layer's own input and output."""
        if self.gathers:
            x = gather_from_sequence_parallel_region(x)
        x, _ = self.linear_in(x)
        x, _ = self.linear_out(x)
        if self.scatters:
            x = scatter_to_sequence_parallel_region(x)
        return x * self.scale

    def _share_over_experts(self) -> None:
        """Sum gradients over the expert-parallel ranks: grouped experts have one adapter for all."""
        group = parallel_state.get_expert_model_parallel_group()
        if group.size() > 1:
            for parameter in self.parameters():
                parameter.register_hook(partial(_summed, group=group))


def _cuts_sequence(linear: torch.nn.Module) -> bool:
    """Return whether an adapter gathers its input along the sequence, or scatters its output."""
    is_silent = getattr(linear, "parallel_mode", "") is None or getattr(linear, "explicit_expert_comm", False)
    is_gathered = getattr(linear, "return_layernorm_output_gathered", False)
    return linear.config.sequence_parallel and not is_silent and not is_gathered


def _summed(grad: torch.Tensor, group) -> torch.Tensor:
    torch.distributed.all_reduce(grad, group=group)
    return grad
