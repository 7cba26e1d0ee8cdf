"""Rules for the ranks' variables, GPUs and software, and for a CPU with gloo instead of a GPU."""

from collections.abc import Mapping

from harness.experiment.rules.rule import ARGUMENTS, Predicate, Rule, Situation, Values
from harness.experiment.software import ALLOCATOR_NAMES
from harness.units import format_bytes

_ATTENTION = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
_EXPECTED_ATTENTION = {
    "auto": ("1", "1", "1"),
    "flash": ("1", "0", "0"),
    "fused": ("0", "1", "0"),
    "unfused": ("0", "0", "1"),
    "local": ("0", "0", "0"),
}
_GRAPH_REGISTER_TEXT = "Setting NCCL_GRAPH_REGISTER=0 to avoid illegal memory access"


def _expandable(env: Mapping[str, str]) -> bool:
    return any("expandable_segments:True" in env.get(name, "").split(",") for name in ALLOCATOR_NAMES)


def _is_before_blackwell(s: Situation) -> bool:
    return not (s.gpu.is_cpu or s.gpu.is_at_least(10))


def _may_register(s: Situation) -> bool:
    return _expandable(s.env) and s.env.get("NCCL_GRAPH_REGISTER") != "0"


def _one_connection_missing(s: Situation) -> Values | None:
    """Judge only a known variable: in the whole environment, or in the request."""
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    if not _is_before_blackwell(s) or (s.tp == 1 and s.cp == 1):
        return None
    if s.spec.ddp.use_megatron_fsdp or s.overlaps_experts:
        return None
    if (s.rank_env is None and name not in s.env) or s.env.get(name) == "1":
        return None
    return {"found": s.env.get(name, "unset")}


def _wrong_attention(s: Situation) -> Values | None:
    backend = s.spec.kernels.attention_backend if s.uses_te else "local"
    for name, expected in zip(_ATTENTION, _EXPECTED_ATTENTION[backend], strict=True):
        found = s.env.get(name)
        if found is not None and found != expected:
            found = f"{found}{_origin(s, name)}"
            return {"name": name, "found": found, "expected": expected, "backend": backend}
    return None


def _two_allocators(s: Situation) -> Values | None:
    if len({s.env.get(name) for name in ALLOCATOR_NAMES} - {None}) < len(ALLOCATOR_NAMES):
        return None
    old, new = (f"{s.env[name]!r}{_origin(s, name)}" for name in ALLOCATOR_NAMES)
    return {"old": old, "new": new}


def _origin(s: Situation, name: str) -> str:
    return "" if name in s.spec.env else " (from your shell)"


def _whole_moments(s: Situation) -> bool:
    return s.spec.ddp.use_megatron_fsdp and s.te_before("2.12") and not s.te_before("2.10")


def _weights_offloaded(s: Situation) -> bool:
    if not s.spec.offload.offload_modules or s.te_before("2.10"):
        return False
    known = s.rank_env is not None or "NVTE_CPU_OFFLOAD_V1" in s.env
    return known and s.env.get("NVTE_CPU_OFFLOAD_V1") != "1"


