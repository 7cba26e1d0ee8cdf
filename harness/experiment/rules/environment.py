"""Variables that ranks will see: megatron's launcher checks some, its core writes some, and some fail late."""

from collections.abc import Mapping

from harness.experiment.rules.rule import Rule, Values
from harness.experiment.rules.situation import Situation

_ARGUMENTS = "megatron/training/arguments.py at core_v0.16.1"
_ALLOC_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_ATTENTION = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
_EXPECTED_ATTENTION = {
    "auto": ("1", "1", "1"),
    "flash": ("1", "0", "0"),
    "fused": ("0", "1", "0"),
    "unfused": ("0", "0", "1"),
    "local": ("0", "0", "0"),
}
_GRAPH_REGISTER_TEXT = (
    "Setting NCCL_GRAPH_REGISTER=0 to avoid illegal memory access when using CUDA Graph with "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
)


def _expandable(env: Mapping[str, str]) -> bool:
    """Whether the allocator uses expandable segments: torch reads both names, megatron-core's guards only the older one."""
    return any("expandable_segments:True" in env.get(name, "").split(",") for name in _ALLOC_NAMES)


def _is_before_blackwell(s: Situation) -> bool:
    return not (s.gpu.is_cpu or s.gpu.is_at_least(10))


def _may_register(s: Situation) -> bool:
    """Expandable segments while NCCL may register graph buffers."""
    return _expandable(s.env) and s.env.get("NCCL_GRAPH_REGISTER") != "0"


def _one_connection_missing(s: Situation) -> Values | None:
    """Asked only where the variable is known: in the whole environment, or as part of the request."""
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    if not _is_before_blackwell(s) or (s.tp == 1 and s.cp == 1):
        return None
    if s.ddp.use_megatron_fsdp or s.overlaps_experts:
        return None
    if (s.rank_env is None and name not in s.env) or s.env.get(name) == "1":
        return None
    return {"found": s.env.get(name, "unset")}


def _wrong_attention(s: Situation) -> Values | None:
    backend = s.kernels.attention_backend if s.uses_te else "local"
    for name, expected in zip(_ATTENTION, _EXPECTED_ATTENTION[backend], strict=True):
        found = s.env.get(name)
        if found is not None and found != expected:
            return {"name": name, "found": found, "expected": expected, "backend": backend}
    return None


def _two_allocators(s: Situation) -> Values | None:
    old, new = (s.env.get(name) for name in _ALLOC_NAMES)
    return {"old": old, "new": new} if old is not None and new is not None and old != new else None


def _weights_offloaded(s: Situation) -> bool:
    if not s.offload.offload_modules or s.te_before("2.10"):
        return False
    known = s.rank_env is not None or "NVTE_CPU_OFFLOAD_V1" in s.env
    return known and s.env.get("NVTE_CPU_OFFLOAD_V1") != "1"


