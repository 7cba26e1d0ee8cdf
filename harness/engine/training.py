"""Real training steps: seeded mock data, megatron's schedules, DDP and optimizer."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from inspect import signature

import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_batch_on_this_cp_rank

from harness.engine.config import optimizer_config
from harness.spec.experiment import ExperimentSpec, TrainSpec

# megatron-core 0.19 asks, without a default, whether the sizes of the groups vary from sample to sample.
_PLAIN_CP = {"is_hybrid_cp": False} if "is_hybrid_cp" in signature(get_batch_on_this_cp_rank).parameters else {}


@dataclass(frozen=True)
class StepResult:
    """Loss averaged over the micro-batches (None off the last pipeline stage) and the global gradient norm."""

    loss: float | None
    grad_norm: float | None


def causal_mask(spec: ExperimentSpec, device: torch.device) -> Callable[[], torch.Tensor | None]:
    """What megatron-core's own attention leaves out, [1, 1, seq, seq], made when first asked for; None for the others."""

    @cache
    def mask() -> torch.Tensor | None:
        if spec.kernels.attention_backend != "unfused" or spec.kernels.transformer_impl != "local":
            return None
        seq = spec.batch.seq_length
        return torch.ones(1, 1, seq, seq, dtype=torch.bool, device=device).triu_(1)

    return mask


def mock_batches(
    spec: ExperimentSpec, device: torch.device, mask: Callable[[], torch.Tensor | None]
) -> Iterator[dict[str, torch.Tensor | None]]:
    """Endless seeded random tokens [mbs, seq] beside one and the same ``mask``.

    Equal on all ranks of one model copy, different per data-parallel rank.
    """
    batch, seq = spec.batch.micro_batch_size, spec.batch.seq_length
    generator = torch.Generator().manual_seed(spec.measure.seed + parallel_state.get_data_parallel_rank())
    positions = torch.arange(seq, device=device)[None].expand(batch, -1)
    while True:
        tokens = torch.randint(0, spec.model.vocab_size, (batch, seq + 1), generator=generator).to(device)
        micro_batch = {
            "tokens": tokens[:, :-1].contiguous(),
            "labels": tokens[:, 1:].contiguous(),
            "loss_mask": torch.ones(batch, seq, device=device),
            "position_ids": positions,
        }
        if spec.parallelism.context_parallel_size > 1:
            micro_batch = get_batch_on_this_cp_rank(
                micro_batch, cp_group=parallel_state.get_context_parallel_group(), **_PLAIN_CP
            )
        yield {**micro_batch, "attention_mask": mask()}


def _loss(loss_mask: torch.Tensor, output: torch.Tensor):
    loss = torch.sum(output.float().view(-1) * loss_mask.view(-1)) / loss_mask.sum()
    # a copy: the schedule divides the loss by the number of micro-batches in place
    return loss, {"lm loss": loss.detach().clone()}


def forward_step(batches, model):
    """megatron-core's forward_step_func: one micro-batch through one chunk, and the function that makes its loss."""
    batch = next(batches)
    output = model(
        batch["tokens"],
        batch["position_ids"],
        batch["attention_mask"],
        labels=batch["labels"],
        loss_mask=batch["loss_mask"],
    )
    return output, partial(_loss, batch["loss_mask"])


def set_gradient_hooks(spec: ExperimentSpec, config: TransformerConfig, chunks) -> None:
    """What the schedule calls around the backward passes, as Megatron-LM's training loop sets it.

    With `grad_sync_func` and `param_sync_func` the interleaved schedule starts the collectives of a chunk at the same
    moment on all pipeline stages.
    """

    def per_chunk(functions: list[Callable]) -> Callable | list[Callable]:
        return functions[0] if len(functions) == 1 else functions

    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = per_chunk([chunk.no_sync for chunk in chunks])
    if spec.ddp.overlap_grad_reduce and spec.ddp.align_grad_reduce:
        config.grad_sync_func = per_chunk([chunk.start_grad_sync for chunk in chunks])
    if spec.ddp.overlap_param_gather and spec.ddp.align_param_gather:
        config.param_sync_func = per_chunk([chunk.start_param_sync for chunk in chunks])


def collect_garbage(train: TrainSpec, index: int) -> None:
    """Before step ``index``: all ranks collect at the same steps, and Python's own collector is off.

    The collection is inside the step's time, as it is in an iteration of Megatron-LM or Megatron-Bridge.
    """
    if not train.manual_gc:
        return
    if index == 0:
        gc.disable()
    if index == 0 or (train.manual_gc_interval and index % train.manual_gc_interval == 0):
        gc.collect()


class Trainer:
    """Model chunks, optimizer and schedule of one rank; :meth:`step` is one optimizer step."""

    def __init__(self, spec: ExperimentSpec, config: TransformerConfig, chunks, device: torch.device):
        self.spec, self.config, self.chunks = spec, config, chunks
        self.optimizer = get_megatron_optimizer(optimizer_config(spec), chunks, use_gloo_process_groups=False)
        config.grad_scale_func = self.optimizer.scale_loss
        set_gradient_hooks(spec, config, chunks)
        single = len(chunks) == 1
        self.model = chunks[0] if single else chunks
        mask = causal_mask(spec, device)
        batches = [mock_batches(spec, device, mask) for _ in chunks]
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
        """Let go of captured CUDA graphs: NCCL does not end while one holds its collectives."""
        if self._graphs:
            self._graphs.delete()


def _forget_aux_losses() -> None:
    from megatron.core.transformer.moe import moe_utils

    moe_utils.clear_aux_losses_tracker()
