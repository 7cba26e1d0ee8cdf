"""Rules for gradients and optimizer states, and for when ranks send them to each other."""

from harness.experiment.optimizer_states import host_state_bytes, least_parameters
from harness.experiment.rules.rule import ARGUMENTS, Rule, Situation, Values
from harness.units import format_bytes

_STATE = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")


def _reduced_state(s: Situation) -> Values | None:
    if s.spec.optimizer.use_precision_aware_optimizer:
        return None
    states = {name: getattr(s.spec.optimizer, name) for name in _STATE}
    reduced = {name: dtype for name, dtype in states.items() if dtype != "fp32"}
    if not reduced:
        return None
    return {"reduced": ", ".join(f"{name} {dtype}" for name, dtype in reduced.items()), "first": next(iter(reduced))}


def _has_sharded_optimizer(s: Situation) -> bool:
    return s.spec.optimizer.use_distributed_optimizer or s.spec.ddp.use_megatron_fsdp


def _muon_refuses(s: Situation) -> bool:
    """Return whether Megatron-LM's launcher refuses a setting beside Muon. From 0.17 on dist_muon overlaps."""
    no_overlap = s.spec.optimizer.optimizer == "muon" or s.mcore_before("0.17")
    overlaps = s.spec.ddp.overlap_grad_reduce or s.spec.ddp.overlap_param_gather
    return s.spec.optimizer.is_muon and (s.spec.ddp.use_megatron_fsdp or (overlaps and no_overlap))


def _offloads(s: Situation) -> bool:
    return s.spec.optimizer.optimizer_cpu_offload


def _above_host(s: Situation) -> Values | None:
    """Return the least bytes that a node needs for states in host memory, where it does not have them."""
    there = s.spec.gpu_type.host_memory_bytes
    needed = host_state_bytes(s.spec, *least_parameters(s.spec)) if _offloads(s) else 0
    if there is None or needed <= there:
        return None
    return {"needed": format_bytes(needed), "there": format_bytes(there), "title": s.spec.gpu_type.title}