ENVIRONMENT = (
    Rule("V01", "error", _one_connection_missing,
         "CUDA_DEVICE_MAX_CONNECTIONS is {found}; TP or CP on {s.gpu.name} needs 1",
         "set CUDA_DEVICE_MAX_CONNECTIONS=1 for the ranks: -E here, export in a script of your own",
         ARGUMENTS, "source", "require setting the environment variable CUDA_DEVICE_MAX_CONNECTIONS"),
    Rule("V03", "error", lambda s: s.graph.impl == "transformer_engine" and _may_register(s),
         "transformer_engine graphs with expandable segments need NCCL_GRAPH_REGISTER=0",
         "set NCCL_GRAPH_REGISTER=0 for the ranks: -E here, export in a script of your own",
         f"transformer/cuda_graphs.py:1682; {ARGUMENTS}", "source", _GRAPH_REGISTER_TEXT),
    Rule("V04", "error",
         lambda s: (s.graphs_locally or (s.graphs_iteration and s.mcore_before("0.18"))) and _is_before_blackwell(s)
         and _may_register(s),
         "local graphs with expandable segments need NCCL_GRAPH_REGISTER=0 on {s.gpu.name}",
         "set NCCL_GRAPH_REGISTER=0 for the ranks: -E here, export in a script of your own",
         "transformer/cuda_graphs.py:1413; https://github.com/NVIDIA/Megatron-LM/issues/5474", "source",
         _GRAPH_REGISTER_TEXT, until="0.19"),
    Rule("V04", "warning",
         lambda s: (s.graphs_iteration or (s.graphs_locally and not s.mcore_before("0.19"))) and _may_register(s),
         "graphs with expandable segments: megatron-core {s.mcore_name} does not check NCCL_GRAPH_REGISTER",
         "set NCCL_GRAPH_REGISTER=0 for the ranks, as older releases require",
         "https://github.com/NVIDIA/Megatron-LM/issues/5474", "source", since="0.18"),
    Rule("V06", "error", _two_allocators,
         "PYTORCH_CUDA_ALLOC_CONF is {old}, but PYTORCH_ALLOC_CONF is {new}",
         "set one of them, or give both the same value",
         "torch c10/cuda/CUDAAllocatorConfig; transformer/cuda_graphs.py:1413", "source"),
    Rule("V07", "error", lambda s: s.spec.ddp.nccl_ub and _expandable(s.env),
         "nccl_ub does not work with expandable segments",
         "drop expandable_segments:True, or use ddp.nccl_ub=false",
         "distributed/distributed_data_parallel_config.py:157", "run",
         "is currently not supported with nccl_ub due to"),
    Rule("V08", "error", _wrong_attention,
         "{name}={found} contradicts attention_backend {backend}, which needs {expected}",
         "unset the three NVTE_*_ATTN variables and use kernels.attention_backend",
         "models/common/language_module/language_module.py:98", "source",
         "{name} set to {found}, but expected {expected}"),
    Rule("F06", "error", _weights_offloaded,
         "offload_modules with transformer-engine 2.10 or newer needs NVTE_CPU_OFFLOAD_V1=1, or weights move too",
         "set NVTE_CPU_OFFLOAD_V1=1 for the ranks: -E here, export in a script of your own",
         ARGUMENTS, "source", "NVTE_CPU_OFFLOAD_V1 should be set to 1 to avoid offloading weights"),
    Rule("B09", "error",
         lambda s: s.spec.ddp.use_megatron_fsdp and s.env.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1",
         "CUDA_DEVICE_MAX_CONNECTIONS=1 serialises the prefetches of megatron-fsdp",
         "unset it, or use a larger value",
         ARGUMENTS, "source", "FSDP requires CUDA_DEVICE_MAX_CONNECTIONS > 1 or unset."),
    Rule("B21", "warning", _whole_moments,
         "transformer-engine {s.software.transformer_engine} keeps Adam's moments whole on every megatron-fsdp rank",
         "use transformer-engine 2.12 or newer",
         "https://github.com/NVIDIA/TransformerEngine/issues/2424", "issue"),
    Rule("ENV00", "note", lambda s: s.software.megatron_core is None,
         "megatron-core is not installed: the rules of {s.mcore_name} apply",
         "name the versions of the job: --assume megatron-core=0.19.0,transformer-engine=2.11",
         "mbr-perf", "harness"),
    Rule("ENV01", "warning", lambda s: s.mcore_before("0.16.0rc0"),
         "megatron-core {s.mcore_name} is older than these rules (0.16 to 0.20)",
         "use megatron-core 0.16 or newer",
         "mbr-perf", "harness"),
    Rule("ENV02", "note", lambda s: not s.mcore_before("0.21.0dev0"),
         "megatron-core {s.mcore_name} is newer than these rules (0.16 to 0.20)",
         "expect that a request without findings may still be illegal",
         "mbr-perf", "harness"),
)  # fmt: skip


_WATCHED_STEPS = 2  # under a memory limit; a watched step is a slow one
_CPU = "megatron-core 0.16.1 on CPU with gloo"


def _limit_above_device(s: Situation) -> Values | None:
    limit, there = s.spec.measure.memory_limit_bytes, s.gpu.memory_bytes
    if s.gpu.is_cpu or limit is None or limit <= there:
        return None
    return {"limit": format_bytes(limit), "there": format_bytes(there)}


def _trains_muon(s: Situation) -> bool:
    """Tell mbr-perf's own ranks, whose environment is known, from plans and from jobs of other launchers."""
    is_own = s.launcher == "mbr-perf" and s.rank_env is not None
    return is_own and (
        s.spec.optimizer.optimizer == "dist_muon" or (s.spec.optimizer.is_muon and s.mcore_before("0.18"))
    )


