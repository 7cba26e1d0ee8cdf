"""The tables of recipes/README.md: keys of recipe, suite and sweep files, from their models; files of this checkout.

`python -m harness.resolve.reference` renews only the blocks between the marks of the README.
"""

import re
import types
from collections.abc import Callable, Iterable
from typing import Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from harness.experiment.gpu import GPUS, PRECISIONS
from harness.experiment.recompute import MODULES
from harness.experiment.user_buffers import METHODS, NAMED, UserBuffers
from harness.resolve.find import recipes_dir
from harness.resolve.recipe import SECTION_MODELS, TOP_SECTIONS, PointKey, RecipeHeader
from harness.resolve.suite import ExpectedFailure
from harness.resolve.suite_file import CaseEntry, SuiteFile, SuiteSettings, read_suite, suite_files
from harness.resolve.sweep_file import SHORT_NAMES, SweepFile, read_sweep_file, sweep_files

_BLOCK = re.compile(r"(?<=<!-- generated: )([a-z ]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


def renewed(readme: str) -> str:
    """Return the README with every generated block renewed from the models and the files of this checkout."""
    return _BLOCK.sub(lambda block: f"{block[1]}{block[2]}\n{BLOCKS[block[1]]().strip()}\n\n", readme)


def _settings() -> str:
    parts = [
        _section("The file", "file", RecipeHeader),
        "Then `model`, `defaults`, `profiles` (shared settings by name) and `points` (a list).\n",
        _section("A point", "point", PointKey),
        f"GPU types: {_names(GPUS)}. Precisions: {_names(PRECISIONS)}.\n",
        f"Sections of a point, of `defaults` and of a profile: {_names(TOP_SECTIONS)}.\n",
    ]
    return "\n".join([*parts, *(_section(path, path, model) for path, model in SECTION_MODELS.items())])


def _section(title: str, section: str, model: type[BaseModel]) -> str:
    about = " ".join((model.__doc__ or "").replace("``", "`").split())
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, info in model.model_fields.items():
        if f"{section}.{name}" not in SECTION_MODELS:
            meaning = info.description or MEANINGS[section][name]
            rows.append(f"| `{name}` | {_type(info)} | {_default(info)} | {meaning} |")
    return f"## {title}\n\n{about}\n\n" + "\n".join(rows) + "\n"


def _sweep_keys() -> str:
    rows = [f"| `{name}` | {info.description} |" for name, info in SweepFile.model_fields.items()]
    axes = f"Axes: `recompute`, {_names(SHORT_NAMES)}, any other long option, `env.NAME`, `section.field`."
    return "\n".join(["| key | meaning |", "|---|---|", *rows, "", axes])


def _sweep_files() -> str:
    sweeps = {path.stem: read_sweep_file(path.stem) for path in sweep_files(recipes_dir())}
    rows = [f"| `{name}` | {sweep.title} | {sweep.source} |" for name, sweep in sweeps.items()]
    return "\n".join(["| file | about | source |", "|---|---|---|", *rows])


def _suite_keys() -> str:
    both = SuiteSettings.model_fields
    own = {name: info for name, info in CaseEntry.model_fields.items() if name not in both}
    groups = {"file": SuiteFile.model_fields, "both": both, "case": own, "`expected`": ExpectedFailure.model_fields}
    rows = [
        f"| `{name}` | {of} | {info.description} |"
        for of, fields in groups.items()
        for name, info in fields.items()
        if info.description
    ]
    return "\n".join(["| key | of | meaning |", "|---|---|---|", *rows])


def _suite_files() -> str:
    suites = [read_suite(path.stem) for path in suite_files(recipes_dir())]
    rows = [f"| `{suite.name}` | {len(suite.cases)} | {suite.title} | {suite.source} |" for suite in suites]
    return "\n".join(["| suite | cases | about | source |", "|---|---|---|---|", *rows])


def _user_buffers() -> str:
    """Return the tables of values that ``kernels.tp_comm_overlap_cfg`` may hold."""
    gemms = [
        f"| `{name}` | {' '.join(f'`{method}`' for method in _methods(info))} |"
        for name, info in UserBuffers.model_fields.items()
    ]
    settings = [
        f"| `{_method_of(model)}` | "
        + ", ".join(f"`{key}` {_default(info)}" for key, info in model.model_fields.items() if key != "method")
        + " |"
        for model in METHODS
    ]
    names = [f"- `{name}`" for name in NAMED]
    return "\n".join(
        [
            "| GEMM | methods |",
            "|---|---|",
            *gemms,
            "",
            "| method | settings with their defaults |",
            "|---|---|",
            *settings,
            "",
            "Names:",
            "",
            *names,
        ]
    )


def _methods(info: FieldInfo) -> tuple[str, ...]:
    """Return the methods that a buffer may have."""
    offered = str(info.annotation)
    return tuple(_method_of(model) for model in METHODS if model.__name__ in offered)


def _method_of(model: type[BaseModel]) -> str:
    return str(get_args(model.model_fields["method"].annotation)[0])


def _type(info: FieldInfo) -> str:
    return _annotation(info.annotation, tuple(info.metadata)).replace("|", "\\|")


def _annotation(annotation: object, bounds: tuple[object, ...]) -> str:
    if annotation is type(None):
        return "null"
    if get_origin(annotation) is Literal:
        return " ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) is tuple:
        return f"list of {_annotation(get_args(annotation)[0], ())}"
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(_annotation(arm, bounds) for arm in get_args(annotation))
    if hasattr(annotation, "__metadata__"):
        constraints = [c for m in annotation.__metadata__ for c in getattr(m, "metadata", [m])]
        return _annotation(get_args(annotation)[0], (*bounds, *constraints))
    names = {int: "integer", float: "number", str: "text", bool: "true or false", UserBuffers: "mapping or name"}
    name = names[annotation] if isinstance(annotation, type) and annotation in names else str(annotation)
    limits = (_limit(bound) for bound in bounds if annotation in (int, float))
    return " ".join(filter(None, (name, *limits)))


def _limit(bound: object) -> str:
    for attribute, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
        if hasattr(bound, attribute):
            return f"{sign} {getattr(bound, attribute)}"
    return ""


def _default(info: FieldInfo) -> str:
    if info.default is PydanticUndefined:
        return "required"
    if info.default == ():
        return "empty"
    return f"`{_yaml(info.default)}`"


def _yaml(value: object) -> str:
    """Format a default as a recipe writes it: 1.0e-05, not 1e-05, which YAML 1.1 reads as text."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    return text.replace("e-", ".0e-") if isinstance(value, float) and "e-" in text and "." not in text else text


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


_MODEL = {
    "num_layers": "decoder layers, without multi-token prediction",
    "hidden_size": "width of the residual stream",
    "ffn_hidden_size": "inner width of a dense feed-forward block",
    "num_attention_heads": "query heads",
    "num_query_groups": "key/value heads; null: as many as query heads",
    "kv_channels": "channels of one head; null: hidden_size / num_attention_heads",
    "vocab_size": "tokens in the vocabulary, before padding",
    "make_vocab_size_divisible_by": "the vocabulary is padded to a multiple of this times TP",
    "share_embeddings_and_output_weights": "one matrix for input embedding and output",
    "gated_linear_unit": "feed-forward with a gate (SwiGLU with silu)",
    "activation_func": "activation of the feed-forward blocks",
    "glu_linear_offset": "added to the part of a gated feed-forward block that has no activation",
    "activation_func_clamp_value": "limit of both parts of a gated feed-forward block (`swiglu_limit`); null: none",
    "add_bias_linear": "biases in all linear layers",
    "add_qkv_bias": "biases in the QKV projection only",
    "normalization": "kind of norm",
    "layernorm_epsilon": "added to the variance in norms",
    "layernorm_zero_centered_gamma": "norm scales are stored as gamma - 1",
    "qk_layernorm": "norms on queries and keys",
    "attention_output_gate": "a gate on the output of attention",
    "softmax_type": "`learnable`: one attention sink per head",
    "window_size": "tokens that a query sees before and after itself, -1: all; null: no sliding window",
    "window_attn_skip_freq": "n: every n-th layer has no window; a list: 1 with, 0 without; null: every layer has it",
    "position_embedding_type": "how positions enter",
    "rotary_base": "base of the rotary frequencies",
    "rotary_percent": "share of a head's channels that is rotated",
    "rope_scaling_factor": "Llama 3.1's scaling of rotary frequencies; null: none",
    "attention_dropout": "probability, on attention weights",
    "hidden_dropout": "probability, on block outputs",
    "mtp_num_layers": "multi-token-prediction layers; null: none",
    "mtp_loss_scaling_factor": "weight of the multi-token-prediction loss",
}
_MOE = {
    "num_moe_experts": "routed experts of a MoE layer",
    "moe_router_topk": "experts per token",
    "moe_ffn_hidden_size": "inner width of one expert",
    "moe_layer_freq": "n: every n-th layer is MoE; a list or [0]*3+[1]*58: 0 dense, 1 MoE",
    "moe_shared_expert_intermediate_size": "inner width of all shared experts together; null: none",
    "moe_shared_expert_gate": "a gate on the output of the shared experts",
    "moe_router_load_balancing_type": "how the router is kept balanced",
    "moe_aux_loss_coeff": "weight of the balancing loss",
    "moe_router_pre_softmax": "softmax before choosing experts instead of after",
    "moe_router_score_function": "what turns router logits into scores",
    "moe_router_num_groups": "groups of experts for group-limited routing; null: no groups",
    "moe_router_group_topk": "groups that one token may use",
    "moe_router_topk_scaling_factor": "factor on the chosen scores; null: 1",
    "moe_router_enable_expert_bias": "balance by a bias per expert instead of a loss",
    "moe_router_bias_update_rate": "step of that bias",
    "moe_router_dtype": "precision of routing; null: that of the activations",
    "moe_router_force_load_balancing": "replace router logits by random ones, so that every run does equal work",
    "moe_grouped_gemm": "all local experts in one grouped matrix product",
}
_MLA = {
    "q_lora_rank": "rank of compressed queries; null: not compressed",
    "kv_lora_rank": "rank of compressed keys and values",
    "qk_head_dim": "channels of a head without position",
    "qk_pos_emb_head_dim": "rotated channels of a head",
    "v_head_dim": "value channels of a head",
    "rope_type": "kind of rotary embedding",
    "rotary_scaling_factor": "YaRN's extension factor",
    "original_max_position_embeddings": "tokens; context before the extension",
    "mscale": "YaRN's attention scale",
    "mscale_all_dim": "YaRN's attention scale for all channels",
    "apply_rope_fusion": "megatron-core's fused (Triton) rotary embedding; needs rope_type yarn and a GPU",
}
_YARN = {
    "yarn_rotary_scaling_factor": "extension factor",
    "yarn_original_max_position_embeddings": "tokens; context before the extension",
    "yarn_beta_fast": "rotations above which a frequency stays",
    "yarn_beta_slow": "rotations below which a frequency is divided by the factor",
    "yarn_mscale": "attention scale; null: from the factor",
    "yarn_mscale_all_dim": "attention scale for all channels; null: from the factor",
    "yarn_correction_range_round_to_int": "round the range of mixed frequencies to whole channels",
}
_LINEAR_ATTENTION = {
    "linear_attention_freq": "n: every n-th layer keeps attention; a list: 1 gated delta net, 0 attention",
    "linear_conv_kernel_dim": "width of the causal convolution",
    "linear_key_head_dim": "channels of one query or key head",
    "linear_value_head_dim": "channels of one value head",
    "linear_num_key_heads": "query and key heads",
    "linear_num_value_heads": "value heads",
}
_PARALLELISM = {
    "tensor_model_parallel_size": "GPUs that share one layer's matrices (TP)",
    "pipeline_model_parallel_size": "pipeline stages (PP)",
    "virtual_pipeline_model_parallel_size": "model chunks per stage (VPP); null: not interleaved",
    "context_parallel_size": "GPUs that share one sequence (CP)",
    "expert_model_parallel_size": "GPUs that share the experts of a layer (EP)",
    "expert_tensor_parallel_size": "TP inside experts (ETP); null: equal to TP",
    "sequence_parallel": "norms and dropouts are split over TP along the sequence",
    "pipeline_model_parallel_layout": "layers per chunk, megatron-core's letters: E t m L",
    "account_for_embedding_in_pipeline_split": "the embedding counts as one layer",
    "account_for_loss_in_pipeline_split": "output and loss count as one layer",
    "num_layers_in_first_pipeline_stage": "layers; null: even",
    "num_layers_in_last_pipeline_stage": "layers; null: even",
    "microbatch_group_size_per_vp_stage": "micro-batches in a row per chunk; null: PP",
    "defer_embedding_wgrad_compute": "compute the output layer's weight gradients while the pipeline drains",
    "wgrad_deferral_limit": "micro-batches whose weight gradients wait; 0: all",
    "deallocate_pipeline_outputs": "a stage frees its output once it is sent",
}
_BATCH = {
    "micro_batch_size": "sequences per GPU and forward pass (MBS)",
    "global_batch_size": "sequences per step over all GPUs (GBS)",
    "seq_length": "tokens per sequence",
}
_OPTIMIZER = {
    "use_distributed_optimizer": "optimizer state is split over data-parallel ranks",
    "use_precision_aware_optimizer": "states below in their own precision; needed for any but fp32",
    "main_params_dtype": "master weights",
    "main_grads_dtype": "gradients that the optimizer reads",
    "exp_avg_dtype": "first Adam moment",
    "exp_avg_sq_dtype": "second Adam moment",
    "lr": "learning rate per step, constant",
    "weight_decay": "decoupled weight decay",
    "clip_grad": "largest gradient norm; 0: no clipping",
}
_DDP = {
    "grad_reduce_in_fp32": "gradients are kept and reduced in fp32, else in bf16",
    "overlap_grad_reduce": "reduce gradients during the backward pass",
    "overlap_param_gather": "gather parameters during the forward pass",
    "align_grad_reduce": "pipeline stages start their gradient reductions together (needs overlap_grad_reduce)",
    "align_param_gather": "pipeline stages start their parameter gathers together (needs overlap_param_gather)",
    "bucket_size": "elements of one gradient bucket (needs overlap_grad_reduce); null: 40M, or 1M per data-parallel rank",
    "average_in_collective": "the collective averages instead of scaling before it",
    "nccl_ub": "NCCL user buffers",
    "use_megatron_fsdp": "parameters, gradients and optimizer state are sharded (Megatron-FSDP)",
}
_OFFLOAD = {
    "cpu_offloading_num_layers": "layers whose activations move to host memory",
    "offload_modules": "modules whose activations move to host memory",
}
_CUDA_GRAPH = {
    "impl": "who captures CUDA graphs",
    "scope": "captured parts; empty: whole layers",
    "warmup_steps": "steps before capture",
}
_KERNELS = {
    "transformer_impl": "layers of Transformer Engine or of megatron-core itself",
    "attention_backend": "attention kernel",
    "gradient_accumulation_fusion": "weight gradients are added inside the matrix product; needs CUDA",
    "cross_entropy_loss_fusion": "fused cross entropy",
    "bias_activation_fusion": "one kernel for the gated activation, where megatron-core has one; off: more activations are kept",
    "cross_entropy_fusion_impl": "whose fused cross entropy",
    "tp_comm_overlap": "tensor-parallel communication overlaps matrix products",
    "tp_comm_overlap_cfg": "user buffers of that overlap, see below; null: Transformer Engine's defaults",
    "moe_token_dispatcher_type": "how tokens reach experts",
    "moe_flex_dispatcher_backend": "backend of the flex dispatcher",
    "moe_permute_fusion": "fused permutation of tokens",
    "moe_shared_expert_overlap": "shared experts run during dispatch",
    "overlap_moe_expert_parallel_comm": "expert communication overlaps another micro-batch's work",
    "moe_expert_capacity_factor": "tokens per expert over the even share; null: no token is dropped",
    "moe_pad_expert_input_to_capacity": "every expert gets its full capacity",
}
_TRAIN = {
    "manual_gc": "run Python's garbage collector on all ranks at the same steps, never in between",
    "manual_gc_interval": "steps from one collection to the next; 0: only before the first step",
}
_MEASURE = {
    "max_steps": "training steps of a run",
    "skip_first_percent_time": "share of the steps, from the first, that does not count",
    "eval_time_start_step": "first step that counts, from 0; null: after the skipped share",
    "eval_time_end_step": "one past the last step that counts; null: max_steps",
    "seed": "seed of weights and data",
    "memory_limit_bytes": "bytes a rank may use (reserved on a GPU, in tensors on cpu); null: what the device has",
    "memory_snapshot": "one more step after the measured ones, recorded by torch's allocator as ranks/snapshot_NNN.pickle",
    "snapshot_on_oom": "the allocator's history is recorded throughout and written when memory runs out; times do not count",
    "profiler": "who records chosen steps of chosen ranks as ranks/profile_NNN.*; the run is neither judged nor a golden",
    "profiling_ranks": "the ranks to record",
    "profiling_start_step": "first step to record",
    "profiling_stop_step": "one past the last step to record",
    "nsys_options": "more options of `nsys profile`, in place of mbr-perf's of the same name",
    "gpu_clock_mhz": "lock the GPU clock of all GPUs of the nodes during the run; null: leave it",
    "memory_clock_mhz": "lock the memory clock likewise; null: leave it",
}
MEANINGS: dict[str, dict[str, str]] = {
    "model": _MODEL,
    "model.moe": _MOE,
    "model.mla": _MLA,
    "model.yarn": _YARN,
    "model.linear_attention": _LINEAR_ATTENTION,
    "parallelism": _PARALLELISM,
    "batch": _BATCH,
    "optimizer": _OPTIMIZER,
    "ddp": _DDP,
    "offload": _OFFLOAD,
    "cuda_graph": _CUDA_GRAPH,
    "kernels": _KERNELS,
    "train": _TRAIN,
    "measure": _MEASURE,
}
"""What each setting of a section means, with its unit. A test compares the table with the models."""

BLOCKS: dict[str, Callable[[], str]] = {
    "recompute modules": lambda: (
        f"Modules: {', '.join(f'`{name}` ({row.reexecutes})' for name, row in MODULES.items())}."
    ),
    "settings": _settings,
    "user buffers": _user_buffers,
    "keys of a sweep file": _sweep_keys,
    "sweep files": _sweep_files,
    "keys of a suite": _suite_keys,
    "suites": _suite_files,
}
"""The function that makes each generated block of the README, by the name in its mark."""

if __name__ == "__main__":
    README = recipes_dir() / "README.md"
    README.write_text(renewed(README.read_text(encoding="utf-8")), encoding="utf-8")
