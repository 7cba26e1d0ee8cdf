"""The known symptoms of failed and slow jobs with recompute, in the order of output, and megatron-core's own errors."""

import re
from dataclasses import dataclass

from harness.diagnose import seen
from harness.diagnose.seen import Symptom
from harness.diagnose.values import Case, Recognised

_CHECK = "run `mbr-perf check` with the job's settings, which needs no GPU"


@dataclass(frozen=True, slots=True)
class MegatronText:
    """``rule``: our rule that refuses it before the start. ``text``: a part of the message without values.

    ``file``: the file of megatron-core 0.16.1 with it; "" for the launcher and later releases. ``what`` is refused.
    ``most``: matches the largest accepted value in the message, if it has one.
    """

    rule: str
    file: str
    text: str
    what: str
    cause: str
    fix: str
    most: str = ""

    @property
    def symptom(self) -> Symptom:
        """Return the row as a symptom, recognised by its text."""
        return Symptom(
            self.rule,
            f"megatron-core refuses {self.what}",
            self.cause,
            f"run `mbr-perf rules show {self.rule}`, and `mbr-perf check` with the job's settings, which needs no GPU",
            self.fix,
            text=re.compile(re.escape(self.text)),
            most=re.compile(self.most) if self.most else None,
        )


CONFIG, _RANDOM = "transformer/transformer_config.py", "tensor_parallel/random.py"
_EITHER = "choose one of the two"

