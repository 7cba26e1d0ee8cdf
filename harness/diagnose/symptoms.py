"""The known symptoms of failed and slow jobs with recompute: one row each, in the order in which they are told."""

import re
from collections.abc import Iterable

from harness.diagnose import seen as memory
from harness.diagnose import seen as settings
from harness.diagnose import seen as speed
from harness.diagnose.megatron_texts import LAYOUT_TEXTS, MEGATRON_TEXTS, RANKS
from harness.diagnose.seen import Facts, Symptom
from harness.diagnose.values import Recognised

_CHECK = "`mbr-perf check` with the job's settings, which costs no GPU"


# Every text has one of them, in small letters; looking for them first is what makes gigabytes bearable.
_WORDS = (
    "recomput", "offload", "expandable", "saved_activations", "cuda graph", "cuda_graph", "nccl_graph", "scope", '"uniform"',
    "moe_router", ".grad()", ".backward()", "divisible", "multiple o", "number of layers", "middle layers",
)  # fmt: skip


def _text(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


# fmt: off
SYMPTOMS: tuple[Symptom, ...] = (
    Symptom("full_recompute_with_graphs",
        "megatron-core refuses full recompute with CUDA graphs",
        "whole layers are recomputed while CUDA graphs of parts of a layer are captured",
        _CHECK,
        "recompute modules instead of layers, or --cuda_graph_impl none, or graphs of the full iteration "
        "(--cuda_graph_impl local --cuda_graph_scope full_iteration)",
        settings.full_recompute_with_graphs,
        _text(r"full recompute is only supported with full iteration CUDA graph"
              r"|recompute[_-]granularity must not be full when CUDA Graphs are enabled")),
    Symptom("pipeline_with_cpu_offloading",
        "megatron-core refuses CPU offloading with pipeline stages",
        "activations of whole layers are offloaded to the host while PP is above 1",
        "pipeline_model_parallel_size and cpu_offloading in the job's settings",
        "no offloading (--activation_offload_layers 0), or one pipeline stage (-pp 1)",
        settings.pipeline_with_offloading,
        _text(r"no support for Pipeline parallelism with CPU offloading")),
    Symptom("user_buffers_with_expandable_segments",
        "NCCL user buffers fail beside expandable segments",
        "buffers registered with NCCL come from memory pools that expandable segments do not have",
        "nccl_ub and PYTORCH_CUDA_ALLOC_CONF of the job",
        "drop expandable_segments:True, or nccl_ub (--use-nccl-ub)",
        settings.user_buffers_with_expandable_segments,
        _text(r"expandable_segments\S* is currently not supported with nccl[_-]ub|nccl[_-]ub.{0,80}expandable"
              r"|expandable.{0,80}(?:nccl[_-]ub|user buffer)")),
    Symptom("method_with_selective",
        "megatron-core refuses a recompute method with selective recompute",
        "recompute_method (uniform, block) and recompute_num_layers belong to full recompute",
        _CHECK,
        "drop --recompute_method, or ask for full recompute with it",
        text=_text(r"recompute[ _-]method.{0,60}not yet supported for.{0,3}selective")),
    Symptom("distributed_activations_with_sequence_parallel",
        "megatron-core refuses distributed saved activations with sequence parallelism",
        "saved layer inputs are split over TP already where sequence parallelism is on",
        _CHECK,
        "drop --distribute_saved_activations",
        text=_text(r"distribute_saved_activations.{0,80}sequence.parallel|Can distribute recomputed activations only")),
    Symptom("nan_with_fp8",
        "a loss or a gradient is NaN or infinite with FP8 and recompute",
        "norms that are recomputed around FP8 layers, and FP8 itself, can lose the numbers",
        "the same job with --recompute_modules core_attn, then with -c bf16",
        "recompute core_attn only, not layernorm; if it stays, train the first steps in bf16",
        settings.nan_with_fp8),
    Symptom("rank_out_of_memory_beside_headroom",
        "one rank runs out of memory while others have room",
        "fragmentation of the allocator, or a pipeline stage that holds more than the others",
        "PYTORCH_CUDA_ALLOC_CONF of the job; the peaks per stage",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True first: it costs no time",
        memory.one_rank_beside_headroom),
    Symptom("out_of_memory_with_expandable_segments",
        "out of memory although expandable segments are on",
        "the device is too small for what the job keeps: not fragmentation",
        "the predicted parts of the stage: weights, optimizer, activations",
        "more recompute, the distributed optimizer, or more pipeline stages",
        memory.with_expandable_segments),
    Symptom("predicted_too_large",
        "the prediction alone exceeds the device",
        "weights, optimizer state or activations are too large for this layout",
        "`mbr-perf plan` shows the largest part",
        "other sizes of PP, TP, CP or EP, the distributed optimizer, or recompute, before the job is launched",
        memory.predicted_too_large),
    Symptom("layernorm_and_still_out_of_memory",
        "still out of memory with layernorm recomputed",
        "the norms' activations are too small to move the peak",
        "the peak with and without layernorm",
        "a module that frees more (mlp, moe), or whole layers; layernorm is no remedy by itself",
        memory.layernorm_still_oom),
    Symptom("recompute_and_still_out_of_memory",
        "still out of memory with recompute",
        "activations are not all: weights, gradients and optimizer state stay, whatever is recomputed",
        "the predicted parts of the stage",
        "recompute more (`mbr-perf plan` says what fits), shard the optimizer (use_distributed_optimizer), FP8, or a smaller micro-batch",
        memory.recompute_still_oom),
    Symptom("utilization_drop_with_mlp",
        "more than 15 % of the utilization is lost with mlp recomputed",
        "the feed-forward block is most of the layer's FLOPs, and all of them run again",
        "the same job without mlp among recompute_modules",
        "drop mlp; if it then does not fit, a smaller micro-batch, or CPU offloading where PP is 1",
        speed.drop_with_mlp),
    Symptom("core_attn_beside_mlp",
        "core_attn recomputed beside mlp",
        "flash attention recomputes its scores anyway: core_attn costs time again and frees almost nothing",
        "the same job with --recompute_modules mlp",
        "recompute mlp alone",
        speed.core_attn_beside_mlp),
    Symptom("slow_with_full_recompute",
        "slow with full recompute",
        "every layer runs forward twice",
        "the same job with --recompute_modules core_attn",
        "recompute modules instead of layers, as far as it fits: `mbr-perf plan` says which",
        speed.slow_with_full),
    Symptom("more_tensor_parallelism",
        "much slower with more tensor parallelism",
        "every layer exchanges its activations over TP, and fewer data-parallel copies hide less of it",
        "the same job with the smaller TP",
        "go back to the smaller TP; more pipeline stages or recompute cost less for the same memory",
        speed.more_tensor_parallelism),
    Symptom("virtual_stages_against_out_of_memory",
        "the number of virtual stages was changed against running out of memory",
        "interleaving shortens the pipeline's bubble; what a GPU keeps hardly changes",
        "the peaks of both jobs",
        "keep the interleaving that is fastest; look for the other difference between the two jobs first",
        speed.virtual_stages),
    *(row.symptom for row in (*MEGATRON_TEXTS, *LAYOUT_TEXTS)),
    RANKS,
)
# fmt: on


def recognised(facts: Facts) -> tuple[Recognised, ...]:
    """Every row that holds."""
    found: Iterable[Recognised | None] = (row.recognised(facts) for row in SYMPTOMS)
    return tuple(one for one in found if one is not None)


def is_telling(text: str) -> bool:
    """Whether a line of a log says something that a row is known by."""
    lowered = text.lower()
    return any(word in lowered for word in _WORDS) and any(row.text and row.text.search(text) for row in SYMPTOMS)
