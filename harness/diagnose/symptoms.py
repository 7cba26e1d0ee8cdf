"""The known symptoms of failed and slow jobs with recompute, in the order of output, and megatron-core's own errors."""

from functools import cache

from harness.diagnose import seen
from harness.diagnose.seen import Symptom
from harness.diagnose.values import Case, Recognised
from harness.experiment.rules.refusals import refusals
from harness.failures.entries import word_of

_CHECK = "run `mbr-perf check` with the job's settings, which needs no GPU"


_SEEN_OTHERWISE = ("R06", "R18", "R20", "V07")  # a row of their own, which is also seen in the settings


def _refused() -> tuple[Symptom, ...]:
    """Return the refusals of megatron-core that no row below has, as symptoms."""
    return tuple(
        Symptom(
            refusal.rule or "megatron_core",
            "megatron-core refuses the settings" + (f" (rule {refusal.rule})" if refusal.rule else ""),
            refusal.message,
            f"run `mbr-perf rules show {refusal.rule}`" if refusal.rule else _CHECK,
            refusal.fix,
            texts=(refusal.pattern,),
        )
        for refusal in refusals()
        if refusal.rule not in _SEEN_OTHERWISE
    )


# fmt: off
SYMPTOMS: tuple[Symptom, ...] = (
    Symptom("full_recompute_with_graphs",
        "megatron-core refuses full recompute with CUDA graphs",
        "whole layers are recomputed, but CUDA graphs capture parts of a layer",
        _CHECK,
        "recompute modules instead of layers, or use --cuda_graph_impl none, or graphs of the full iteration "
        "(--cuda_graph_impl local --cuda_graph_scope full_iteration)",
        seen.full_recompute_with_graphs,
        (r"full recompute is only supported with full iteration CUDA graph",
         r"recompute[_-]granularity must not be full when CUDA Graphs are enabled")),
    Symptom("pipeline_with_cpu_offloading",
        "megatron-core refuses CPU offloading with pipeline stages",
        "activations of whole layers are offloaded to the host while PP is above 1",
        "check pipeline_model_parallel_size and cpu_offloading in the job's settings",
        "use no offloading (--activation_offload_layers 0), or one pipeline stage (-pp 1)",
        seen.pipeline_with_offloading,
        (r"no support for Pipeline parallelism with CPU offloading",)),
    Symptom("user_buffers_with_expandable_segments",
        "NCCL user buffers fail with expandable segments",
        "buffers registered with NCCL come from memory pools that expandable segments do not have",
        "check nccl_ub and PYTORCH_CUDA_ALLOC_CONF of the job",
        "drop expandable_segments:True, or nccl_ub (--use-nccl-ub)",
        seen.user_buffers_with_expandable_segments,
        (r"nccl[_-]ub.{0,80}expandable", r"expandable.{0,80}nccl[_-]ub", r"expandable.{0,80}user buffer")),
    Symptom("method_with_selective",
        "megatron-core refuses a recompute method with selective recompute",
        "recompute_method (uniform, block) and recompute_num_layers belong to full recompute",
        _CHECK,
        "drop --recompute_method, or ask for full recompute with it",
        texts=(r"recompute[ _-]method.{0,60}not yet supported for.{0,3}selective",)),
    Symptom("distributed_activations_with_sequence_parallel",
        "megatron-core refuses distributed saved activations with sequence parallelism",
        "sequence parallelism already splits saved layer inputs over TP",
        _CHECK,
        "drop --distribute_saved_activations",
        texts=(r"distribute_saved_activations.{0,80}sequence.parallel", r"Can distribute recomputed activations only")),
    Symptom("nan_with_fp8",
        "a loss or a gradient is NaN or infinite with FP8 and recompute",
        "norms recomputed around FP8 layers, and FP8 itself, can overflow",
        "run the same job with --recompute_modules core_attn, then with -c bf16",
        "recompute core_attn only, not layernorm; if that does not help, train the first steps in bf16",
        seen.nan_with_fp8),
    Symptom("rank_out_of_memory_beside_headroom",
        "one rank runs out of memory while others have room",
        "fragmentation of the allocator, or a pipeline stage that holds more than the others",
        "check PYTORCH_CUDA_ALLOC_CONF of the job, and compare the peaks per stage",
        "first set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: it costs no time",
        seen.one_rank_beside_headroom),
    Symptom("out_of_memory_with_expandable_segments",
        "out of memory although expandable segments are on",
        "the job needs more memory than the device has; fragmentation is not the cause",
        "look at the predicted parts of the stage: weights, optimizer, activations",
        "use more recompute, the distributed optimizer, or more pipeline stages",
        seen.with_expandable_segments),
    Symptom("predicted_too_large",
        "the prediction alone exceeds the device",
        "weights, optimizer state or activations are too large for this layout",
        "run `mbr-perf plan`, which shows the largest part",
        "before you launch the job, use other sizes of PP, TP, CP or EP, the distributed optimizer, or recompute",
        seen.predicted_too_large),
    Symptom("layernorm_and_still_out_of_memory",
        "still out of memory with layernorm recomputed",
        "the activations of the norms are too small to lower the peak",
        "compare the peaks with and without layernorm",
        "recompute a module that frees more (mlp, moe), or whole layers; layernorm alone does not help",
        seen.layernorm_still_oom),
    Symptom("recompute_and_still_out_of_memory",
        "still out of memory with recompute",
        "recompute frees activations only; weights, gradients and optimizer state stay",
        "look at the predicted parts of the stage",
        "recompute more (`mbr-perf plan` shows what fits), shard the optimizer (use_distributed_optimizer), "
        "or use FP8 or a smaller micro-batch",
        seen.recompute_still_oom),
    Symptom("utilization_drop_with_mlp",
        "more than 15 % of the utilization is lost with mlp recomputed",
        "the feed-forward block is most of the layer's FLOPs, and all of them run again",
        "run the same job without mlp among recompute_modules",
        "drop mlp; if the job then does not fit, use a smaller micro-batch, or CPU offloading if PP is 1",
        seen.drop_with_mlp),
    Symptom("core_attn_beside_mlp",
        "core_attn recomputed together with mlp",
        "flash attention already recomputes its scores; core_attn costs extra time and frees almost nothing",
        "run the same job with --recompute_modules mlp",
        "recompute mlp alone",
        seen.core_attn_beside_mlp),
    Symptom("slow_with_full_recompute",
        "slow with full recompute",
        "every layer runs forward twice",
        "run the same job with --recompute_modules core_attn",
        "recompute modules instead of layers, if they fit: `mbr-perf plan` shows which",
        seen.slow_with_full),
    *_refused(),
)
# fmt: on


def recognised(case: Case) -> tuple[Recognised, ...]:
    """Return every row that applies."""
    return tuple(found for row in SYMPTOMS if (found := row.recognised(case)) is not None)


@cache
def _words() -> tuple[str, ...]:
    return tuple({word_of(pattern) for row in SYMPTOMS for pattern in row.texts})


def names_symptom(text: str) -> bool:
    """Return whether a line of a log matches the text of a row."""
    return any(word in text for word in _words()) and any(row.match(text) for row in SYMPTOMS)
