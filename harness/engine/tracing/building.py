"""A trace case made into a model: the spec of a one-stage job with the case's layers, fake process groups, GPTModel."""

from contextlib import nullcontext
from math import lcm

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.testing._internal.distributed.fake_pg import FakeStore

from harness.engine.config import transformer_config
from harness.engine.model import gpt_model
from harness.engine.tracing.chunk import Batch, Chunk
from harness.engine.tracing.routing import PLACE
from harness.experiment.effective import Implementation
from harness.experiment.experiment import ExperimentSpec, OffloadSpec
from harness.experiment.model import ParallelismSpec
from harness.records.trace import TraceCase


def stage_spec(case: TraceCase, implementation: Implementation) -> ExperimentSpec:
    """The spec of a job whose only pipeline stage is the chunk: the same layers, widths and settings."""
    spec = case.spec
    num_layers = max(case.num_layers, 1)  # a chunk without layers is built with one and loses it
    model = {"num_layers": num_layers, "mtp_num_layers": spec.model.mtp_num_layers if case.mtp else None}
    if spec.model.moe:
        is_moe = int(case.layer_kind == "moe")
        model["moe"] = spec.model.moe.model_copy(update={"moe_layer_freq": (is_moe,) * num_layers})
    p = spec.parallelism
    parallelism = ParallelismSpec(
        tensor_model_parallel_size=p.tensor_model_parallel_size,
        context_parallel_size=p.context_parallel_size,
        expert_model_parallel_size=p.expert_model_parallel_size,
        expert_tensor_parallel_size=p.expert_tensor_parallel_size,
        sequence_parallel=p.sequence_parallel,
    )
    return spec.model_copy(
        update={
            "model": spec.model.model_copy(update=model),
            "parallelism": parallelism,
            "kernels": spec.kernels.model_copy(update={"transformer_impl": implementation}),
            "num_gpus": world_size(parallelism),
        }
    )


def world_size(p: ParallelismSpec) -> int:
    """The smallest job in which the dense and the expert groups of one stage both fit."""
    return lcm(
        p.tensor_model_parallel_size * p.context_parallel_size, p.expert_tensor_size * p.expert_model_parallel_size
    )


_Sizes = tuple[int, int, int, int]


class Groups:
    """Rank 0 of process groups that send nothing, with megatron's groups over them; kept while the sizes stay."""

    def __init__(self) -> None:
        self._sizes: _Sizes | None = None

    def join(self, p: ParallelismSpec) -> None:
        """Groups of the sizes of ``p``, without pipeline or data parallelism."""
        tp, cp, ep, etp = sizes = (
            p.tensor_model_parallel_size, p.context_parallel_size, p.expert_model_parallel_size, p.expert_tensor_size,
        )  # fmt: skip
        if sizes == self._sizes:
            return
        if self._sizes:
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()
        self._sizes = sizes
        dist.init_process_group("fake", rank=0, world_size=world_size(p), store=FakeStore())
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tp,
            context_parallel_size=cp,
            expert_model_parallel_size=ep,
            expert_tensor_parallel_size=etp,
            create_gloo_process_groups=False,
        )


def stage_config(spec: ExperimentSpec) -> TransformerConfig:
    """megatron-core's configuration of a stage spec; on meta there is nothing to initialise.

    Layers are offloaded all or none: megatron-core wants one of the job's to stay, which may lie in another trace.
    """
    offloads_layers = spec.offload.cpu_offloading_num_layers > 0
    config = transformer_config(spec.model_copy(update={"offload": OffloadSpec()}) if offloads_layers else spec)
    config.cpu_offloading = offloads_layers
    config.cpu_offloading_num_layers = spec.offload.cpu_offloading_num_layers
    config.perform_initialization = PLACE.is_real
    config.use_cpu_initialization = False  # the master weights would be made and cut on the host
    return config


def build(case: TraceCase, spec: ExperimentSpec, config: TransformerConfig) -> Chunk:
    """The chunk of ``case``; ``spec`` and ``config`` are its stage's."""
    # Parameters are made on the traced device, but the forward pass runs outside: host integers stay on the host.
    with nullcontext() if PLACE.is_real else PLACE.device:
        model = gpt_model(spec, config, None, pre_process=case.pre, post_process=case.post)
    if not case.num_layers:
        model.decoder.layers = torch.nn.ModuleList()
        model.decoder.num_layers_per_pipeline_rank = 0
    if not case.post:
        model.decoder.final_layernorm = None  # a stage in the middle has none
    if config.bf16:
        model = Float16Module(config, model)
    reduced = torch.float32 if spec.ddp.grad_reduce_in_fp32 else config.params_dtype
    return Chunk(model, _batch(spec, config), reduced, pre=case.pre, post=case.post)


def _batch(spec: ExperimentSpec, config) -> Batch:
    p, b = spec.parallelism, spec.batch
    length = b.seq_length // p.context_parallel_size
    rows = length // p.tensor_model_parallel_size if p.sequence_parallel else length
    return Batch(
        size=b.micro_batch_size,
        length=length,
        hidden_shape=(rows, b.micro_batch_size, spec.model.hidden_size),
        hidden_dtype=config.params_dtype,
        needs_mask=spec.kernels.attention_backend == "unfused" and spec.kernels.transformer_impl == "local",
    )