# fmt: off
MEGATRON_TEXTS: tuple[MegatronText, ...] = (
    MegatronText("R01", CONFIG, "When using recompute_granuarlity: ", "the recompute granularity",
        "megatron-core knows only selective and full", "use --recompute_granularity selective or full, or no recompute"),
    MegatronText("R02", CONFIG, 'must be "block" or "uniform".', "the recompute method",
        "megatron-core knows only block and uniform", "use --recompute_method block or uniform"),
    MegatronText("R03", CONFIG, 'recompute_method must be "block" or "uniform"', "full recompute without a method",
        "full recompute takes layers in uniform units or as one block", "add --recompute_method block or uniform"),
    MegatronText("R04", CONFIG, "recompute_num_layers must be between", "the number of layers of full recompute",
        "full recompute counts layers, per unit (uniform) or per pipeline chunk (block); the number is missing, or larger than "
        "the layers of a pipeline rank", "give --recompute_num_layers N, from 1 to the layers of a pipeline rank",
        r"num_layers_per_pipeline_rank: (\d{1,6})"),
    MegatronText("R05", CONFIG, "recompute_num_layers must be None.", "a number of layers with selective recompute",
        "recompute_num_layers belongs to full recompute; selective recompute names modules",
        "drop --recompute_num_layers, or ask for full recompute with --recompute_method block"),
    MegatronText("R07", CONFIG, "Invalid choices for recompute_modules", "a recompute module",
        "this release does not know the module; it reads a string instead of a list letter by letter",
        "use a list of core_attn, moe_act, layernorm, mla_up_proj, mlp, moe, shared_experts"),
    MegatronText("R08", CONFIG, "moe_act in recompute_modules is only supported with moe_grouped_gemm",
        "moe_act without grouped GEMM", "only the grouped experts can recompute their activation",
        "turn moe_grouped_gemm on, or drop moe_act"),
    MegatronText("R09", CONFIG, "mla_up_proj in recompute_modules is only supported with", "mla_up_proj without MLA",
        "the module is part of multi-latent attention", "drop mla_up_proj"),
    MegatronText("R11", CONFIG, "shared_experts recompute cannot work with", "shared_experts recompute with the overlap of shared experts",
        "the overlapped path never calls the module to recompute", "turn moe_shared_expert_overlap off, or drop shared_experts"),
    MegatronText("R12", CONFIG, "Delayed scaling does not support moe_act and layernorm recompute",
        "moe_act and layernorm with delayed FP8 scaling", "they save inputs in a format that delayed scaling cannot read",
        "use another FP8 recipe (-c fp8_cs or fp8_mx), or drop the two modules"),
    MegatronText("R13", CONFIG, "moe_act and layernorm recompute for fp8 needs", "moe_act and layernorm with this transformer-engine",
        "transformer-engine before 2.6 cannot save their inputs for FP8", "install transformer-engine 2.6 or newer, or drop the two modules"),
    MegatronText("R14", CONFIG, "Do not set --moe-layer-recompute with full", "--moe-layer-recompute with full recompute",
        "it is the old spelling of the selective module moe", "drop --moe-layer-recompute"),
    MegatronText("R16", CONFIG, "CPU offloading does not work when activation recomputation", "CPU offloading with recompute",
        "megatron-core either offloads or recomputes the activations of a layer", "use no recompute, or --activation_offload_layers 0"),
    MegatronText("R17", CONFIG, "CPU offloading can be done only for layers less than", "the number of offloaded layers",
        "at least one layer must stay on the GPU", "use an --activation_offload_layers below the number of layers"),
    MegatronText("R19", "transformer/transformer_block.py", "CPU Offloading is enabled when TE is not present",
        "CPU offloading without transformer-engine", "the offloading is part of transformer-engine", "install transformer-engine"),
    MegatronText("R21", CONFIG, "disable full recomputation when enabling overlap_moe_expert_parallel_comm",
        "full recompute with overlapped expert communication", "the overlap splits a layer into its own pieces",
        "use selective recompute, or no overlap_moe_expert_parallel_comm"),
    MegatronText("R21", CONFIG, "disable recomputation method when enabling overlap_moe_expert_parallel_comm",
        "a recompute method with overlapped expert communication", "the overlap splits a layer into its own pieces",
        "drop --recompute_method, or overlap_moe_expert_parallel_comm"),
    MegatronText("R21", CONFIG, "recompute_num_layers must be None when enabling overlap_moe_expert_parallel_comm",
        "a number of layers with overlapped expert communication", "the overlap splits a layer into its own pieces",
        "drop --recompute_num_layers, or overlap_moe_expert_parallel_comm"),
    MegatronText("R22", "", "disable moe in recompute_modules when enabling overlap_moe_expert_parallel_comm",
        "moe recompute with overlapped expert communication", "the overlap does not call the layer to recompute",
        "drop moe from the modules, or overlap_moe_expert_parallel_comm"),
    MegatronText("T16", "transformer/multi_token_prediction.py", "recompute_num_layers must be 1 for MTP recompute",
        "units of several layers with multi-token prediction", "megatron-core recomputes the layer of multi-token prediction alone", "use full:uniform:1 or full:block:N"),
    MegatronText("F01", CONFIG, "fine_grained_activation_offloading cannot be enabled with cpu_offloading",
        "offloading of modules and of layers at once", "megatron-core offloads either modules or whole layers", _EITHER),
    MegatronText("F03", CONFIG, "Invalid choices for offload_modules", "a module to offload", "this release does not know the module",
        "use core_attn, attn_proj, expert_fc1, moe_act, attn_norm, mlp_norm, qkv_linear"),
    MegatronText("F04", CONFIG, "attn_proj cannot be set to offload_modules alone", "attn_proj offloaded without core_attn",
        "the output of core_attn is the input of attn_proj", "offload core_attn too"),
    MegatronText("F05", "", "Fine-grained activation offloading is only supported with transformer_engine",
        "offloading of modules without transformer-engine", "the offloading is part of transformer-engine's layers", "use kernels.transformer_impl=transformer_engine"),
    MegatronText("F06", "", "NVTE_CPU_OFFLOAD_V1 should be set to 1", "offloading of modules with this environment",
        "transformer-engine 2.10 and newer would move weights too", "set NVTE_CPU_OFFLOAD_V1=1"),
    MegatronText("F09", "", "while recomputing the entire MoE layer", "offloading inside a recomputed MoE layer",
        "a recomputed layer keeps no activations to offload", "drop moe from recompute_modules, or its parts from offload_modules"),
    MegatronText("G03", CONFIG, "full scope cannot be used with other scopes", "the scope full with other scopes",
        "full means whole layers", "use an empty scope for whole layers, or only the parts"),
    MegatronText("G04", CONFIG, "Invalid cuda graph implementation", "the implementation of CUDA graphs",
        "this release does not know it", "use --cuda_graph_impl none, local or transformer_engine"),
    MegatronText("G05", CONFIG, "CUDA graphs not supported with CPU offloading", "CUDA graphs with CPU offloading",
        "CUDA graphs cannot capture copies to the host", "use --cuda_graph_impl none, or --activation_offload_layers 0"),
    MegatronText("G06", CONFIG, "To use full iteration cuda graph, please use", "a graph of the iteration by transformer-engine",
        "only megatron-core's own graphs capture an iteration", "use --cuda_graph_impl local --cuda_graph_scope full_iteration"),
    MegatronText("G07", CONFIG, "must not contain both moe and moe_router", "the scopes moe and moe_router at once",
        "moe already contains moe_router", _EITHER),
    MegatronText("G08", CONFIG, "moe_preprocess cuda graph is only supported with moe_router", "moe_preprocess without moe_router",
        "megatron-core captures them together", "add moe_router to the scope"),
    MegatronText("G09", CONFIG, "moe cuda graph is only supported for MoE.", "MoE scopes in a dense model",
        "the model has no MoE layer", "drop moe and moe_router from the scope"),
    MegatronText("G10", CONFIG, "mlp cuda graph is only supported for dense layers", "the scope mlp where all layers are MoE",
        "the model has no dense layer to capture", "drop mlp from the scope"),
    MegatronText("G11", CONFIG, "moe cuda graph is only supported with drop-padding MoE", "the scope moe with dropless experts",
        "CUDA graphs cannot capture sizes that differ from step to step", "use the scopes moe_router,moe_preprocess, or drop and pad"),
    MegatronText("G12", CONFIG, "moe_preprocess cuda graph is not supported when there are", "the scope moe_preprocess with these experts",
        "it copies sizes to the host, which CUDA graphs cannot capture", "drop moe_preprocess from the scope, or pad to capacity"),
    MegatronText("G14", CONFIG, "moe recompute is not supported with moe_router CUDA graph", "moe recompute with a captured router",
        "a graph inside a recomputed layer cannot run twice", "recompute moe_act instead of moe, or drop moe_router from the scope"),
    MegatronText("G15", CONFIG, "attention dropout is not supported with graphed attention recomputation", "core_attn in a graph with dropout",
        "a graph cannot draw the same random numbers again", "use attention_dropout 0, or drop core_attn"),
    MegatronText("G16", CONFIG, "hidden dropout is not supported with graphed MLP/MoE recomputation", "mlp or moe in a graph with dropout",
        "a graph cannot draw the same random numbers again", "use hidden_dropout 0, or drop the module"),
    MegatronText("G17", CONFIG, "moe_input_jitter_eps is not supported with graphed moe recomputation", "moe in a graph with jitter",
        "a graph cannot draw the same random numbers again", "use no moe_input_jitter_eps, or drop moe"),
    MegatronText("G18", CONFIG, "CUDA graph scope on moe and mlp is not", "graphs of moe and mlp with overlapped expert communication",
        "the overlap splits them into its own pieces", "drop moe and mlp from the scope"),
    MegatronText("G20", "", 'cuda_graph_modules must be empty when cuda_graph_impl="full_iteration"', "modules of a captured iteration",
        "the graph already contains the whole iteration", "drop --cuda_graph_scope"),
    MegatronText("G22", _RANDOM, "Checkpointing is not compatible with .grad()", "recompute inside a captured layer",
        "capture warms up with autograd.grad, which does not support recompute (local graphs in 0.16 and 0.17, "
        "transformer-engine before 2.12)", "use --cuda_graph_impl none, or a --cuda_graph_scope without the recomputed modules"),
    MegatronText("G24", "", "te_checkpoint requires .backward()", "FP8 recompute inside a local graph",
        "capture warms up with autograd.grad, which does not support recompute",
        "use --cuda_graph_impl none, or a --cuda_graph_scope without the recomputed modules"),
    MegatronText("V03", "transformer/cuda_graphs.py", "Setting NCCL_GRAPH_REGISTER=0 to avoid illegal memory access",
        "CUDA graphs with expandable segments", "NCCL may register buffers of a graph that expandable segments move",
        "set NCCL_GRAPH_REGISTER=0, or use no expandable segments"),
)
# fmt: on

