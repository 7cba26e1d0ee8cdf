"""CUDA graph capture around the training step, as megatron's own training loop does it."""

from inspect import signature

import torch
from megatron.core.full_cuda_graph import FullCudaGraphWrapper, StaticBufferLoader
from megatron.core.transformer import cuda_graphs

from harness.spec.graphs import captures_iteration

# From 0.18: captures share one pool of memory where the configuration asks for it.
_SHARES_POOL = "use_single_mempool" in signature(FullCudaGraphWrapper.__init__).parameters


def graphs_around(trainer) -> "FullIteration | LayerGraphs | TeGraphs":
    """The graphs that ``trainer.spec`` asks for; ``trainer.forward_backward`` becomes the captured one where it is one."""
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
        """Nothing: the wrapper counts the steps itself."""

    def delete(self) -> None:
        """Let go of the graph and of what it returned."""
        for stage in self.cuda_graph:
            self.cuda_graph[stage] = self.result[stage] = None


class OrderedLoader(StaticBufferLoader):
    """Copies a batch on a stream of its own, after the work that made it."""

    def __call__(self, inputs, stage, microbatch):
        """megatron-core 0.16 does not wait: it expects batches in host memory, and ours may still be made on the device."""
        self.stream.wait_stream(torch.cuda.current_stream())
        return super().__call__(inputs, stage, microbatch)


class LayerGraphs:
    """megatron-core's own graphs, one per layer, which its schedules capture by themselves."""

    def before_step(self, index: int) -> None:
        """Nothing: the schedule captures at the end of the first step."""

    def delete(self) -> None:
        """Let go of every graph."""
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
        gather = self.trainer.spec.ddp.overlap_param_gather
        if gather:
            for chunk in self.trainer.chunks:
                chunk.disable_forward_pre_hook(param_sync=False)
        self.helper.create_cudagraphs()
        if gather:
            for chunk in self.trainer.chunks:
                chunk.enable_forward_pre_hook()
            self.helper.cuda_graph_set_manual_hooks()

    def delete(self) -> None:
        """Let go of every graph; a run may end before they are captured."""
        if self.helper.graphs_created():
            self.helper.delete_cuda_graphs()
