"""Real training steps: megatron's schedules, DDP and optimizer."""

from dataclasses import dataclass
from functools import partial

import torch
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig

from harness.engine.batches import batches_of_chunks
from harness.engine.config import optimizer_config
from harness.engine.step_hooks import ParameterGather, collect_garbage, set_gradient_hooks
from harness.experiment.experiment import ExperimentSpec


@dataclass(frozen=True)
class StepResult:
    """Loss averaged over the micro-batches (None off the last pipeline stage) and the global gradient norm."""

    loss: float | None
    grad_norm: float | None


def _loss(loss_mask: torch.Tensor, output: torch.Tensor):
    loss = torch.sum(output.float().view(-1) * loss_mask.view(-1)) / loss_mask.sum()
    # a copy: the schedule divides the loss by the number of micro-batches in place
    return loss, {"lm loss": loss.detach().clone()}


def forward_step(batches, model):
    """megatron-core's forward_step_func: one micro-batch through one chunk, and the function that makes its loss."""
    batch = next(batches)
    output = model(
        batch.get("tokens"),
        batch.get("position_ids"),
        batch["attention_mask"],
        labels=batch.get("labels"),
        loss_mask=batch.get("loss_mask"),
    )
    return output, partial(_loss, batch.get("loss_mask"))


class Trainer:
    """Model chunks, optimizer and schedule of one rank; :meth:`step` is one optimizer step."""

    def __init__(self, spec: ExperimentSpec, config: TransformerConfig, chunks, device: torch.device):
        self.spec, self.config, self.chunks = spec, config, chunks
        self.optimizer = get_megatron_optimizer(optimizer_config(spec), chunks, use_gloo_process_groups=False)
        config.grad_scale_func = self.optimizer.scale_loss
        set_gradient_hooks(spec, config, chunks)
        single = len(chunks) == 1
        self.model = chunks[0] if single else chunks
        self._gather = ParameterGather(spec, config, chunks, self.optimizer)
        batches = batches_of_chunks(spec, device, chunks)
        self.batches = batches[0] if single else batches
        self.forward_step, self.forward_backward = forward_step, get_forward_backward_func()
        self._moe = spec.model.moe is not None
        self._graphs = None
        if spec.cuda_graph.impl != "none":
            from harness.engine.cuda_graphs import graphs_around

            self._graphs = graphs_around(self)

    def forward_backward_once(self) -> list[dict[str, torch.Tensor]]:
        """All micro-batches forward and backward; gradients are left in the DDP buffers."""
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        self._gather.after_zero_grad()
        return self.forward_backward(
            forward_step_func=self.forward_step,
            data_iterator=self.batches,
            model=self.model,
            num_microbatches=self.spec.num_microbatches,
            seq_length=self.spec.batch.seq_length,
            micro_batch_size=self.spec.batch.micro_batch_size,
            forward_only=False,
        )

    def step(self, *, index: int, on_phase=lambda _phase: None) -> StepResult:
        """One optimizer step. ``on_phase`` is told where the step is, so that a failure can be placed."""
        collect_garbage(self.spec.train, index)
        self._gather.before_step(index)
        if self._graphs:
            self._graphs.before_step(index)
        on_phase("forward_backward")
        losses = self.forward_backward_once()
        on_phase("optimizer_step")
        _ok, grad_norm, _zeros = self.optimizer.step()
        if self._moe:
            _forget_aux_losses()
        loss = sum(float(entry["lm loss"]) for entry in losses) / len(losses) if losses else None
        return StepResult(loss, None if grad_norm is None else float(grad_norm))

    def delete_graphs(self) -> None:
        """Delete captured CUDA graphs: NCCL does not end while a graph holds its collectives."""
        if self._graphs:
            self._graphs.delete()


def _forget_aux_losses() -> None:
    from megatron.core.transformer.moe import moe_utils

    moe_utils.clear_aux_losses_tracker()
