"""`pretrain`: builds a small model of megatron-core, trains it with its schedules, and fires the callbacks."""

import sys
from dataclasses import fields
from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.bridge.training.callbacks import CallbackManager
from megatron.bridge.training.config import runtime_config_update
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig


def _known(kind, section):
    names = {field.name for field in fields(kind) if field.init}
    return {name: value for name, value in vars(section).items() if name in names}


def _setup(config):
    """Process groups, model, optimizer and data, as Bridge's `setup`."""
    cut, model = config.model, config.model
    dist.init_process_group("gloo")  # in place of NCCL
    parallel_state.initialize_model_parallel(
        cut.tensor_model_parallel_size, cut.pipeline_model_parallel_size, create_gloo_process_groups=False
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    core = TransformerConfig(**_known(TransformerConfig, model), pipeline_dtype=torch.float32)
    chunk = GPTModel(
        core, get_gpt_layer_local_spec(), model.vocab_size, model.seq_length,
        pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
    )  # fmt: skip
    chunks = [DistributedDataParallel(core, DistributedDataParallelConfig(use_distributed_optimizer=True), chunk)]
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=config.optimizer.lr, use_distributed_optimizer=True), chunks,
        use_gloo_process_groups=False,
    )  # fmt: skip
    core.finalize_model_grads_func, core.no_sync_func = finalize_model_grads, chunks[0].no_sync
    core.grad_scale_func = optimizer.scale_loss
    return chunks, optimizer


def pretrain(config, forward_step_func, callbacks=None):
    """Train, as Bridge's function of this name; `callbacks` is a list of `Callback`."""
    runtime_config_update(config)
    manager = CallbackManager(callbacks or [])
    state = SimpleNamespace(cfg=config, train_state=SimpleNamespace(step=0))
    chunks, optimizer = _setup(config)
    train, shape = config.train, (config.train.micro_batch_size, config.model.seq_length)
    num_microbatches = (
        train.global_batch_size // train.micro_batch_size // parallel_state.get_data_parallel_world_size()
    )
    batch = torch.arange(shape[0] * shape[1]).view(shape) % config.model.vocab_size
    fire = partial(manager.fire, state=state, model=chunks, optimizer=optimizer)
    for chunk in chunks:
        chunk.train()
    fire("on_train_start")
    while state.train_state.step < train.train_iters:
        fire("on_train_step_start")
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=partial(forward_step_func, state), data_iterator=iter([batch] * num_microbatches),
            model=chunks, num_microbatches=num_microbatches, seq_length=shape[1], micro_batch_size=shape[0],
            forward_only=False,
        )  # fmt: skip
        _, grad_norm, _ = optimizer.step()
        reduced = {"lm loss": sum(loss["lm loss"] for loss in losses) / len(losses)} if losses else {}
        skipped = state.train_state.step == getattr(train, "skips_step", None)
        fire("on_train_step_end", loss_dict=reduced, grad_norm=grad_norm, skipped_iter=skipped)
        state.train_state.step += 1
        if state.train_state.step == getattr(train, "exit_interval", None):
            sys.exit(0)
    fire("on_train_end")
    dist.barrier()
    dist.destroy_process_group()
