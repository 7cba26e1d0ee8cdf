"""Rules for parallel sizes, pipeline layout and batch that megatron-core's configs, groups and schedules refuse."""

from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import replace

from harness.experiment.layout_text import LAYER_CODES
from harness.experiment.rules.rule import ARGUMENTS, CONFIG, Evidence, Finding, Predicate, Rule, Situation, Values

_CUT = {
    "P08": ("pipeline_model_parallel_size", "-pp {}", "another -pp"),
    "P09": ("virtual_pipeline_model_parallel_size", "-vp none or {}", "-vp none"),
}
"""What a rule of layouts asks to divide: the field, and what to type where sizes of it fit and where none does."""


def _layout(rule: str) -> Predicate:
    def fires(s: Situation) -> Values | None:
        error = s.layout_error
        if error is None or error.rule != rule:
            return None
        known: Values = {"problem": error.message, "mcore": error.mcore_text}
        return known | (_other_cut(s, *_CUT[rule]) if rule in _CUT else {})

    return fires


def _other_cut(s: Situation, name: str, typed: str, otherwise: str) -> Values:
    """Return what to type: the sizes that fit, or ``otherwise``."""

    def is_uncut(other: Situation) -> bool:
        uneven = other.pp != s.pp and (_world_indivisible(other) or _expert_grid_indivisible(other))
        return bool(other.layout_error or uneven)

    sizes = _sizes(s, name, range(2, s.spec.model.num_layers + 1), is_uncut)
    return {"sizes": typed.format(sizes) if sizes else otherwise}


def _sizes(s: Situation, name: str, sizes: Iterable[int], is_broken: Callable[[Situation], bool]) -> str:
    """Name the sizes of one kind of parallelism with which the request is not broken."""
    parts = ((size, s.spec.parallelism.model_copy(update={name: size})) for size in sizes)
    others = ((size, replace(s, spec=s.spec.model_copy(update={"parallelism": part}))) for size, part in parts)
    *first, last = [str(size) for size, other in others if not is_broken(other)] or [""]
    return f"{', '.join(first)} or {last}" if first else last


def _of_layout(rule: str, fix: str, source: str, evidence: Evidence = "run") -> Rule:
    return Rule(rule, "error", _layout(rule), "{problem}", fix, source, evidence, "{mcore}")


def _world_indivisible(s: Situation) -> bool:
    return s.spec.num_gpus % s.spec.parallelism.model_parallel_size != 0


def _expert_grid_indivisible(s: Situation) -> Values | None:
    grid = s.etp * s.ep * s.pp
    is_uneven = s.spec.num_gpus % grid and (s.moe is not None or s.ep > 1)
    return {"grid": grid} if is_uneven else None


