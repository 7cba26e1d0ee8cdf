"""CUDA graph capture around the training step, as megatron's own training loop does it."""

from inspect import signature

import torch
from megatron.core.full_cuda_graph import FullCudaGraphWrapper, StaticBufferLoader
from megatron.core.transformer import cuda_graphs

from harness.experiment.effective import captures_iteration

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
