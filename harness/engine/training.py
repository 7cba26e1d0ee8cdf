"""Runs real training steps: mock batches, megatron's schedules, DDP, optimizer, CUDA graphs and other hooks."""

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from inspect import signature
from itertools import cycle

import torch
from megatron.core import num_microbatches_calculator, parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.full_cuda_graph import FullCudaGraphWrapper, StaticBufferLoader
from megatron.core.optimizer import ChainedOptimizer, DistributedOptimizer, MegatronOptimizer, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import cuda_graphs
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_attr_wrapped_model, get_batch_on_this_cp_rank

from harness.engine.config import optimizer_config
from harness.experiment.effective import captures_iteration
from harness.experiment.experiment import ExperimentSpec, TrainSpec
from harness.experiment.layout import num_virtual_stages


def group_sizes(spec: ExperimentSpec) -> dict[str, object]:
    """Return the sizes for `parallel_state.initialize_model_parallel`. Only checkpoints need groups of gloo beside."""
    p = spec.parallelism
    return {
        "tensor_model_parallel_size": p.tensor_model_parallel_size,
        "pipeline_model_parallel_size": p.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": num_virtual_stages(p) if num_virtual_stages(p) > 1 else None,
        "context_parallel_size": p.context_parallel_size,
        "expert_model_parallel_size": p.expert_model_parallel_size,
        "expert_tensor_parallel_size": p.expert_tensor_size,
        "create_gloo_process_groups": False,  # they fail on a node whose name does not resolve
    }


def set_gradient_hooks(spec: ExperimentSpec, config: TransformerConfig, chunks) -> None:
    """Set the functions that the schedule calls around the backward passes, as Megatron-LM's training loop does."""

    def per_chunk(functions: list[Callable]) -> Callable | list[Callable]:
        return functions[0] if len(functions) == 1 else functions

    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = per_chunk([chunk.no_sync for chunk in chunks])
    if spec.ddp.overlap_grad_reduce and spec.ddp.align_grad_reduce:
        config.grad_sync_func = per_chunk([chunk.start_grad_sync for chunk in chunks])
    if spec.ddp.overlap_param_gather and spec.ddp.align_param_gather:
        config.param_sync_func = per_chunk([chunk.start_param_sync for chunk in chunks])


class ParameterGather:
    """Parameters gathered during the forward pass (`overlap_param_gather` of megatron-core's DDP), from step 1 on.

    In step 0 every rank holds the initial weights, and with MXFP8 the gather would read zeros.
    """

    def __init__(self, spec: ExperimentSpec, config: TransformerConfig, chunks, optimizer: MegatronOptimizer):
        self._config, self._chunks, self._optimizer = config, chunks, optimizer
        self._overlaps = spec.ddp.gathers_in_forward
        self._has_hooks = self._overlaps  # DDP registers them
        self._param_sync_func = config.param_sync_func

    def before_step(self, index: int) -> None:
        """Disable the forward pre-hooks before step 0 and enable them before step 1."""
        if not self._overlaps or index > 1:
            return
        for chunk in self._chunks:
            if index == 0:
                chunk.disable_forward_pre_hook(param_sync=False)
            else:
                chunk.enable_forward_pre_hook()
        self._has_hooks = index == 1
        self._config.param_sync_func = self._param_sync_func if self._has_hooks else None

    def after_zero_grad(self) -> None:
        """Copy the master weights into the gradient buffer if the forward pass gathers them from there (MXFP8)."""
        if not self._has_hooks or not self._chunks[0].ddp_config.reuse_grad_buf_for_mxfp8_param_ag:
            return
        chained = isinstance(self._optimizer, ChainedOptimizer)
        for optimizer in self._optimizer.chained_optimizers if chained else (self._optimizer,):
            if isinstance(optimizer, DistributedOptimizer):
                optimizer._copy_main_params_to_param_buffer()


def collect_garbage(train: TrainSpec, index: int) -> None:
    """Collect garbage before step ``index`` at the same steps on all ranks, inside the step's time."""
    if not train.manual_gc:
        return
    if index == 0:
        gc.disable()
    if index == 0 or (train.manual_gc_interval and index % train.manual_gc_interval == 0):
        gc.collect()


MicroBatch = dict[str, torch.Tensor | None]

LARGEST_POOL = 64
"""Largest number of different micro-batches; a step with more repeats them in order."""

# megatron-core 0.19 has a required parameter: whether the groups' sizes vary from sample to sample.
_PLAIN_CP = {"is_hybrid_cp": False} if "is_hybrid_cp" in signature(get_batch_on_this_cp_rank).parameters else {}


def causal_mask(spec: ExperimentSpec, device: torch.device) -> Callable[[], torch.Tensor | None]:
    """Return a function that makes the mask of megatron-core's own attention once, [1, 1, seq, seq]; else None."""

    @cache
    def mask() -> torch.Tensor | None:
        if spec.kernels.attention_backend != "unfused" or spec.kernels.transformer_impl != "local":
            return None
        seq = spec.batch.seq_length
        return torch.ones(1, 1, seq, seq, dtype=torch.bool, device=device).triu_(1)

    return mask


