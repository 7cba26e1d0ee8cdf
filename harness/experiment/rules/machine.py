"""What a run of this harness cannot do: on a processor through gloo, and at all."""

import math

from harness.experiment.rules.rule import Rule, Values
from harness.experiment.rules.situation import Situation
from harness.units import format_bytes

_WATCHED_STEPS = 2  # under a memory limit; a watched step is a slow one
_CPU = "megatron-core 0.16.1 on CPU with gloo"


def _other_gpu(s: Situation) -> Values | None:
    found = s.software.gpu
    return {"found": found} if found is not None and found != s.spec.gpu else None


def _nodes_not_full(s: Situation) -> bool:
    return s.spec.num_gpus > s.spec.gpus_per_node and s.spec.num_gpus % s.spec.gpus_per_node != 0


def _limit_above_device(s: Situation) -> Values | None:
    limit, there = s.spec.measure.memory_limit_bytes, s.gpu.memory_bytes
    if s.gpu.is_cpu or limit is None or limit <= there:
        return None
    return {"limit": format_bytes(limit), "there": format_bytes(there)}


def _limit_watches_what_is_measured(s: Situation) -> Values | None:
    measure = s.spec.measure
    if measure.memory_limit_bytes is None or measure.window[0] >= _WATCHED_STEPS:
        return None
    start = f"--eval_time_start_step {_WATCHED_STEPS}"
    if measure.max_steps <= _WATCHED_STEPS:
        start += f" with --max_steps {_WATCHED_STEPS + 1}"
    steps = _fewest_steps(measure.skip_first_percent_time) if measure.eval_time_start_step is None else None
    return {"ways": f"--max_steps {steps}, or {start}" if steps else start}


def _fewest_steps(skipped: float) -> int | None:
    """The fewest steps of which the share that does not count holds every watched one; None where none ever does."""
    if skipped == 0:
        return None
    steps = max(1, math.ceil(_WATCHED_STEPS / skipped) - 1)
    while int(steps * skipped) < _WATCHED_STEPS:
        steps += 1
    return steps


CPU_RULES = (
    Rule("CPU01", "error", lambda s: s.cp > 1,
         "context_parallel_size {s.cp}: context parallelism needs transformer-engine's attention",
         "use -cp 1 on cpu",
         "transformer/dot_product_attention.py:57", "run",
         "Context parallelism is only supported by TEDotProductAttention!"),
    Rule("CPU02", "error", lambda s: s.dispatcher == "flex",
         "the flex dispatcher needs DeepEP or HybridEP, which are CUDA libraries",
         "use kernels.moe_token_dispatcher_type=alltoall",
         "transformer/moe/token_dispatcher.py:997", "run",
         "DeepEP is not installed"),
    Rule("CPU03", "error", lambda s: s.uses_te,
         "transformer_engine layers need CUDA",
         "use kernels.transformer_impl=local (or auto)",
         _CPU, "run"),
    Rule("CPU04", "error", lambda s: s.quantized,
         "{s.spec.compute_dtype} needs transformer-engine and a GPU",
         "use --compute_dtype fp32 or bf16",
         _CPU, "source"),
    Rule("CPU05", "error", lambda s: s.graph.impl != "none",
         "cuda_graph_impl {s.graph.impl} on a processor",
         "use --cuda_graph_impl none",
         _CPU, "source"),
    Rule("CPU06", "error", lambda s: s.offload.cpu_offloading_num_layers > 0,
         "there is no host memory to offload to: activations are in it already",
         "use --activation_offload_layers 0",
         "transformer_block.py:319", "run",
         "CPU Offloading is enabled when TE is not present"),
    Rule("CPU07", "error", lambda s: bool(s.offload.offload_modules),
         "fine-grained activation offloading needs CUDA streams",
         "drop offload.offload_modules",
         "pipeline_parallel/fine_grained_activation_offload.py:411", "run",
         "torch.cuda.Stream requires CUDA support"),
    Rule("CPU08", "error", lambda s: s.moe is not None and s.moe.moe_grouped_gemm and s.spec.compute_dtype != "bf16",
         "grouped GEMM experts run in bf16 only, not in {s.spec.compute_dtype}",
         "use --compute_dtype bf16, or model.moe.moe_grouped_gemm=false",
         "transformer/moe/experts.py:225", "run",
         "Currently GroupedMLP for MoE only supports bf16.", until="0.17"),
    Rule("CPU09", "error", lambda s: "moe_act" in s.modules and s.spec.compute_dtype != "bf16",
         "moe_act lives in grouped GEMM experts, which run in bf16 only",
         "use --compute_dtype bf16, or drop moe_act",
         "transformer/moe/experts.py:225", "run",
         "Currently GroupedMLP for MoE only supports bf16.", until="0.17"),
    Rule("CPU10", "error", lambda s: s.kernels.tp_comm_overlap,
         "tp_comm_overlap is transformer-engine's userbuffers on NVLink",
         "use kernels.tp_comm_overlap=false",
         _CPU, "source"),
    Rule("CPU11", "error", lambda s: s.ddp.use_megatron_fsdp,
         "megatron-fsdp allocates through CUDA streams and memory pools",
         "use ddp.use_megatron_fsdp=false",
         _CPU, "source"),
    Rule("CPU12", "error", lambda s: s.ddp.nccl_ub,
         "nccl_ub registers CUDA buffers with NCCL; this run uses gloo",
         "use ddp.nccl_ub=false",
         _CPU, "source"),
    Rule("CPU13", "error", lambda s: s.moe is not None and s.kernels.moe_permute_fusion,
         "moe_permute_fusion is a transformer-engine kernel",
         "use kernels.moe_permute_fusion=false",
         f"{_CPU}; transformer_config.py:1834", "run",
         "fused permutation is not available. Please install TE >= 2.1.0."),
    Rule("CPU14", "error", lambda s: s.kernels.attention_backend == "fused",
         "attention_backend fused: the local layers have flash-like and unfused attention",
         "use kernels.attention_backend=auto",
         _CPU, "source"),
    Rule("CPU15", "error", lambda s: s.optimizer.use_precision_aware_optimizer,
         "use_precision_aware_optimizer needs transformer-engine's FusedAdam",
         "use optimizer.use_precision_aware_optimizer=false",
         "optimizer/optimizer_config.py:409", "source",
         "--use-precision-aware-optimizer requires FusedAdam from TransformerEngine, but not found."),
    Rule("CPU16", "error", lambda s: s.overlaps_experts,
         "overlap_moe_expert_parallel_comm schedules on CUDA streams",
         "use kernels.overlap_moe_expert_parallel_comm=false",
         _CPU, "source"),
    Rule("CPU17", "error", _limit_watches_what_is_measured,
         "a memory limit watches the first two steps, and step {s.spec.measure.window[0]} is to be measured",
         "measure from step 2 on: {ways}",
         "mbr-perf", "harness"),
    Rule("CPU18", "error", lambda s: s.dispatcher == "alltoall" and s.ep > 1 and s.etp > 1 and s.is_dropless,
         "experts over {s.ep} ranks with {s.etp} tensor-parallel parts each: gloo gathers equal shares of tokens only",
         "use -et 1, or kernels.moe_token_dispatcher_type=allgather",
         f"{_CPU}; tensor_parallel/mappings.py:150", "run",
         "ProcessGroupGloo::allgather: invalid tensor size"),
    Rule("CPU19", "error", lambda s: s.spec.measure.memory_snapshot or s.spec.measure.snapshot_on_oom,
         "memory snapshots are of torch's CUDA allocator, and ranks on a processor have none",
         "leave --memory_snapshot and --snapshot_on_oom out: the record has memory over time of one step on cpu",
         "mbr-perf", "harness"),
)  # fmt: skip