def _batch_indivisible(s: Situation) -> Values | None:
    size, dp = s.spec.batch.global_batch_size, s.spec.data_parallel_size
    samples = s.spec.batch.micro_batch_size * dp
    if _world_indivisible(s) or size % samples == 0:
        return None
    return {"dp": dp, "samples": samples, "near": max(samples, size // samples * samples)}


def _microbatch_group(s: Situation) -> int:
    return s.spec.parallelism.microbatch_group_size_per_vp_stage or s.pp


def _group_out_of_range(s: Situation) -> Values | None:
    if s.vp == 1 or s.pp == 1 or s.num_microbatches is None:
        return None
    group = _microbatch_group(s)
    return {"group": group} if not s.pp <= group <= s.num_microbatches else None


def _group_leaves_few(s: Situation) -> Values | None:
    if s.vp == 1 or s.pp == 1 or s.num_microbatches is None or _group_out_of_range(s):
        return None
    group = _microbatch_group(s)
    rest = s.num_microbatches % group
    return {"group": group, "rest": rest} if 0 < rest < s.pp else None


def _tokens_over_tp(s: Situation) -> Values | None:
    tokens = s.spec.batch.seq_length // s.cp
    return {"tokens": tokens} if s.spec.parallelism.sequence_parallel and tokens % s.tp else None


def _uneven_ffn(s: Situation) -> int | None:
    widths = [s.spec.model.ffn_hidden_size] if 0 in s.spec.model.moe_layer_pattern else []
    if s.moe is not None and s.moe.moe_shared_expert_intermediate_size:
        widths.append(s.moe.moe_shared_expert_intermediate_size)
    return next((width for width in widths if width % s.tp), None)


def _fused_rope(s: Situation) -> str | None:
    mla = s.spec.model.mla
    return mla.rope_type if mla and mla.apply_rope_fusion else None


def _heads_uneven_over_cp(s: Situation) -> Values | None:
    heads, groups = s.spec.model.num_attention_heads // s.tp, max(1, s.spec.model.query_groups // s.tp)
    is_uneven = heads % s.cp or groups % s.cp
    return {"heads": heads, "groups": groups} if is_uneven and s.spec.parallelism.cp_comm_type == "a2a" else None


def _unequal_widths(s: Situation) -> Values | None:
    mla = s.spec.model.mla if s.cp > 1 and s.spec.parallelism.cp_comm_type == "a2a" else None
    keys = mla.qk_head_dim + mla.qk_pos_emb_head_dim if mla else 0
    return {"keys": keys, "values": mla.v_head_dim} if mla and keys != mla.v_head_dim else None


_TE_CONTEXT = "transformer-engine 2.11 dot_product_attention/context_parallel.py"
RULES = (
    Rule("P01", "error", lambda s: s.spec.parallelism.sequence_parallel and s.tp == 1,
         "sequence_parallel needs tensor_model_parallel_size 2 or more",
         "use parallelism.sequence_parallel=false, or -tp 2 or more",
         "model_parallel_config.py:410", "run", "Cannot use sequence parallelism without tensor parallelism"),
    Rule("S01", "error",
         lambda s: s.spec.model.mla is None and s.spec.model.num_attention_heads % s.spec.model.query_groups != 0,
         "num_attention_heads {s.spec.model.num_attention_heads} is not a multiple of num_query_groups "
         "{s.spec.model.query_groups}",
         "use a divisor of the heads as model.num_query_groups",
         "attention.py", "run"),
    Rule("P03", "error", lambda s: s.spec.model.num_attention_heads % s.tp != 0,
         "{s.spec.model.num_attention_heads} attention heads cannot be split over TP {s.tp}",
         "use a tensor_model_parallel_size that divides the heads",
         f"{CONFIG}:924", "run",
         "num_attention_heads ({s.spec.model.num_attention_heads}) must be a multiple of tensor_model_parallel_size "
         "({s.tp})."),
    Rule("P04", "error",
         lambda s: s.spec.model.mla is None and s.spec.model.query_groups % s.tp != 0
         and s.tp % s.spec.model.query_groups != 0,
         "{s.spec.model.query_groups} query groups and TP {s.tp}: neither divides the other",
         "use a tensor_model_parallel_size that divides num_query_groups",
         f"{CONFIG}:939", "run",
         "num_query_groups ({s.spec.model.query_groups}) must be a multiple or divisor of tensor_model_parallel_size "
         "({s.tp})."),
    Rule("S02", "error", lambda s: _uneven_ffn(s) is not None,
         "ffn_hidden_size of a dense or shared MLP is not a multiple of tensor_model_parallel_size {s.tp}",
         "use a multiple of {s.tp}, or a smaller -tp",
         "tensor_parallel/layers.py", "run", "is not divisible by {s.tp}"),
    Rule("P05", "error", lambda s: s.ep > 1 and s.moe is None,
         "expert_model_parallel_size {s.ep}: the model has no experts",
         "use -ep 1",
         f"{CONFIG}:1048", "run", "num_moe_experts must be non None"),
    Rule("P36", "error", lambda s: s.moe is None and (s.spec.parallelism.expert_tensor_parallel_size or 1) > 1,
         "expert_tensor_parallel_size {s.etp}: the model has no experts",
         "leave out -et",
         "parallel_state.py:765", "harness"),
    Rule("P06", "error", lambda s: s.moe is not None and s.moe.num_moe_experts % s.ep != 0,
         "{s.moe.num_moe_experts} experts cannot be split over EP {s.ep}",
         "use an expert_model_parallel_size that divides the experts",
         "transformer/moe/moe_layer.py:101; " + ARGUMENTS, "run", "Number of experts should be a multiple of expert"),
    _of_layout("P08", "use {sizes}, or set pipeline_model_parallel_layout", "transformer_block.py:155"),
    _of_layout("P09", "use {sizes}, or set pipeline_model_parallel_layout", "transformer_block.py:174"),
    _of_layout("P10", "keep one of the two", f"{CONFIG}:1294"),
    _of_layout("P11", "write where embedding and loss are in the layout", f"{CONFIG}:1305"),
    _of_layout("P12", "write PP x VP stages, each ended by '|' but the last",
               "transformer/pipeline_parallel_layer_layout.py:40"),
    _of_layout("P13", f"write stages of {', '.join(LAYER_CODES)}, such as Et*3|(tt|)*29m|L",
               "transformer/pipeline_parallel_layer_layout.py:94"),
    _of_layout("P14", "drop virtual_pipeline_model_parallel_size: the layout already sets it", f"{CONFIG}:1335"),
    _of_layout("P15", "choose num_layers_in_first/last_pipeline_stage so that the rest divides", f"{CONFIG}:1377"),
    _of_layout("P16", "drop account_for_* or use a pipeline size that divides the sum", f"{CONFIG}:1447"),
    _of_layout("A12", "use -vp none", "parallel_state.py:745", "source"),
    Rule("P31", "error", lambda s: s.cp > 1 and not s.uses_te and not s.gpu.is_cpu,
         "context_parallel_size {s.cp} does not work with the local attention",
         "use kernels.transformer_impl=transformer_engine, or -cp 1",
         "transformer/dot_product_attention.py:57", "source",
         "Context parallelism is only supported by TEDotProductAttention!"),
    Rule("P38", "error", _heads_uneven_over_cp,
         "cp_comm_type a2a: heads ({heads}) and query groups ({groups}) of a TP rank must be multiples of CP {s.cp}",
         "use a smaller -tp or -cp, or --set parallelism.cp_comm_type=p2p",
         f"{_TE_CONTEXT}:3365", "source", "The number of attention heads needs to be divisible by CP size!"),
    Rule("P39", "error", _unequal_widths,
         "cp_comm_type a2a: not with multi-latent attention, whose keys are {keys} wide and values {values}",
         "use --set parallelism.cp_comm_type=p2p",
         f"{_TE_CONTEXT}:4032", "source", "Context parallelism does not support MLA with"),
    Rule("P40", "error", lambda s: s.uses_te and s.cp > 1 and s.spec.kernels.attention_backend == "unfused",
         "attention_backend unfused: transformer-engine has no unfused attention for context parallelism (CP {s.cp})",
         "use kernels.attention_backend=auto, or -cp 1",
         "transformer-engine 2.11 dot_product_attention/utils.py:756", "source"),
    Rule("A01", "error", _world_indivisible,
         "num_gpus {s.spec.num_gpus} is not a multiple of TP {s.tp} x PP {s.pp} x CP {s.cp}",
         "use a multiple of {s.spec.parallelism.model_parallel_size} GPUs, or smaller parallel sizes",
         "parallel_state.py:740", "source",
         "world_size ({s.spec.num_gpus}) is not divisible by {s.spec.parallelism.model_parallel_size}"),
    Rule("A03", "error", _expert_grid_indivisible,
         "num_gpus {s.spec.num_gpus} is not a multiple of ETP {s.etp} x EP {s.ep} x PP {s.pp}",
         "use a multiple of {grid} GPUs, or a smaller -ep or -et",
         "parallel_state.py:785", "source",
         "world_size ({s.spec.num_gpus}) is not divisible by expert_tensor_model_pipeline_parallel size ({grid})"),
    Rule("A06", "error", _batch_indivisible,
         "global_batch_size {s.spec.batch.global_batch_size} is not a multiple of micro_batch_size "
         "{s.spec.batch.micro_batch_size} x DP {dp}",
         "use a multiple of micro_batch_size x DP, such as -gb {near}",
         "num_microbatches_calculator.py:340", "run",
         "global batch size ({s.spec.batch.global_batch_size}) is not divisible by micro batch size "
         "({s.spec.batch.micro_batch_size}) times data parallel size ({dp})"),
    Rule("A07", "error", _group_out_of_range,
         "interleaved schedule: the group size {group} must be at least PP {s.pp} and at most the "
         "{s.num_microbatches} micro-batches of a step",
         "use a global_batch_size of at least PP micro-batches per GPU, or no virtual stages",
         "pipeline_parallel/schedules.py:995", "source",
         "The number of contiguous micro-batches in a virtual pipeline stageshould range in"),
    Rule("P34a", "error", lambda s: s.spec.parallelism.defer_embedding_wgrad_compute and s.pp == 1,
         "defer_embedding_wgrad_compute needs pipeline parallelism; PP is 1",
         "drop the deferral, or use a pipeline_model_parallel_size of 2 or more",
         "model_parallel_config.py:425", "run", "Cannot defer embedding wgrad compute when pipeline"),
    Rule("P34b", "error",
         lambda s: s.spec.parallelism.defer_embedding_wgrad_compute and s.pp > 1
         and not (s.uses_te and s.spec.kernels.gradient_accumulation_fusion),
         "defer_embedding_wgrad_compute needs gradient accumulation fusion",
         "set kernels.gradient_accumulation_fusion with transformer-engine layers, or drop the deferral",
         "model_parallel_config.py:430", "run", "Cannot defer embedding wgrad compute when gradient accumulation"),
    Rule("P34c", "error",
         lambda s: s.spec.parallelism.defer_embedding_wgrad_compute and bool(s.spec.model.mtp_num_layers),
         "defer_embedding_wgrad_compute gives wrong weight gradients with multi-token prediction",
         "drop the deferral",
         "tensor_parallel/layers.py:1003", "source"),
    Rule("P34d", "error", lambda s: s.spec.parallelism.defer_embedding_wgrad_compute and s.software.apex is False,
         "defer_embedding_wgrad_compute needs Apex's fused_weight_gradient_mlp_cuda, which is not installed",
         "install Apex with --cuda_ext, or drop the deferral",
         "utils.py:1123", "source", "No module named 'fused_weight_gradient_mlp_cuda'"),
    Rule("A07", "error", _group_leaves_few,
         "interleaved schedule: {s.num_microbatches} micro-batches in groups of {group} leave {rest}, fewer than "
         "PP {s.pp}",
         "use a global_batch_size whose micro-batches are a multiple of {group}",
         "pipeline_parallel/schedules.py:1007", "source",
         "should be 0, or larger than or equal to the pipeline-parallel size, but it is {rest}."),
    Rule("A16", "error", lambda s: s.cp > 1 and s.spec.batch.seq_length % (2 * s.cp) != 0,
         "seq_length {s.spec.batch.seq_length} is not a multiple of 2 x CP {s.cp}",
         "use a seq_length that is a multiple",
         ARGUMENTS, "source", "seq-length should be a multiple of 2 *"),
    Rule("A17", "error", _tokens_over_tp,
         "sequence_parallel: {tokens} tokens per context rank cannot be split over TP {s.tp}",
         "use a seq_length that is a multiple of CP x TP",
         "tensor_parallel/mappings.py:70", "source",
         "First dimension of the tensor should be divisible by tensor parallel size"),
    Rule("P25a", "error", lambda s: _fused_rope(s) not in (None, "yarn"),
         "apply_rope_fusion needs rope_type yarn; it is {s.spec.model.mla.rope_type}",
         "use model.mla.rope_type=yarn, or drop apply_rope_fusion",
         "transformer_config.py:2068", "run", "apply_rope_fusion for MLA only works with YARN RoPE."),
    Rule("P25b", "error", lambda s: s.gpu.is_cpu and _fused_rope(s) is not None,
         "apply_rope_fusion of multi-latent attention is a Triton kernel and needs a GPU",
         "drop model.mla.apply_rope_fusion",
         "fusions/fused_mla_yarn_rope_apply.py", "source"),
    Rule("A22", "error",
         lambda s: s.spec.model.mla is not None and s.spec.model.query_groups != s.spec.model.num_attention_heads,
         "multi-latent attention excludes grouped-query attention (num_query_groups)",
         "drop model.num_query_groups",
         ARGUMENTS, "source", "Group query attention is mutually exclusive"),
    Rule("A24", "warning",
         lambda s: bool(s.spec.model.mtp_num_layers) and s.spec.model.position_embedding_type == "learned_absolute",
         "Megatron-LM's launcher refuses MTP layers with learned position embeddings",
         "use model.position_embedding_type=rope",
         ARGUMENTS, "source", until="0.20.0dev0"),
    Rule("A25", "warning", lambda s: s.tp > s.spec.gpus_per_node,
         "TP {s.tp} spans nodes of {s.spec.gpus_per_node} GPUs, which slows every layer",
         "use a tensor_model_parallel_size within one node",
         "mbr-perf", "harness"),
)  # fmt: skip

_DIVIDED: dict[str, Callable[[Situation], str]] = {
    "P03": lambda s: f"{s.spec.model.num_attention_heads} heads",
    "P04": lambda s: f"{s.spec.model.query_groups} query groups",
    "S02": lambda s: f"FFN width {_uneven_ffn(s)}",
    "A17": lambda s: f"{s.spec.batch.seq_length // s.cp} tokens",
    "A01": lambda s: f"{s.spec.num_gpus} GPUs",
}
"""What a tensor parallel size divides, by the rule that demands it."""


def one_cause(findings: Sequence[Finding], s: Situation, force: Set[str]) -> list[Finding]:
    """Merge the errors of one tensor parallel size into the first of them, which names the sizes that divide all."""
    broken = {each.id: each for each in findings if each.id in _DIVIDED.keys() - force}
    if s.spec.num_gpus % s.tp == 0:
        broken.pop("A01", None)
    first = next((broken[name] for name in ("P03", "P04", "S02") if name in broken), None)
    if first is None:
        return list(findings)
    merged = _of_size(first, broken, s)
    return [merged if each is first else each for each in findings if each is first or each.id not in broken]


def _of_size(first: Finding, broken: Collection[str], s: Situation) -> Finding:
    what = ", ".join(text(s) for name, text in _DIVIDED.items() if name in broken)
    rules = [row for row in RULES if row.id in _DIVIDED]
    sized = range(1, s.spec.gpus_per_node + 1)
    sizes = _sizes(s, "tensor_model_parallel_size", sized, lambda other: any(row.judge(other) for row in rules))
    fix = f"use -tp {sizes}" if sizes else "use a size that divides them"
    return first.model_copy(update={"message": f"TP {s.tp} does not divide {what}", "fix": fix})
