"""What Megatron-LM's training loop does around the passes of a step: collectives, master weights, garbage."""

import gc
from collections.abc import Callable

from megatron.core.distributed import finalize_model_grads
from megatron.core.optimizer import ChainedOptimizer, DistributedOptimizer, MegatronOptimizer
from megatron.core.transformer.transformer_config import TransformerConfig

from harness.experiment.experiment import ExperimentSpec, TrainSpec


def set_gradient_hooks(spec: ExperimentSpec, config: TransformerConfig, chunks) -> None:
    """Set the functions that the schedule calls around the backward passes, as Megatron-LM's training loop does.

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


class ParameterGather:
    """Parameters gathered during the forward pass (`overlap_param_gather` of megatron-core's DDP), from step 1 on.

    The first step has nothing to gather: every rank holds the initial weights, and with MXFP8 the gather would read
    the gradient buffer, which is zero.
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
    """Collect garbage before step ``index`` at the same steps on all ranks, with Python's own collector off.

    The collection is inside the step's time, as it is in an iteration of Megatron-LM or Megatron-Bridge.
    """
    if not train.manual_gc:
        return
    if index == 0:
        gc.disable()
    if index == 0 or (train.manual_gc_interval and index % train.manual_gc_interval == 0):
        gc.collect()
