"""The table of variables that mbr-perf sets for ranks. Rules V01 to V08 judge the values that they then have."""

from collections.abc import Callable
from dataclasses import dataclass

from harness.experiment.effective import captures_iteration
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.software import ALLOCATOR_NAMES

ALLOCATOR, ALLOCATOR_ALIAS = ALLOCATOR_NAMES
EXPANDABLE_SEGMENTS = "expandable_segments:True"


@dataclass(frozen=True)
class Asked:
    """The input of the rows. ``num_cores``: processors of this node that the ranks may use."""

    spec: ExperimentSpec
    local_ranks: int
    num_cores: int
    nnodes: int
    expandable_segments: bool = False

    @property
    def on_gpu(self) -> bool:
        return not self.spec.gpu_type.is_cpu

    @property
    def before_blackwell(self) -> bool:
        return self.on_gpu and not self.spec.gpu_type.is_at_least(10)

    @property
    def attention_backend(self) -> str:
        """megatron-core's `AttnBackend`; without transformer-engine it is always ``local``."""
        kernels = self.spec.kernels
        return kernels.attention_backend if kernels.transformer_impl == "transformer_engine" else "local"


@dataclass(frozen=True)
class Row:
    """A variable. ``value`` returns None to leave it unset. ``forced``: a value from the shell cannot be right."""

    name: str
    value: Callable[[Asked], str | None]
    reason: str
    forced: bool = False


def max_connections(asked: Asked) -> str | None:
    """Return `CUDA_DEVICE_MAX_CONNECTIONS` as Megatron-Bridge's performance scripts choose it."""
    spec, p, kernels = asked.spec, asked.spec.parallelism, asked.spec.kernels
    if not asked.on_gpu:
        return None
    # TP and CP communication overlaps through one hardware queue, which keeps the order of kernels.
    is_split = p.tensor_model_parallel_size > 1 or p.context_parallel_size > 1
    wants_many = kernels.overlap_moe_expert_parallel_comm or spec.ddp.use_megatron_fsdp
    if asked.before_blackwell and is_split and not wants_many:
        return "1"
    if not asked.before_blackwell or kernels.moe_flex_dispatcher_backend is not None:
        return "32"
    return "8"


def attention_switch(backend: str) -> Callable[[Asked], str | None]:
    """Return 1 for the selected attention backend, 0 for the others; unset if transformer-engine chooses."""

    def value(asked: Asked) -> str | None:
        chosen = asked.attention_backend
        return None if chosen in ("auto", "local") else str(int(chosen == backend))

    return value


def _fixed(gpu: str | None, cpu: str | None = None) -> Callable[[Asked], str | None]:
    """Set the variable to ``gpu`` on GPUs and to ``cpu`` on the processor."""
    return lambda asked: gpu if asked.on_gpu else cpu


def _with_nccl_ub(value: str | None, otherwise: str | None = None) -> Callable[[Asked], str | None]:
    def choose(asked: Asked) -> str | None:
        chosen = value if asked.spec.ddp.nccl_ub else otherwise
        return chosen if asked.on_gpu else None

    return choose


def _of_hybrid_ep(value: Callable[[int, int], int]) -> Callable[[Asked], str | None]:
    """Return a value made of the expert-parallel ranks and the GPUs of an NVLink domain; unset without HybridEP."""

    def choose(asked: Asked) -> str | None:
        links, kernels = asked.spec.gpu_type.links, asked.spec.kernels
        if links is None or kernels.moe_flex_dispatcher_backend != "hybridep":
            return None
        return str(value(asked.spec.parallelism.expert_model_parallel_size, links.domain_gpus))

    return choose