RULES = (
    Rule("B05", "error", lambda s: s.spec.ddp.overlap_param_gather and not _has_sharded_optimizer(s),
         "overlap_param_gather needs the distributed optimizer",
         "set optimizer.use_distributed_optimizer",
         ARGUMENTS, "source", "--overlap-param-gather only supported with distributed optimizer"),
    Rule("B05b", "warning", lambda s: s.spec.ddp.overlap_param_gather and not s.spec.ddp.overlap_grad_reduce,
         "Megatron-LM's launcher refuses overlap_param_gather without overlap_grad_reduce",
         "set ddp.overlap_grad_reduce, unless the job runs in Megatron-Bridge",
         ARGUMENTS, "run", "Must use --overlap-param-gather with --overlap-grad-reduce"),
    Rule("B18c", "error",
         lambda s: s.spec.ddp.align_param_gather and s.spec.ddp.overlap_param_gather and s.vp == 1,
         "align_param_gather needs virtual stages",
         "drop ddp.align_param_gather, or set virtual_pipeline_model_parallel_size",
         ARGUMENTS, "source", "non-interleaved schedule does not support overlapping"),
    Rule("B22", "error",
         lambda s: s.spec.ddp.use_megatron_fsdp and s.spec.ddp.average_in_collective and s.spec.model.moe is None,
         "megatron-fsdp of megatron-core {s.mcore_name} cannot build a dense model with average_in_collective",
         "use ddp.average_in_collective=false",
         "distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py:376 at core_v0.18.0", "run",
         "'NoneType' object has no attribute 'size'", since="0.18"),
    Rule("B06", "error", lambda s: s.spec.precision.fp8_param_gather and not _has_sharded_optimizer(s),
         "{s.spec.compute_dtype} keeps parameters in FP8, which needs the distributed optimizer",
         "set optimizer.use_distributed_optimizer",
         ARGUMENTS, "source", "--fp8-param-gather only supported with distributed optimizer"),
    Rule("B10", "error",
         lambda s: s.spec.ddp.grad_reduce_in_fp32 and s.spec.optimizer.use_precision_aware_optimizer
         and s.spec.optimizer.main_grads_dtype != "fp32",
         "main_grads_dtype {s.spec.optimizer.main_grads_dtype} contradicts grad_reduce_in_fp32",
         "use ddp.grad_reduce_in_fp32=false, or main_grads_dtype fp32",
         ARGUMENTS, "source"),
    Rule("B15a", "error",
         lambda s: s.spec.optimizer.use_precision_aware_optimizer and not s.spec.optimizer.use_distributed_optimizer,
         "use_precision_aware_optimizer needs use_distributed_optimizer",
         "set optimizer.use_distributed_optimizer",
         "optimizer/optimizer_config.py:379", "run",
         "--use-precision-aware-optimizer only supported with distributed optimizer"),
    Rule("B15b", "error",
         lambda s: s.spec.optimizer.use_precision_aware_optimizer and s.te_is_missing and not s.gpu.is_cpu,
         "use_precision_aware_optimizer needs transformer-engine",
         "install transformer-engine",
         "optimizer/optimizer_config.py:409", "run", "--use-precision-aware-optimizer requires FusedAdam"),
    Rule("B15c", "error", _reduced_state,
         "{reduced} needs use_precision_aware_optimizer",
         "set optimizer.use_precision_aware_optimizer, or use fp32",
         "optimizer/optimizer_config.py:415", "run",
         "{first} can only be fp32 when not using precision-aware optimizer"),
    Rule("B15d", "error",
         lambda s: s.spec.optimizer.use_precision_aware_optimizer and s.spec.optimizer.optimizer != "adam",
         "use_precision_aware_optimizer works with adam only; optimizer is {s.spec.optimizer.optimizer}",
         "use optimizer.use_precision_aware_optimizer=false, or optimizer.optimizer=adam",
         "optimizer/optimizer_config.py:376", "run", "--use-precision-aware-optimizer only supported with adam"),
    Rule("B23a", "error", lambda s: s.spec.optimizer.is_muon and s.spec.optimizer.use_distributed_optimizer,
         "{s.spec.optimizer.optimizer} does not work with the distributed optimizer",
         "use optimizer.use_distributed_optimizer=false",
         "optimizer/muon.py:193", "source", "muon with dist optimizer is not supported.", until="0.18"),
    Rule("B23b", "error", lambda s: s.spec.optimizer.is_muon and s.spec.compute_dtype == "fp16",
         "{s.spec.optimizer.optimizer} has no loss scale, which fp16 needs",
         "use --compute_dtype bf16, or optimizer.optimizer=adam",
         "optimizer/muon.py:196", "source", "muon with fp16 is not supported."),
    Rule("B23c", "error", _muon_refuses,
         "{s.spec.optimizer.optimizer} works neither with Megatron-FSDP nor with overlapped reduce and gather",
         "set ddp.overlap_grad_reduce, ddp.overlap_param_gather and ddp.use_megatron_fsdp to false",
         ARGUMENTS, "source", "Muon optimizer does not support", until="0.18"),
    Rule("B24", "error",
         lambda s: s.spec.optimizer.optimizer == "sgd" and s.spec.optimizer.use_distributed_optimizer,
         "sgd does not work with the distributed optimizer",
         "use optimizer.use_distributed_optimizer=false, or optimizer.optimizer=adam",
         "optimizer/distrib_optimizer.py", "run", "currently supported, due to checkpointing requirements."),
    Rule("B25a", "error", lambda s: _offloads(s) and not s.spec.optimizer.use_precision_aware_optimizer,
         "optimizer_cpu_offload needs use_precision_aware_optimizer",
         "set optimizer.use_precision_aware_optimizer",
         ARGUMENTS, "source",
         "The optimizer cpu offload must be used in conjunction with `--use-precision-aware-optimizer`"),
    Rule("B25b", "error",
         lambda s: _offloads(s) and s.spec.precision.fp8_param_gather and s.fp8_recipe != "delayed",
         "optimizer_cpu_offload with parameters in FP8 works with delayed scaling only, not with "
         "{s.spec.compute_dtype}",
         "use --compute_dtype fp8_ds, or a precision with weights in BF16",
         ARGUMENTS, "source", "the optimizer cpu offload must be used in conjunction with `--fp8-recipe"),
    Rule("B25c", "error", lambda s: _offloads(s) and s.spec.ddp.use_megatron_fsdp,
         "optimizer_cpu_offload does not work with Megatron-FSDP: it pins copies of the shards, which torch cannot do",
         "use ddp.use_megatron_fsdp=false, or optimizer.optimizer_cpu_offload=false",
         "optimizer/cpu_offloading/hybrid_optimizer.py:274", "source",
         "Sharding propagation failed for aten._pin_memory.default"),
    Rule("B25d", "error", _above_host,
         "the optimizer states in host memory need at least {needed} on a node; a node of {title} has {there}",
         "use a smaller optimizer.optimizer_offload_fraction, more TP, PP or EP, or more GPUs",
         "optimizer/cpu_offloading/hybrid_optimizer.py", "source"),
)  # fmt: skip