_BLOCK = "transformer/transformer_block.py"
_UNEVEN = "layers per pipeline stage"
_VIRTUAL = "the virtual stages of a pipeline stage must have equally many layers"
_FIT_VIRTUAL = "use a --virtual_pipeline_model_parallel_size that divides the layers of every stage, or none"
_SPREAD = "the stages between the first and the last stage must have equally many layers"
_FIT_SPREAD = (
    "choose num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage so that the other layers divide "
    "evenly"
)
_COUNTED = (
    "embedding and loss count as a layer each, and the sum does not divide evenly over pipeline or virtual stages"
)
_FIT_COUNTED = "use a -pp and a -vp that divide the sum, or drop account_for_*_in_pipeline_split"

# fmt: off
LAYOUT_TEXTS: tuple[MegatronText, ...] = (
    MegatronText("P15", CONFIG, "number of layers at first stage:", _UNEVEN, _VIRTUAL, _FIT_VIRTUAL),
    MegatronText("P15", CONFIG, "number of layers at last stage:", _UNEVEN, _VIRTUAL, _FIT_VIRTUAL),
    MegatronText("P15", CONFIG, "number of layers on each middle pipeline rank:", _UNEVEN, _VIRTUAL, _FIT_VIRTUAL),
    MegatronText("P15", CONFIG, "number of layers at middle stage:", _UNEVEN, _SPREAD, _FIT_SPREAD),
    MegatronText("P15", CONFIG, "middle layers remaining but", _UNEVEN, _SPREAD, _FIT_SPREAD),
    MegatronText("P15", _BLOCK, "left over layers must be divisible by left over stages", _UNEVEN, _SPREAD, _FIT_SPREAD),
    MegatronText("P16", CONFIG, "number of middle layers:", _UNEVEN, _COUNTED, _FIT_COUNTED),
    MegatronText("P16", CONFIG, "account_for_loss_in_pipeline_split must be divisible", _UNEVEN, _COUNTED, _FIT_COUNTED),
    MegatronText("P16", CONFIG, "account_for_loss_in_pipeline_split) must be divisible", _UNEVEN, _COUNTED, _FIT_COUNTED),
    MegatronText("P08", _BLOCK, "num_layers should be divisible by pipeline_model_parallel_size", "the number of layers",
        "every pipeline stage must have the same number of layers", "use a -pp that divides the layers, or pipeline_model_parallel_layout"),
    MegatronText("P09", _BLOCK, "should be divisible by vp_size", _UNEVEN, _VIRTUAL, _FIT_VIRTUAL),
    MegatronText("P12", "transformer/pipeline_parallel_layer_layout.py", "pipeline_model_parallel_layout must be divisible",
        "the pipeline layout", "it must have PP x VP stages", "write a layout of PP x VP stages, with '|' after each but the last"),
    MegatronText("P03", CONFIG, ") must be a multiple of tensor_model_parallel_size", "the attention heads",
        "TP must split the heads evenly", "use a -tp that divides num_attention_heads"),
    MegatronText("P04", CONFIG, ") must be a multiple or divisor of tensor_model_parallel_size", "the query groups",
        "TP must split or copy the query groups evenly", "use a -tp that divides num_query_groups, or is a multiple of them"),
    MegatronText("A06", "num_microbatches_calculator.py", "is not divisible by micro batch size", "the global batch size",
        "every data-parallel copy must run the same number of micro-batches", "use a -gb that is a multiple of -mb times DP"),
)
# fmt: on
# Its text contains a value.
RANKS = Symptom(
    "A01",
    "megatron-core refuses the number of ranks",
    "the number of ranks is not a multiple of TP x PP x CP, or of ETP x EP x PP with experts",
    "run `mbr-perf rules show A01` and `mbr-perf rules show A03`, and `mbr-perf check` with the job's settings",
    "change the GPUs (-ng), or use smaller -tp, -pp, -cp, -ep, so that the number of ranks is a multiple",
    text=re.compile(r"world_size \(\d{1,7}\) is not divisible by"),
)

