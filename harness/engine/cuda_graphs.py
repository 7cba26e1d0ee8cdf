"""CUDA graph capture around the training step, as megatron's own training loop does it."""

from megatron.core.full_cuda_graph import FullCudaGraphWrapper


class FullIteration(FullCudaGraphWrapper):
    """Forward and backward of all micro-batches captured as one graph after the warm-up steps."""

    def __init__(self, forward_backward, warmup_steps: int):
        super().__init__(forward_backward, cuda_graph_warmup_steps=warmup_steps)


class TeGraphs:
    """Per-layer graphs by transformer-engine: captured once, between the warm-up steps and the measured ones."""

    def __init__(self, trainer):
        from megatron.core.transformer.cuda_graphs import TECudaGraphHelper

        self.trainer = trainer
        self.warmup_steps = trainer.spec.cuda_graph.warmup_steps
        self.helper = TECudaGraphHelper(
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