# fmt: off
ROWS: tuple[Row, ...] = (
    Row(ALLOCATOR, _with_nccl_ub(None, EXPANDABLE_SEGMENTS),
        "less fragmentation; nccl_ub excludes it (megatron-core DDP config)"),
    Row("CUDA_DEVICE_MAX_CONNECTIONS", max_connections,
        "1 keeps TP/CP communication in order before Blackwell (megatron arguments); else Megatron-Bridge's value"),
    Row("CUDA_DEVICE_ORDER", _fixed("PCI_BUS_ID"), "CUDA and NVML number devices in the same way"),
    Row("NCCL_GRAPH_REGISTER",
        lambda asked: (
            "0" if asked.on_gpu and asked.spec.cuda_graph.impl != "none" and asked.expandable_segments else None),
        "otherwise CUDA graphs with expandable segments read freed memory (megatron-core cuda_graphs.py)"),
    Row("TORCH_NCCL_HIGH_PRIORITY", _fixed("1"), "communication kernels get priority (Megatron-Bridge)"),
    Row("NCCL_NVLS_ENABLE", _with_nccl_ub("1", "0"), "NVLink SHARP costs memory; needed by nccl_ub (Megatron-Bridge)"),
    Row("NCCL_CTA_POLICY", _with_nccl_ub("1"), "fewer SMs for collectives on user buffers (Megatron-Bridge)"),
    Row("NVTE_FWD_LAYERNORM_SM_MARGIN", _fixed("20"), "SMs left to communication (Megatron-Bridge H100 recipes)"),
    Row("NVTE_BWD_LAYERNORM_SM_MARGIN", _fixed("20"), "SMs left to communication (Megatron-Bridge H100 recipes)"),
    Row("NVTE_ALLOW_NONDETERMINISTIC_ALGO", _fixed("1"),
        "transformer-engine's default; for reproducible results, set 0 in the recipe"),
    Row("NVTE_CPU_OFFLOAD_V1", lambda asked: "1" if asked.on_gpu and asked.spec.offload.offload_modules else None,
        "keeps weights on the GPU with fine-grained offload (megatron arguments)"),
    Row("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", _of_hybrid_ep(min), "HybridEP's topology (Megatron-Bridge)"),
    Row("NUM_OF_TOKENS_PER_CHUNK_COMBINE_API", _of_hybrid_ep(lambda *_: 128), "HybridEP's chunks (Megatron-Bridge)"),
    Row("NVLINK_DOMAIN_SIZE", _of_hybrid_ep(lambda _, domain: domain), "HybridEP's topology (Megatron-Bridge)"),
    Row("USE_MNNVL", _of_hybrid_ep(lambda _, domain: int(domain > 8)), "HybridEP's topology (Megatron-Bridge)"),
    Row("NVTE_FLASH_ATTN", attention_switch("flash"), "follows attention_backend (megatron-core language_module.py)"),
    Row("NVTE_FUSED_ATTN", attention_switch("fused"), "follows attention_backend (megatron-core language_module.py)"),
    Row("NVTE_UNFUSED_ATTN", attention_switch("unfused"),
        "follows attention_backend (megatron-core language_module.py)"),
    Row("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _fixed("5", "5"), "seconds that torchrun gives ranks to end before SIGKILL"),
    Row("CUDA_VISIBLE_DEVICES", _fixed(None, ""), "a CPU run does not use this machine's GPUs", forced=True),
    Row("TORCHINDUCTOR_COMPILE_THREADS", _fixed("1"),
        "no compiler processes that outlive a killed rank"),
    Row("TORCHDYNAMO_DISABLE", _fixed(None, "1"), "megatron's jit fuser would compile C++ in the first step"),
    Row("OMP_NUM_THREADS",
        lambda asked: None if asked.on_gpu else str(max(1, asked.num_cores // asked.local_ranks)),
        "ranks of this node share its cores evenly"),
    Row("GLOO_SOCKET_IFNAME", lambda asked: "lo" if not asked.on_gpu and asked.nnodes == 1 else None,
        "ranks of one node talk over the loopback interface"),
    Row("MALLOC_TRIM_THRESHOLD_", _fixed(None, "8589934592"), "steadier step times: freed memory is kept"),
    Row("MALLOC_MMAP_THRESHOLD_", _fixed(None, "33554432"),
        "steadier step times: tensors below 32 MiB are not mapped again"),
    Row("PYTHONFAULTHANDLER", _fixed("1", "1"), "a segmentation fault leaves a Python traceback"),
    Row("PYTHONUNBUFFERED", _fixed("1", "1"), "the log of a killed rank has its last output"),
    Row("PYTHONSAFEPATH", _fixed("1", "1"), "no folder harness of yours shadows this program"),
    Row("TOKENIZERS_PARALLELISM", _fixed("false", "false"), "no threads before fork"),
)
# fmt: on


def exports(spec: ExperimentSpec) -> dict[str, str]:
    """Return the variables that Megatron-Bridge's performance scripts would set for a job, in the order of the table.

    https://github.com/NVIDIA-NeMo/Megatron-Bridge at 067f987: scripts/performance/utils/overrides.py and the
    `env_vars` of its 431 recipes, of which those with a captured iteration let the graph reuse memory of other streams.
    """
    has_pools, captured = spec.ddp.nccl_ub, captures_iteration(spec.cuda_graph)
    asked = Asked(spec, spec.gpus_per_node, 1, 1, expandable_segments=not has_pools)
    found = {row.name: value for row in ROWS if row.name in _OF_BRIDGE and (value := row.value(asked)) is not None}
    if ALLOCATOR in found:
        reuse = ",graph_capture_record_stream_reuse:True" * captured
        found |= {ALLOCATOR: EXPANDABLE_SEGMENTS + reuse, "NCCL_GRAPH_REGISTER": "0"}
    return found | {"TORCH_NCCL_AVOID_RECORD_STREAMS": str(int(not captured))}


_OF_BRIDGE = {
    ALLOCATOR, "CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_NVLS_ENABLE", "NCCL_CTA_POLICY", "TORCH_NCCL_HIGH_PRIORITY",
    "NVTE_FWD_LAYERNORM_SM_MARGIN", "NVTE_BWD_LAYERNORM_SM_MARGIN", "NVTE_CPU_OFFLOAD_V1", "USE_MNNVL",
    "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "NVLINK_DOMAIN_SIZE", "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API",
}  # fmt: skip

EXPORTS, STOPS = "Environment", "Megatron stops this job at its start"
"""How notes on a job of one's own begin: on variables that it still has to export, and on those that it lacks."""