# What needs a GPU, transformer-engine or NCCL: rule, what it is, whether it is asked for, and what to use.
_OF_GPUS: tuple[tuple[str, str, Predicate, str], ...] = (
    ("CPU01", "context parallelism", lambda s: s.cp > 1, "-cp 1"),
    ("CPU02", "the flex dispatcher", lambda s: s.dispatcher == "flex", "kernels.moe_token_dispatcher_type=alltoall"),
    ("CPU03", "transformer_impl transformer_engine", lambda s: s.uses_te, "kernels.transformer_impl=local (or auto)"),
    ("CPU04", "compute_dtype {s.spec.compute_dtype}", lambda s: s.quantized, "--compute_dtype fp32 or bf16"),
    ("CPU05", "cuda_graph_impl {s.graph.impl}", lambda s: s.graph.impl != "none", "--cuda_graph_impl none"),
    ("CPU06", "offloading of layers", lambda s: s.spec.offload.cpu_offloading_num_layers > 0,
     "--activation_offload_layers 0"),
    ("CPU07", "offloading of modules", lambda s: bool(s.spec.offload.offload_modules), "no offload.offload_modules"),
    ("CPU10", "tp_comm_overlap", lambda s: s.spec.kernels.tp_comm_overlap, "kernels.tp_comm_overlap=false"),
    ("CPU11", "megatron-fsdp", lambda s: s.spec.ddp.use_megatron_fsdp, "ddp.use_megatron_fsdp=false"),
    ("CPU12", "nccl_ub", lambda s: s.spec.ddp.nccl_ub, "ddp.nccl_ub=false"),
    ("CPU13", "moe_permute_fusion", lambda s: s.moe is not None and s.spec.kernels.moe_permute_fusion,
     "kernels.moe_permute_fusion=false"),
    ("CPU14", "attention_backend fused", lambda s: s.spec.kernels.attention_backend == "fused",
     "kernels.attention_backend=auto"),
    ("CPU15", "use_precision_aware_optimizer", lambda s: s.spec.optimizer.use_precision_aware_optimizer,
     "optimizer.use_precision_aware_optimizer=false"),
    ("CPU16", "overlap_moe_expert_parallel_comm", lambda s: s.overlaps_experts,
     "kernels.overlap_moe_expert_parallel_comm=false"),
    ("CPU19", "a memory snapshot", lambda s: s.spec.measure.memory_snapshot or s.spec.measure.snapshot_on_oom,
     "neither --memory_snapshot nor --snapshot_on_oom: the record has the memory of a step over time"),
    ("CPU22", "optimizer_cpu_offload", lambda s: s.spec.optimizer.optimizer_cpu_offload,
     "optimizer.optimizer_cpu_offload=false"),
)  # fmt: skip

CPU_RULES = (
    *(
        Rule(name, "error", when, f"{what} needs a GPU", f"use {instead}", _CPU, "source")
        for name, what, when, instead in _OF_GPUS
    ),
    Rule("CPU08", "error", lambda s: s.moe is not None and s.moe.moe_grouped_gemm and s.spec.compute_dtype != "bf16",
         "grouped GEMM experts run in bf16 only, not in {s.spec.compute_dtype}",
         "use --compute_dtype bf16, or model.moe.moe_grouped_gemm=false",
         "transformer/moe/experts.py:225", "run", "Currently GroupedMLP for MoE only supports bf16.", until="0.17"),
    Rule("CPU17", "error",
         lambda s: s.spec.measure.memory_limit_bytes is not None and s.spec.measure.window[0] < _WATCHED_STEPS,
         "a memory limit slows steps 0 and 1; the request measures step {s.spec.measure.window[0]}",
         "measure from step 2 on: --eval_time_start_step 2 with --max_steps 3 or more",
         "mbr-perf", "harness"),
    Rule("CPU18", "error", lambda s: s.dispatcher == "alltoall" and s.ep > 1 and s.etp > 1 and s.is_dropless,
         "EP {s.ep} with ETP {s.etp} does not work on gloo",
         "use -et 1, or kernels.moe_token_dispatcher_type=allgather",
         f"{_CPU}; tensor_parallel/mappings.py:150", "run", "ProcessGroupGloo::allgather: invalid tensor size"),
)  # fmt: skip

RUN_RULES = (
    Rule("RUN12", "error", _trains_muon,
         "mbr-perf does not train with {s.spec.optimizer.optimizer} on megatron-core {s.mcore_name}",
         "use --set optimizer.optimizer=muon, without --optimizer_type, on megatron-core 0.18 or later; or adam",
         "mbr-perf", "harness"),
    Rule("RUN02", "error",
         lambda s: s.spec.num_gpus > s.spec.gpus_per_node and s.spec.num_gpus % s.spec.gpus_per_node != 0,
         "num_gpus {s.spec.num_gpus} is not a multiple of gpus_per_node {s.spec.gpus_per_node}",
         "use whole nodes, or set --gpus_per_node to the GPUs of each node",
         "mbr-perf", "harness"),
    Rule("RUN03", "warning", lambda s: s.software.gpu not in (None, s.spec.gpu),
         "the request is for {s.spec.gpu}, the machine has {s.software.gpu}",
         "use -g {s.software.gpu}; results are stored under the GPU of the request",
         "mbr-perf", "harness"),
    Rule("RUN04", "error", lambda s: s.uses_te and s.te_is_missing and not s.gpu.is_cpu,
         "transformer_engine layers: transformer-engine is not installed",
         "install transformer-engine, or use kernels.transformer_impl=local",
         "mbr-perf", "harness"),
    Rule("RUN06", "error", _limit_above_device,
         "the memory limit {limit} exceeds the memory of a {s.gpu.title}, {there}",
         "use a --memory_limit below the device's memory, or leave it out",
         "mbr-perf", "harness"),
    Rule("RUN07", "warning", lambda s: s.spec.measure.snapshot_on_oom and not s.gpu.is_cpu,
         "--snapshot_on_oom records every allocation, which takes time",
         "use it only to find out why memory runs out",
         "mbr-perf", "harness"),
)  # fmt: skip