RULES = (
    Rule("V01", "error", _one_connection_missing,
         "CUDA_DEVICE_MAX_CONNECTIONS is {found}; with TP or CP on {s.gpu.name} it must be 1, or communication runs "
         "late",
         "-E CUDA_DEVICE_MAX_CONNECTIONS=1",
         _ARGUMENTS, "source",
         "Using tensor model parallelism or context parallelism require setting the environment variable "
         "CUDA_DEVICE_MAX_CONNECTIONS to 1"),
    Rule("V03", "error", lambda s: s.graph.impl == "transformer_engine" and _may_register(s),
         "transformer_engine graphs with expandable segments need NCCL_GRAPH_REGISTER=0",
         "-E NCCL_GRAPH_REGISTER=0",
         f"transformer/cuda_graphs.py:1682; {_ARGUMENTS}", "source", _GRAPH_REGISTER_TEXT),
    Rule("V04", "error",
         lambda s: (s.graph.impl == "local" or s.graphs_iteration) and _is_before_blackwell(s) and _may_register(s),
         "local graphs with expandable segments need NCCL_GRAPH_REGISTER=0 on {s.gpu.name}",
         "-E NCCL_GRAPH_REGISTER=0",
         "transformer/cuda_graphs.py:1413; https://github.com/NVIDIA/Megatron-LM/issues/5474", "source",
         _GRAPH_REGISTER_TEXT, until="0.18"),
    Rule("V04", "error", lambda s: s.graphs_locally and _is_before_blackwell(s) and _may_register(s),
         "local graphs with expandable segments need NCCL_GRAPH_REGISTER=0 on {s.gpu.name}",
         "-E NCCL_GRAPH_REGISTER=0",
         "transformer/cuda_graphs.py:1413; https://github.com/NVIDIA/Megatron-LM/issues/5474", "source",
         _GRAPH_REGISTER_TEXT, since="0.18", until="0.19"),
    Rule("V04", "warning", lambda s: s.graphs_locally and _may_register(s),
         "local graphs with expandable segments: megatron-core {s.mcore_name} checks NCCL_GRAPH_REGISTER no more",
         "-E NCCL_GRAPH_REGISTER=0 keeps the older, safe setting",
         "https://github.com/NVIDIA/Megatron-LM/issues/5474", "source", since="0.19"),
    Rule("V05", "warning", lambda s: s.graphs_iteration and _may_register(s),
         "a captured iteration with expandable segments is guarded by nothing",
         "-E NCCL_GRAPH_REGISTER=0",
         "Megatron-LM main full_cuda_graph.py", "source", since="0.18"),
    Rule("V06", "error", _two_allocators,
         "PYTORCH_CUDA_ALLOC_CONF is {old!r} and PYTORCH_ALLOC_CONF is {new!r}: torch reads one, megatron-core the "
         "other",
         "set one of them, or both alike",
         "torch c10/cuda/CUDAAllocatorConfig; transformer/cuda_graphs.py:1413", "source"),
    Rule("V07", "error", lambda s: s.ddp.nccl_ub and _expandable(s.env),
         "nccl_ub with expandable segments",
         "drop expandable_segments:True, or ddp.nccl_ub",
         "distributed/distributed_data_parallel_config.py:157", "run",
         "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True is currently not supported with nccl_ub due to "
         "compatibility issue with torch.cuda.MemPool API."),
    Rule("V08", "error", _wrong_attention,
         "{name}={found} contradicts attention_backend {backend}, which wants {expected}",
         "unset the three NVTE_*_ATTN variables and use kernels.attention_backend",
         "models/common/language_module/language_module.py:98", "source",
         "{name} set to {found}, but expected {expected} for attention backend type "),
    Rule("V10", "error", lambda s: s.uses_te and s.env.get("NVTE_APPLY_QK_LAYER_SCALING", "0") != "0",
         "NVTE_APPLY_QK_LAYER_SCALING={s.env[NVTE_APPLY_QK_LAYER_SCALING]}, but no model here asks for it",
         "unset it",
         "extensions/transformer_engine.py:1179", "source",
         "apply_query_key_layer_scaling is False but environment variable NVTE_APPLY_QK_LAYER_SCALING is "
         "{s.env[NVTE_APPLY_QK_LAYER_SCALING]}."),
    Rule("F06", "error", _weights_offloaded,
         "offload_modules with transformer-engine 2.10 or newer needs NVTE_CPU_OFFLOAD_V1=1, or weights move too",
         "-E NVTE_CPU_OFFLOAD_V1=1",
         _ARGUMENTS, "source",
         "For fine-grained activation offloading with TE >= 2.10.0, NVTE_CPU_OFFLOAD_V1 should be set to 1 to avoid "
         "offloading weights."),
    Rule("B09", "error",
         lambda s: s.ddp.use_megatron_fsdp and s.env.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1",
         "CUDA_DEVICE_MAX_CONNECTIONS=1 with megatron-fsdp serialises its prefetches",
         "unset it, or use a larger value",
         _ARGUMENTS, "source",
         "FSDP requires CUDA_DEVICE_MAX_CONNECTIONS > 1 or unset."),
    Rule("ENV00", "note", lambda s: s.software.megatron_core is None,
         "megatron-core is not installed here: the rules of {s.mcore_name} are assumed",
         "name what the job will run with: --assume megatron-core=0.19.0,transformer-engine=2.11",
         "mbr-perf", "harness"),
    Rule("ENV01", "warning", lambda s: s.mcore_before("0.16.0rc0"),
         "megatron-core {s.mcore_name} is older than any these rules were written for (0.16 to 0.20)",
         "use megatron-core 0.16 or newer",
         "mbr-perf", "harness"),
    Rule("ENV02", "note", lambda s: not s.mcore_before("0.21.0dev0"),
         "megatron-core {s.mcore_name} is newer than any these rules were written for (0.16 to 0.20)",
         "treat the absence of a finding with care",
         "mbr-perf", "harness"),
)  # fmt: skip
