"""Defines ExperimentSpec, the whole request of one run, and its fingerprint."""

import hashlib
import json
from typing import Annotated, Literal, get_args

from annotated_types import Ge, Le, Lt
from pydantic import Field, model_validator

from harness.experiment.frozen import Frozen
from harness.experiment.gpu import GPUS, PRECISIONS, GpuType, Precision
from harness.experiment.model import MOST, BatchSpec, Count, Gpus, ModelSpec, ParallelismSpec, Size
from harness.experiment.recompute import NoRecompute, RecomputePolicy, canonical_text, short_text
from harness.experiment.user_buffers import UserBufferConfig
from harness.units import counted

NAME_PATTERN = r"^[a-z0-9][a-z0-9_.-]{0,63}$"  # names of recipes and families become names of files and folders

Name = Annotated[str, Field(pattern=rf"{NAME_PATTERN}|^$")]  # empty: no recipe, as in a trace

Task = Literal["pretrain", "sft", "peft"]
StateDtype = Literal["fp32", "bf16", "fp16", "fp8"]


class OptimizerSpec(Frozen):
    """Optimizer, its states and gradients. Dtypes other than fp32 need ``use_precision_aware_optimizer``.

    ``loss_scale``: of FP16; None lets megatron-core find it. ``optimizer_cpu_offload`` keeps the states of
    ``optimizer_offload_fraction`` of the parameters in host memory, whose processor updates these parameters.
    """

    optimizer: Literal["adam", "sgd", "muon", "dist_muon"] = "adam"
    sgd_momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    loss_scale: Annotated[float | None, Field(gt=0)] = None
    optimizer_cpu_offload: bool = False
    optimizer_offload_fraction: Annotated[float, Ge(0), Le(1)] = 1.0
    overlap_cpu_optimizer_d2h_h2d: bool = False
    use_distributed_optimizer: bool = True
    use_precision_aware_optimizer: bool = False
    main_params_dtype: StateDtype = "fp32"
    main_grads_dtype: StateDtype = "fp32"
    exp_avg_dtype: StateDtype = "fp32"
    exp_avg_sq_dtype: StateDtype = "fp32"
    lr: float = Field(default=1e-4, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    clip_grad: float = Field(default=1.0, ge=0)

    @property
    def is_muon(self) -> bool:
        return "muon" in self.optimizer


class DdpSpec(Frozen):
    """`DistributedDataParallelConfig` settings, and when the pipeline's stages start their collectives.

    ``bucket_size`` None is the default of megatron's launcher: 40M elements, or 1M per data-parallel rank if more.
    """

    grad_reduce_in_fp32: bool = True
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    align_grad_reduce: bool = False
    align_param_gather: bool = False
    bucket_size: Count | None = None
    average_in_collective: bool = False
    nccl_ub: bool = False
    use_megatron_fsdp: bool = False

    @property
    def gathers_in_forward(self) -> bool:
        """Whether forward pre-hooks of megatron-core's DDP gather parameters. Megatron-FSDP has no such hooks."""
        return self.overlap_param_gather and not self.use_megatron_fsdp


class OffloadSpec(Frozen):
    """Activations moved to host memory: whole layers, or named modules (fine-grained)."""

    cpu_offloading_num_layers: Size = 0
    offload_modules: tuple[str, ...] = ()


class CudaGraphSpec(Frozen):
    """CUDA graph capture. ``scope`` is empty for whole layers."""

    impl: Literal["none", "local", "transformer_engine", "full_iteration"] = "none"
    scope: tuple[Literal["full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"], ...] = ()
    warmup_steps: Size = 3


class KernelSpec(Frozen):
    """The implementations to use. Before launch mbr-perf replaces ``auto`` by what the machine has, and records it."""

    transformer_impl: Literal["auto", "transformer_engine", "local"] = "auto"
    attention_backend: Literal["auto", "flash", "fused", "unfused"] = "auto"
    gradient_accumulation_fusion: bool = True
    bias_activation_fusion: bool = True
    cross_entropy_loss_fusion: bool = True
    cross_entropy_fusion_impl: Literal["te", "native"] = "te"
    tp_comm_overlap: bool = False
    tp_comm_overlap_cfg: UserBufferConfig | None = None
    moe_token_dispatcher_type: Literal["alltoall", "allgather", "flex"] = "alltoall"  # noqa: S105 (no secret)
    moe_flex_dispatcher_backend: Literal["deepep", "hybridep"] | None = None
    moe_permute_fusion: bool = False
    moe_shared_expert_overlap: bool = False
    overlap_moe_expert_parallel_comm: bool = False
    moe_expert_capacity_factor: float | None = None
    moe_pad_expert_input_to_capacity: bool = False

    @property
    def has_flex_dispatcher(self) -> bool:
        return self.moe_token_dispatcher_type == "flex"  # noqa: S105 (a dispatcher of tokens)


AdaptedModule = Literal["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]


class PeftSpec(Frozen):
    """LoRA adapters of rank ``dim`` beside some linear layers; all other weights are frozen. Names are Bridge's."""

    dim: Count = 32
    alpha: Count = 32
    target_modules: tuple[AdaptedModule, ...] = Field(default=get_args(AdaptedModule), min_length=1)


class TrainSpec(Frozen):
    """The training loop. ``manual_gc`` collects garbage on all ranks at the same steps, never between."""

    manual_gc: bool = False
    manual_gc_interval: Size = 0


EngineSetting = bool | int | float | str | tuple[str | int, ...] | None


class BridgeEngine(Frozen):
    """Megatron-Bridge's own training loop in place of mbr-perf's worker.

    ``config``: the `ConfigContainer` file, with the SHA-256 of its bytes. ``overrides``: by path in the container, the
    values that options of the request replace. ``rest``: digest of the settings of the file that no leaf of an
    ExperimentSpec holds. ``unsaid``: why the spec does not describe the job fully; nothing is then predicted, and no
    FLOPs are derived.
    """

    name: Literal["bridge"] = "bridge"
    version: str
    forward_step: str
    rest: str
    config: str = ""
    config_sha256: str = ""
    overrides: dict[str, EngineSetting] = Field(default_factory=dict)
    unsaid: tuple[str, ...] = ()

    @property
    def identity(self) -> dict[str, object]:
        """Return what decides a result. The overridden settings are leaves of the spec, too."""
        return {"name": self.name, "version": self.version, "forward_step": self.forward_step, "rest": self.rest}


NOT_DESCRIBED = "mbr-perf's settings do not describe this job fully"
"""The reason why a job of Megatron-Bridge has no prediction and no derived FLOPs."""

MIN_STEPS = 3
"""Steps in the window from which a verdict on time is possible."""


class MeasureSpec(Frozen):
    """How many steps run and which of them count. The window is [start, end), 0-based, after the skipped share.

    ``memory_limit_bytes`` limits every rank to less memory than its device has; a rank that needs more runs out of
    memory. ``memory_snapshot`` records one more step after the last one, which costs the measured steps nothing.
    ``snapshot_on_oom`` records from the beginning, which slows every step: such a run is not judged.
    """

    max_steps: Annotated[int, Ge(1), Le(MOST["steps"])] = 50
    skip_first_percent_time: float = Field(default=0.7, ge=0, lt=1)
    eval_time_start_step: Size | None = None
    eval_time_end_step: Size | None = None
    seed: Size = 1234
    memory_limit_bytes: Count | None = None
    memory_snapshot: bool = False
    snapshot_on_oom: bool = False

    @model_validator(mode="after")
    def _asked_window_holds_a_step(self) -> "MeasureSpec":
        start, end = self.window
        asked = self.eval_time_start_step is not None or self.eval_time_end_step is not None
        if asked and start >= end:
            raise ValueError(f"no measured step from step {start} on and before step {end} of {self.max_steps}")
        return self

    @property
    def window(self) -> tuple[int, int]:
        """Return the first step that counts and the step after the last. Step 0 counts only if the request names it."""
        start = self.eval_time_start_step
        if start is None:
            start = max(1, int(self.max_steps * self.skip_first_percent_time))
        end = self.max_steps if self.eval_time_end_step is None else min(self.eval_time_end_step, self.max_steps)
        return start, end

    def too_few_steps(self) -> str | None:
        """Return a note, for before the start, if the window will hold fewer than ``MIN_STEPS`` steps, else None."""
        start, end = self.window
        if end - start >= MIN_STEPS:
            return None
        return (
            f"only {max(0, end - start)} of {counted(self.max_steps, 'step')} will count. A verdict on step time and "
            f"throughput needs at least {MIN_STEPS}: use a larger max_steps, or a lower eval_time_start_step"
        )


class ExperimentSpec(Frozen):
    """One complete experiment. Construction has no side effects."""

    recipe: Name
    family: Name
    task: Task = "pretrain"
    gpu: str
    num_gpus: Gpus
    gpus_per_node: Gpus
    compute_dtype: str
    model: ModelSpec
    parallelism: ParallelismSpec = ParallelismSpec()
    batch: BatchSpec
    recompute: RecomputePolicy = NoRecompute()
    optimizer: OptimizerSpec = OptimizerSpec()
    ddp: DdpSpec = DdpSpec()
    offload: OffloadSpec = OffloadSpec()
    cuda_graph: CudaGraphSpec = CudaGraphSpec()
    kernels: KernelSpec = KernelSpec()
    env: dict[str, str] = Field(default_factory=dict)
    train: TrainSpec = TrainSpec()
    peft: PeftSpec | None = None
    measure: MeasureSpec = MeasureSpec()
    engine: BridgeEngine | None = None

    @model_validator(mode="after")
    def _rows_exist(self) -> "ExperimentSpec":
        if self.gpu not in GPUS:
            raise ValueError(f"unknown GPU type {self.gpu!r}; known: {', '.join(GPUS)}")
        if self.compute_dtype not in PRECISIONS:
            raise ValueError(f"unknown compute dtype {self.compute_dtype!r}; known: {', '.join(PRECISIONS)}")
        return self

    @property
    def gpu_type(self) -> GpuType:
        return GPUS[self.gpu]

    @property
    def precision(self) -> Precision:
        return PRECISIONS[self.compute_dtype]

    @property
    def makes_user_buffers(self) -> bool:
        """Return whether tp_comm_overlap has something to overlap; ``kernels.transformer_impl`` must be settled.

        With multi-latent attention megatron-core itself switches it off: its projections have no buffers.
        """
        p, k = self.parallelism, self.kernels
        overlaps = k.tp_comm_overlap and k.transformer_impl != "local" and not self.gpu_type.is_cpu
        return overlaps and p.tensor_model_parallel_size > 1 and p.sequence_parallel and self.model.mla is None

    @property
    def user_buffer_shape(self) -> tuple[int, int]:
        """Return the shape of one user buffer: tokens of a micro-batch on a context-parallel rank, hidden size."""
        tokens = self.batch.seq_length * self.batch.micro_batch_size // self.parallelism.context_parallel_size
        return tokens, self.model.hidden_size

    @property
    def data_parallel_size(self) -> int:
        return self.parallelism.data_parallel_size(self.num_gpus)

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes for all ranks: 1 if they fit on one, else what ``gpus_per_node`` requires."""
        return max(1, -(-self.num_gpus // self.gpus_per_node))

    def ranks_per_node(self, nnodes: int) -> int:
        """Return the number of ranks on each node: all of them on one node, ``gpus_per_node`` on each of several."""
        return self.num_gpus if nnodes == 1 else self.gpus_per_node

    @property
    def is_routed_naturally(self) -> bool:
        moe, shares_experts = self.model.moe, self.parallelism.expert_model_parallel_size > 1
        return moe is not None and shares_experts and not moe.moe_router_force_load_balancing

    @property
    def num_microbatches(self) -> int:
        return self.batch.num_microbatches(self.data_parallel_size)

    @property
    def tokens_per_step(self) -> int:
        return self.batch.global_batch_size * self.batch.seq_length

    @property
    def is_described(self) -> bool:
        """Return whether the settings describe the job fully. A configuration of Megatron-Bridge may hold more."""
        return self.engine is None or not self.engine.unsaid

    @property
    def slug(self) -> str:
        """Return ``<recipe>.<task>.<dtype>.<n>gpu.<recompute>[.bridge]``, the stem of its golden file."""
        engine = f".{self.engine.name}" if self.engine else ""
        job = f"{self.recipe}.{self.task}.{self.compute_dtype}.{self.num_gpus}gpu"
        return f"{job}.{short_text(self.recompute)}{engine}"

    @property
    def capacity_bytes(self) -> int | None:
        """Return the memory limit or what programs can have of the GPU, whichever is less; None if neither is known."""
        known = (self.measure.memory_limit_bytes, self.gpu_type.usable_bytes)
        return min((size for size in known if size), default=None)

    def identity(self, *, exclude_defaults: bool = False) -> dict[str, object]:
        """Return what decides a result: not steps and window, but the seed, which routes tokens to experts."""
        unlisted = {"gpus_per_node", "family"}
        fields = self.model_dump(mode="json", exclude=unlisted, exclude_defaults=exclude_defaults)
        fields["measure"] = {"seed": self.measure.seed}
        if self.measure.memory_limit_bytes is not None and not self.gpu_type.is_cpu:
            fields["measure"] |= {"memory_limit_bytes": self.measure.memory_limit_bytes}
        fields["recompute"] = canonical_text(self.recompute)
        if self.engine is not None:
            fields["engine"] = self.engine.identity
        return fields

    @property
    def fingerprint(self) -> str:
        """Hash :meth:`identity` without defaults to sixteen hex digits; runs with equal fingerprints may be compared.

        A new field with a default changes no fingerprint. A changed default needs new goldens.
        """
        canonical = json.dumps(self.identity(exclude_defaults=True), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]
