"""Writes a job as arguments of Megatron-LM, read back to find what they leave out."""

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from harness.errors import BadRequestError
from harness.experiment.effective import captures_iteration
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import megatron_fields
from harness.foreign.container_fields import Disagreement, disagreements
from harness.foreign.megatron_arguments import Argument, Takes, arguments, from_words
from harness.foreign.megatron_fields import arguments_layer
from harness.foreign.settings import Row, rows_of
from harness.foreign.shell_script import Word
from harness.resolve.recipe import IDENTITY, at_path, nested
from harness.resolve.writing import layer_pattern
from harness.units import counted

Values = dict[str, object]
Words = tuple[str, ...]


def as_megatron(
    spec: ExperimentSpec, paths: Iterable[str] | None = None, explicit: Collection[str] = ()
) -> tuple[Words, Words]:
    """Return the arguments of `pretrain_gpt.py` that make its job this one, and remarks on what they cannot say.

    ``paths``: only these leaves, without remarks. An argument whose value is Megatron-LM's default is left out,
    but for the leaves in ``explicit``, as far as the default has an argument.
    BadRequestError: LoRA, which Megatron-LM does not have.
    """
    if paths is None and spec.task == "peft":
        raise BadRequestError(
            f"{spec.recipe} peft: Megatron-LM's pretrain_gpt.py has no LoRA", remedy="export it with --as bridge"
        )
    wanted = None if paths is None else set(paths)
    rows = [row for row in rows_of("megatron") if wanted is None or row.path in wanted]
    values = {name: (value, row.path in explicit) for row in rows for name, value in _row_values(spec, row).items()}
    words = tuple(
        word
        for name, (value, is_explicit) in values.items()
        for word in _words(arguments()[name], value, explicit=is_explicit)
    )
    return words, () if wanted is not None else tuple(_remarks(spec, words))


def _row_values(spec: ExperimentSpec, row: Row) -> Values:
    section = row.path.rpartition(".")[0]
    if not _exists(spec, row.path):
        return {}
    value = at_path(spec, row.path)
    write = _WRITERS.get(row.path)
    found = {row.names[0]: value} if write is None else write(spec, value)
    return _SWITCHES.get(section, {}) | found


def _exists(spec: ExperimentSpec, path: str) -> bool:
    section, _, name = path.rpartition(".")
    is_of_experts = name in ("expert_model_parallel_size", "expert_tensor_parallel_size") or path.startswith(
        "kernels.moe_"
    )
    return (not section or at_path(spec, section) is not None) and (not is_of_experts or spec.model.moe is not None)


def _words(argument: Argument, value: object, *, explicit: bool) -> Iterator[str]:
    """Yield the option and its words; none for a default unless ``explicit``, and for a flag that is off."""
    if value in (None, ()) or ((value,) == argument.defaults and not explicit):
        return
    takes: Takes | None = ("flag" if value else "off") if isinstance(value, bool) else None
    option = next((name for name, kind in argument.options.items() if takes in (None, kind)), None)
    if option is None:
        return
    texts = [] if takes else [_text(each) for each in (value if isinstance(value, tuple) else (value,))]
    if texts and texts[0].startswith("-"):  # argparse takes -1,0 for an option
        yield f"{option}={texts[0]}"
        return
    yield from (option, *texts)


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _if(condition: object, **values: object) -> Values:
    return values if condition else {}


def _precision(spec: ExperimentSpec, _value: object) -> Values:
    own: Values = {
        f"{name}_gather" if name.endswith("_param") else name: value
        for name, value in spec.precision.transformer_config.items()
    }
    return {"bf16": spec.compute_dtype != "fp32"} | own


def _positions(spec: ExperimentSpec, value: object) -> Values:
    # YaRN without latents has no factor there. Megatron-LM asks for the longest position of every model.
    kind = "rope" if value == "yarn" else value
    return {"position_embedding_type": kind, "max_position_embeddings": spec.batch.seq_length}


def _pattern(name: str) -> Callable[[ExperimentSpec, object], Values]:
    return lambda _spec, value: {name: f"({layer_pattern(value)})" if isinstance(value, tuple) else value}


def _graph(spec: ExperimentSpec, value: object) -> Values:
    # Beside the setting, what Megatron-LM's own checks demand with it.
    whole = captures_iteration(spec.cuda_graph)
    impl = "local" if whole else value
    pads = impl == "local" and spec.parallelism.expert_model_parallel_size > 1
    needed = _if(whole, check_for_nan_in_loss_and_grad=False) | _if(pads, moe_pad_experts_for_cuda_graph_inference=True)
    return {"cuda_graph_impl": impl} | needed


def _graph_parts(spec: ExperimentSpec, value: object) -> Values:
    scope = ("full_iteration",) if captures_iteration(spec.cuda_graph) else value
    return _if(spec.cuda_graph.impl != "none", cuda_graph_scope=scope)


_SWITCHES: Mapping[str, Values] = {
    "model.mla": {"multi_latent_attention": True},
    "model.linear_attention": {"experimental_attention_variant": "gated_delta_net"},
}
"""Arguments that turn a part of the model on."""