def batches_of_chunks(
    spec: ExperimentSpec, device: torch.device, chunks: Iterable[torch.nn.Module]
) -> list[Iterator[MicroBatch]]:
    """Return an endless iterator per chunk over the micro-batches of one step, equal in all steps and chunks.

    They are on the device before the first step. Chunks between the pipeline's ends read only the attention mask.
    """
    reads = [_reads_tokens(chunk) for chunk in chunks]
    pool = mock_batches(spec, device) if any(reads) else []
    mask = causal_mask(spec, device)
    return [_with_mask(pool if reads_tokens else [{}], mask) for reads_tokens in reads]


def _reads_tokens(chunk: torch.nn.Module) -> bool:
    gpt = get_attr_wrapped_model(chunk, "pre_process", return_model_obj=True)
    return gpt.pre_process or gpt.post_process or gpt.mtp_process


def _with_mask(pool: list[MicroBatch], mask: Callable[[], torch.Tensor | None]) -> Iterator[MicroBatch]:
    for micro_batch in cycle(pool):
        yield {**micro_batch, "attention_mask": mask()}


def mock_batches(spec: ExperimentSpec, device: torch.device) -> list[MicroBatch]:
    """Make the seeded random tokens [mbs, seq / CP] of one step: equal on all ranks of a model copy."""
    generator = torch.Generator().manual_seed(spec.measure.seed + parallel_state.get_data_parallel_rank())
    seq = spec.batch.seq_length
    positions = torch.arange(seq, device=device)[None].expand(spec.batch.micro_batch_size, -1)
    pool = [_micro_batch(spec, generator, positions) for _ in range(min(spec.num_microbatches, LARGEST_POOL))]
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # megatron-core's full-iteration graphs read them on a stream of their own
    return [pool[index % len(pool)] for index in range(spec.num_microbatches)]


def _micro_batch(spec: ExperimentSpec, generator: torch.Generator, positions: torch.Tensor) -> MicroBatch:
    batch, seq = spec.batch.micro_batch_size, spec.batch.seq_length
    tokens = torch.randint(0, spec.model.vocab_size, (batch, seq + 1), generator=generator).to(positions.device)
    micro_batch: MicroBatch = {
        "tokens": tokens[:, :-1].contiguous(),
        "labels": tokens[:, 1:].contiguous(),
        "loss_mask": torch.ones(batch, seq, device=positions.device),
        "position_ids": positions,
    }
    if spec.parallelism.context_parallel_size > 1:
        return get_batch_on_this_cp_rank(micro_batch, cp_group=parallel_state.get_context_parallel_group(), **_PLAIN_CP)
    return micro_batch


@dataclass(frozen=True)
class StepResult:
    """The loss averaged over micro-batches (None except on the last pipeline stage) and the global gradient norm."""

    loss: float | None
    grad_norm: float | None


def _loss(loss_mask: torch.Tensor, output: torch.Tensor):
    loss = torch.sum(output.float().view(-1) * loss_mask.view(-1)) / loss_mask.sum()
    # a copy: the schedule divides the loss by the number of micro-batches in place
    return loss, {"lm loss": loss.detach().clone()}


def forward_step(batches, model, *, return_schedule_plan: bool = False):
    """megatron-core's forward_step_func: one micro-batch through one chunk, and the function that makes its loss."""
    batch = next(batches)
    run = model.build_schedule_plan if return_schedule_plan else model
    output = run(
        batch.get("tokens"),
        batch.get("position_ids"),
        batch["attention_mask"],
        labels=batch.get("labels"),
        loss_mask=batch.get("loss_mask"),
    )
    return output, partial(_loss, batch.get("loss_mask"))


def run_schedule(schedule: Callable, step: Callable, spec: ExperimentSpec, chunks: list, batches: list) -> list:
    """Run all micro-batches forward and backward; a single chunk is given to megatron-core without its list."""
    single = len(chunks) == 1
    return schedule(
        forward_step_func=step,
        data_iterator=batches[0] if single else batches,
        model=chunks[0] if single else chunks,
        num_microbatches=spec.num_microbatches,
        seq_length=spec.batch.seq_length,
        micro_batch_size=spec.batch.micro_batch_size,
        forward_only=False,
    )