# Every text contains one of these, in lower case. Searching for them first keeps gigabytes of logs fast.
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
        "whole layers are recomputed, but CUDA graphs capture parts of a layer",
        _CHECK,
        "recompute modules instead of layers, or use --cuda_graph_impl none, or graphs of the full iteration "
        "(--cuda_graph_impl local --cuda_graph_scope full_iteration)",
        seen.full_recompute_with_graphs,
        _text(r"full recompute is only supported with full iteration CUDA graph"
              r"|recompute[_-]granularity must not be full when CUDA Graphs are enabled")),
    Symptom("pipeline_with_cpu_offloading",
        "megatron-core refuses CPU offloading with pipeline stages",
        "activations of whole layers are offloaded to the host while PP is above 1",
        "check pipeline_model_parallel_size and cpu_offloading in the job's settings",
        "use no offloading (--activation_offload_layers 0), or one pipeline stage (-pp 1)",
        seen.pipeline_with_offloading,
        _text(r"no support for Pipeline parallelism with CPU offloading")),
    Symptom("user_buffers_with_expandable_segments",
        "NCCL user buffers fail with expandable segments",
        "buffers registered with NCCL come from memory pools that expandable segments do not have",
        "check nccl_ub and PYTORCH_CUDA_ALLOC_CONF of the job",
        "drop expandable_segments:True, or nccl_ub (--use-nccl-ub)",
        seen.user_buffers_with_expandable_segments,
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
        "sequence parallelism already splits saved layer inputs over TP",
        _CHECK,
        "drop --distribute_saved_activations",
        text=_text(r"distribute_saved_activations.{0,80}sequence.parallel|Can distribute recomputed activations only")),
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
        "recompute more (`mbr-perf plan` shows what fits), shard the optimizer (use_distributed_optimizer), or use FP8 or a smaller micro-batch",
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
    *(row.symptom for row in (*MEGATRON_TEXTS, *LAYOUT_TEXTS)),
    RANKS,
)
# fmt: on


def recognised(case: Case) -> tuple[Recognised, ...]:
    """Return every row that applies."""
    return tuple(found for row in SYMPTOMS if (found := row.recognised(case)) is not None)


def names_symptom(text: str) -> bool:
    """Return whether a line of a log matches the text of a row."""
    lowered = text.lower()
    return any(word in lowered for word in _WORDS) and any(row.text and row.text.search(text) for row in SYMPTOMS)
