"""What a rule sees: the request, the software and environment it would run with, and what follows from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from harness.experiment.effective import EffectiveRecompute, Implementation, effective_recompute
from harness.experiment.experiment import CudaGraphSpec, DdpSpec, ExperimentSpec, KernelSpec, OffloadSpec, OptimizerSpec
from harness.experiment.gpu import GPUS, GpuType
from harness.experiment.graphs import captured_checkpoints, captures_iteration, is_local
from harness.experiment.layout import LayoutError, chunks, layout_problem, num_virtual_stages
from harness.experiment.model import BatchSpec, ModelSpec, MoeModel, ParallelismSpec
from harness.experiment.recompute import FullRecompute, SelectiveRecompute
from harness.experiment.software import ASSUMED_MEGATRON_CORE, Software, Version, parse_version


@dataclass(frozen=True)
class Situation:
    """One request under judgement. ``env`` is what ranks will see; None: only the request's own variables are known."""

    spec: ExperimentSpec
    software: Software
    implementation: Implementation
    rank_env: Mapping[str, str] | None = field(default=None)

    # The parts of the request, under short names: rule rows are tables.
    @property
    def model(self) -> ModelSpec:
        """The model."""
        return self.spec.model

    @property
    def moe(self) -> MoeModel | None:
        """Its mixture-of-experts part."""
        return self.spec.model.moe

    @property
    def par(self) -> ParallelismSpec:
        """Parallel sizes."""
        return self.spec.parallelism

    @property
    def batch(self) -> BatchSpec:
        """Batch sizes."""
        return self.spec.batch

    @property
    def kernels(self) -> KernelSpec:
        """Chosen implementations."""
        return self.spec.kernels

    @property
    def dispatcher(self) -> str | None:
        """Token dispatcher of the MoE layers."""
        return self.kernels.moe_token_dispatcher_type if self.moe else None

    @property
    def overlaps_experts(self) -> bool:
        """Whether MoE communication is overlapped with another micro-batch; a dense model has none."""
        return self.moe is not None and self.kernels.overlap_moe_expert_parallel_comm

    @property
    def graph(self) -> CudaGraphSpec:
        """CUDA graphs."""
        return self.spec.cuda_graph

    @property
    def offload(self) -> OffloadSpec:
        """Activations in host memory."""
        return self.spec.offload

    @property
    def ddp(self) -> DdpSpec:
        """Gradient buckets."""
        return self.spec.ddp

    @property
    def optimizer(self) -> OptimizerSpec:
        """Optimizer state."""
        return self.spec.optimizer

    @cached_property
    def tp(self) -> int:
        """Tensor-parallel size."""
        return self.par.tensor_model_parallel_size

    @cached_property
    def pp(self) -> int:
        """Pipeline-parallel size."""
        return self.par.pipeline_model_parallel_size

    @cached_property
    def cp(self) -> int:
        """Context-parallel size."""
        return self.par.context_parallel_size

    @cached_property
    def ep(self) -> int:
        """Expert-parallel size."""
        return self.par.expert_model_parallel_size

    @cached_property
    def etp(self) -> int:
        """Tensor-parallel size of the experts."""
        return self.par.expert_tensor_size

    @cached_property
    def vp(self) -> int:
        """Model chunks per pipeline rank."""
        return num_virtual_stages(self.par)

    @cached_property
    def num_microbatches(self) -> int | None:
        """None where GPUs or samples do not divide."""
        samples = self.batch.micro_batch_size * self.spec.data_parallel_size
        if not samples or self.spec.num_gpus % self.par.model_parallel_size or self.batch.global_batch_size % samples:
            return None
        return self.batch.global_batch_size // samples

    # What the machine and its software are.
    @cached_property
    def gpu(self) -> GpuType:
        """The assumed or detected GPU type, else the one asked for."""
        return GPUS.get(self.software.gpu or "", self.spec.gpu_type)

    @cached_property
    def mcore_name(self) -> str:
        """The megatron-core version whose rules hold, as text."""
        return self.software.megatron_core or ASSUMED_MEGATRON_CORE

    @cached_property
    def mcore(self) -> Version:
        """The same, comparable."""
        return parse_version(self.mcore_name)

    def mcore_before(self, version: str) -> bool:
        """Whether megatron-core is older than ``version``."""
        return self.mcore < parse_version(version)

    @cached_property
    def te_is_missing(self) -> bool:
        """Known to be missing: where megatron-core is unknown too, nothing was looked for."""
        return self.software.transformer_engine is None and self.software.megatron_core is not None

    def te_before(self, version: str) -> bool:
        """Whether transformer-engine is known and older than ``version``."""
        te = self.software.transformer_engine
        return te is not None and parse_version(te) < parse_version(version)

    @cached_property
    def uses_te(self) -> bool:
        """Whether layers are transformer-engine's."""
        return self.implementation == "transformer_engine"

    @cached_property
    def env(self) -> Mapping[str, str]:
        """Variables that are known, those of the request included."""
        return {**self.spec.env, **(self.rank_env or {})}

    # Recompute.
    @cached_property
    def modules(self) -> tuple[str, ...]:
        """Modules of selective recompute, else none."""
        policy = self.spec.recompute
        return policy.modules if isinstance(policy, SelectiveRecompute) else ()

    @cached_property
    def full(self) -> FullRecompute | None:
        """The policy, where it is full recompute."""
        return self.spec.recompute if isinstance(self.spec.recompute, FullRecompute) else None

    @cached_property
    def layout_error(self) -> LayoutError | None:
        """Why the model cannot be cut over pipeline stages, or None."""
        return layout_problem(self.model, self.par)

    @cached_property
    def chunk_sizes(self) -> tuple[int, ...]:
        """Decoder layers of every chunk that has any; empty where the model cannot be cut."""
        if self.layout_error:
            return ()
        stages = chunks(self.model, self.par)
        return tuple(len(chunk.layers) for stage in stages for chunk in stage if chunk.layers)

    @cached_property
    def effective(self) -> EffectiveRecompute | None:
        """None where full recompute meets a model that cannot be cut."""
        if self.full and self.layout_error:
            return None
        return effective_recompute(self.spec, self.implementation, self.software)

    # Precision.
    @cached_property
    def fp8(self) -> bool:
        """Whether GEMMs run in FP8."""
        return self.spec.precision.peak == "fp8"

    @cached_property
    def fp4(self) -> bool:
        """Whether GEMMs run in FP4."""
        return self.spec.precision.peak == "fp4"

    @cached_property
    def quantized(self) -> bool:
        """Either of the two."""
        return self.fp8 or self.fp4

    @cached_property
    def fp8_recipe(self) -> object:
        """Megatron-core's name of the FP8 scaling."""
        return self.spec.precision.transformer_config.get("fp8_recipe")

    # CUDA graphs.
    @cached_property
    def graphs_iteration(self) -> bool:
        """Whether one graph holds the whole step."""
        return captures_iteration(self.graph)

    @cached_property
    def graphs_locally(self) -> bool:
        """Whether graphs are megatron-core's own, per layer."""
        return is_local(self.graph)

    @cached_property
    def captured_checkpoints(self) -> tuple[str, ...]:
        """Asked modules that run through a plain checkpoint inside a captured layer."""
        return captured_checkpoints(self.graph, self.modules)

    @cached_property
    def is_dropless(self) -> bool:
        """MoE without drop-and-pad: token counts per expert are only known on the device."""
        padded = self.kernels.moe_expert_capacity_factor is not None and self.kernels.moe_pad_expert_input_to_capacity
        return self.moe is not None and not padded