RUN_RULES = (
    Rule("RUN01", "error", lambda s: s.spec.task == "peft",
         "task peft: the worker trains all weights, it has no LoRA adapters",
         "use --task sft; figures of a full fine-tune are not those of LoRA",
         "mbr-perf", "harness"),
    Rule("RUN02", "error", _nodes_not_full,
         "num_gpus {s.spec.num_gpus} is not a multiple of gpus_per_node {s.spec.gpus_per_node}",
         "use whole nodes, or say how many GPUs each has with --gpus_per_node",
         "mbr-perf", "harness"),
    Rule("RUN03", "warning", _other_gpu,
         "the request is for {s.spec.gpu}, the machine has {found}",
         "use -g {found}; results are stored under the GPU that was asked for",
         "mbr-perf", "harness"),
    Rule("RUN04", "error", lambda s: s.uses_te and s.te_is_missing and not s.gpu.is_cpu,
         "transformer_engine layers are asked for, and transformer-engine is not installed",
         "install transformer-engine, or use kernels.transformer_impl=local",
         "mbr-perf", "harness"),
    Rule("RUN05", "warning",
         lambda s: not s.uses_te and not s.gpu.is_cpu and s.moe is not None and s.moe.moe_grouped_gemm,
         "the local experts run one matrix product each, slower than one grouped GEMM, without the grouped_gemm package",
         "install grouped_gemm, or use kernels.transformer_impl=transformer_engine",
         "transformer/moe/experts.py:81", "source", until="0.17"),
    Rule("RUN06", "error", _limit_above_device,
         "a memory limit of {limit} on a {s.gpu.title}, which has {there}",
         "use a --memory_limit below what the device has, or leave it out",
         "mbr-perf", "harness"),
    Rule("RUN07", "warning", lambda s: s.spec.measure.snapshot_on_oom and not s.gpu.is_cpu,
         "with --snapshot_on_oom the allocator records every allocation of every step, which takes time",
         "use it to find out why memory runs out; leave it out of a run that is to be judged",
         "mbr-perf", "harness"),
)  # fmt: skip