class Trainer:
    """Model chunks, optimizer and schedule of one rank; :meth:`step` is one optimizer step."""

    def __init__(self, spec: ExperimentSpec, config: TransformerConfig, chunks, device: torch.device):
        self.spec, self.config, self.chunks = spec, config, chunks
        self.optimizer = get_megatron_optimizer(optimizer_config(spec), chunks, use_gloo_process_groups=False)
        config.grad_scale_func = self.optimizer.scale_loss
        set_gradient_hooks(spec, config, chunks)
        self._gather = ParameterGather(spec, config, chunks, self.optimizer)
        self.batches = batches_of_chunks(spec, device, chunks)
        self.forward_step, self.forward_backward = forward_step, get_forward_backward_func()
        self._moe = spec.model.moe is not None
        self._graphs = None
        if spec.cuda_graph.impl != "none":
            self._graphs = graphs_around(self)

    def forward_backward_once(self) -> list[dict[str, torch.Tensor]]:
        """Run all micro-batches forward and backward. Gradients stay in the DDP buffers."""
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        self._gather.after_zero_grad()
        return run_schedule(self.forward_backward, self.forward_step, self.spec, self.chunks, self.batches)

    def step(self, *, index: int, on_phase=lambda _phase: None) -> StepResult:
        """Run an optimizer step. ``on_phase`` gets each phase, so that a failure can name it."""
        collect_garbage(self.spec.train, index)
        self._gather.before_step(index)
        if self._graphs:
            self._graphs.before_step(index)
        on_phase("forward_backward")
        losses = self.forward_backward_once()
        on_phase("optimizer_step")
        _ok, grad_norm, _zeros = self.optimizer.step()
        if self._moe:
            from megatron.core.transformer.moe import moe_utils

            moe_utils.clear_aux_losses_tracker()
        loss = sum(float(entry["lm loss"]) for entry in losses) / len(losses) if losses else None
        return StepResult(loss, None if grad_norm is None else float(grad_norm))

    def delete_graphs(self) -> None:
        """Delete captured CUDA graphs: NCCL does not end while a graph holds its collectives."""
        if self._graphs:
            self._graphs.delete()


# megatron-core from 0.18 lets captures share one memory pool if the configuration says so.
_SHARES_POOL = "use_single_mempool" in signature(FullCudaGraphWrapper.__init__).parameters


def graphs_around(trainer) -> "FullIteration | LayerGraphs | TeGraphs":
    """Return the graphs of ``trainer.spec``. A full-iteration graph also replaces ``trainer.forward_backward``."""
    graph = trainer.spec.cuda_graph
    if captures_iteration(graph):
        trainer.forward_backward = FullIteration(trainer.forward_backward, trainer.config, graph.warmup_steps)
        return trainer.forward_backward
    return TeGraphs(trainer) if graph.impl == "transformer_engine" else LayerGraphs()


class FullIteration(FullCudaGraphWrapper):
    """Forward and backward of all micro-batches captured as one graph after the warm-up steps."""

    def __init__(self, forward_backward, config, warmup_steps: int):
        pool = {"use_single_mempool": config.cuda_graph_use_single_mempool} if _SHARES_POOL else {}
        super().__init__(forward_backward, cuda_graph_warmup_steps=warmup_steps, **pool)
        self.static_loader = OrderedLoader()

    def before_step(self, index: int) -> None:
        """Do nothing: the wrapper counts the steps itself."""

    def delete(self) -> None:
        """Delete the graph and the tensors that it returned."""
        for stage in self.cuda_graph:
            self.cuda_graph[stage] = self.result[stage] = None


class OrderedLoader(StaticBufferLoader):
    """Copies a batch on its own stream after the work that made the batch."""

    def __call__(self, inputs, stage, microbatch):
        """Wait for the current stream first. megatron-core 0.16 does not, because its batches come from host memory."""
        self.stream.wait_stream(torch.cuda.current_stream())
        return super().__call__(inputs, stage, microbatch)


class LayerGraphs:
    """megatron-core's own graphs, one per layer; its schedules capture them."""

    def before_step(self, index: int) -> None:
        """Do nothing: the schedule captures at the end of the first step."""

    def delete(self) -> None:
        """Delete every graph."""
        cuda_graphs.delete_cuda_graphs()


class TeGraphs:
    """Per-layer graphs by transformer-engine: captured once, between the warm-up steps and the measured ones."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.warmup_steps = trainer.spec.cuda_graph.warmup_steps
        spec, no_rank = trainer.spec, -1  # of whom nothing is logged
        # The helper asks megatron-core's global, which Megatron's launcher sets, for the number of micro-batches.
        num_microbatches_calculator.reconfigure_num_microbatches_calculator(
            no_rank, None, spec.batch.global_batch_size, spec.batch.micro_batch_size, spec.data_parallel_size
        )
        self.helper = cuda_graphs.TECudaGraphHelper(
            model=trainer.chunks,
            config=trainer.config,
            seq_length=trainer.spec.batch.seq_length,
            micro_batch_size=trainer.spec.batch.micro_batch_size,
            optimizers=[trainer.optimizer],
        )

    def before_step(self, index: int) -> None:
        """Capture before step ``warmup_steps``, with parameter-gather hooks off around the capture."""
        if index != self.warmup_steps:
            return
        gather = self.trainer.spec.ddp.gathers_in_forward
        if gather:
            for chunk in self.trainer.chunks:
                chunk.disable_forward_pre_hook(param_sync=False)
        self.helper.create_cudagraphs()
        if gather:
            for chunk in self.trainer.chunks:
                chunk.enable_forward_pre_hook()
            self.helper.cuda_graph_set_manual_hooks()

    def delete(self) -> None:
        """Delete every graph. A run may end before the capture, with nothing to delete."""
        if self.helper.graphs_created():
            self.helper.delete_cuda_graphs()