_WRITERS: Mapping[str, Callable[[ExperimentSpec, object], Values]] = {
    "compute_dtype": _precision,
    "model.num_query_groups": lambda spec, value: _if(
        value is not None and spec.model.mla is None, group_query_attention=True, num_query_groups=value),
    "model.share_embeddings_and_output_weights": lambda _, value: {"untie_embeddings_and_output_weights": not value},
    "model.gated_linear_unit": lambda *_: {},  # the activation has it
    "model.activation_func": lambda spec, value: _if(
        spec.model.gated_linear_unit, swiglu=value == "silu", quick_geglu=value == "quick_gelu"),
    "model.layernorm_epsilon": lambda _, value: {"norm_epsilon": value},
    "model.position_embedding_type": _positions,
    "model.rope_scaling_factor": lambda _, value: _if(value is not None, use_rope_scaling=True,
                                                      rope_scaling_factor=value),
    "model.window_size": lambda _, value: {"window_size": ",".join(map(str, value)) if isinstance(value,
        tuple) else None},
    "model.window_attn_skip_freq": _pattern("window_attn_skip_freq"),
    "model.moe.moe_layer_freq": _pattern("moe_layer_freq"),
    "model.linear_attention.linear_attention_freq": _pattern("linear_attention_freq"),
    "parallelism.virtual_pipeline_model_parallel_size": lambda spec, value: _if(
        spec.parallelism.pipeline_model_parallel_layout is None, num_virtual_stages_per_pipeline_rank=value),
    "recompute": lambda spec, _: dict(megatron_fields(spec.recompute)),
    "ddp.grad_reduce_in_fp32": lambda _, value: {"grad_reduce_in_bf16": not value},
    "ddp.align_grad_reduce": lambda spec, value: _if(spec.ddp.overlap_grad_reduce, align_grad_reduce=value),
    "ddp.align_param_gather": lambda spec, value: _if(spec.ddp.overlap_param_gather, align_param_gather=value),
    "ddp.use_megatron_fsdp": lambda _, value: _if(
        value, use_megatron_fsdp=True, data_parallel_sharding_strategy="optim_grads_params",
        ckpt_format="fsdp_dtensor"),
    "offload.offload_modules": lambda _, value: {"fine_grained_activation_offloading": bool(value),
                                                 "offload_modules": value},
    "cuda_graph.impl": _graph,
    "cuda_graph.scope": _graph_parts,
    "kernels.transformer_impl": lambda _, value: {"transformer_impl": None if value == "auto" else value},
    "kernels.attention_backend": lambda spec, value: _if(spec.kernels.transformer_impl != "local",
                                                         attention_backend=value),
    "kernels.moe_token_dispatcher_type": lambda _, value: {"moe_token_dispatcher_type": value},
    "kernels.moe_flex_dispatcher_backend": lambda spec, value: _if(
        spec.kernels.has_flex_dispatcher, moe_flex_dispatcher_backend=value),
}  # fmt: skip
"""By leaf, what its row reads, the other way round. A leaf that is spelt like its only argument needs none."""


def _remarks(spec: ExperimentSpec, words: Words) -> Iterator[str]:
    if spec.gpu_type.is_cpu:
        yield f"this point is for {counted(spec.num_gpus, 'CPU rank')}; Megatron-LM trains on GPUs only"
    else:
        nodes = -(-spec.num_gpus // spec.gpus_per_node)
        start = f"torchrun --nnodes {nodes} --nproc_per_node {spec.ranks_per_node(nodes)} pretrain_gpt.py"
        yield f"{counted(spec.num_gpus, 'GPU')}: {start}"
    if spec.env:
        yield f"environment: export {shlex.join(f'{name}={value}' for name, value in spec.env.items())}"
    if spec.kernels.cross_entropy_loss_fusion and spec.kernels.cross_entropy_fusion_impl == "te":
        refuses = "Megatron-LM refuses --cross-entropy-fusion-impl te from core_v0.19.0 on"
        yield f"{refuses}: write native there, and kernels.cross_entropy_fusion_impl=native here"
    own = "data, checkpoint, learning rate, --train-iters and tokenizer"
    yield f"add your own {own} ({spec.model.vocab_size} tokens; --vocab-size counts for NullTokenizer)"
    for each in left_out(spec, words):
        theirs = "" if each.theirs is None else f", {each.theirs} in Megatron-LM"
        is_file = each.path == "kernels.tp_comm_overlap_cfg"
        what = "--tp-comm-overlap-cfg takes a YAML file, which you write," if is_file else "no argument"
        yield f"{what} for {each.path}: {each.ours} here{theirs}"


def left_out(spec: ExperimentSpec, words: Iterable[str]) -> tuple[Disagreement, ...]:
    """Read the arguments back and return the leaves whose effect they lose, without the environment's."""
    read = arguments_layer(from_words((Word(word, 1) for word in words), "the exported arguments"))
    own = {name: at_path(spec, name) for name in IDENTITY if name != "compute_dtype"}
    found = disagreements(spec, ExperimentSpec.model_validate(nested(read) | own))
    return tuple(each for each in found if not each.path.startswith("env.") and _exists(spec, each.path))
