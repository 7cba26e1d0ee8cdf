"""Writes a job in the words of Megatron-LM and Megatron-Bridge, by the inverse of the rows that read them."""

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain

from harness.errors import BadRequestError
from harness.experiment.effective import captures_iteration
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import base_of_plan, megatron_fields
from harness.experiment.recompute_plan import PlannedRecompute
from harness.foreign.container_fields import other_effects
from harness.foreign.megatron_arguments import Argument, Takes, arguments, from_words
from harness.foreign.megatron_fields import arguments_layer
from harness.foreign.settings import Row, rows_of
from harness.foreign.shell_script import Word
from harness.resolve.recipe import IDENTITY, at_path, nested
from harness.resolve.writing import layer_pattern, scalar
from harness.units import walked

Values = dict[str, object]
Words = tuple[str, ...]
Write = Callable[[ExperimentSpec, Row, object], Values]


def _if(condition: object, **values: object) -> Values:
    return values if condition else {}


def _as_written(_spec: ExperimentSpec, row: Row, value: object) -> Values:
    return {row.names[0]: value}


def _precision(spec: ExperimentSpec, row: Row, _value: object) -> Values:
    own: Values = dict(spec.precision.transformer_config)
    if row.names[0] == "model.bf16":
        own = {f"model.{name}": value for name, value in ({"fp8": None, "fp4": None} | own).items()}
    else:
        own = {f"{name}_gather" if name.endswith("_param") else name: value for name, value in own.items()}
    return {row.names[0]: spec.precision.params_dtype == "bf16"} | own


def _positions(spec: ExperimentSpec, _row: Row, value: object) -> Values:
    # YaRN without latents has no factor there. Megatron-LM asks for the longest position of every model.
    kind = "rope" if value == "yarn" else value
    return {"position_embedding_type": kind, "max_position_embeddings": spec.batch.seq_length}


def _of_cases(_spec: ExperimentSpec, row: Row, value: object) -> Values:
    """Invert cases: the case that takes the value of a name, else the one whose value it is."""
    switches = [re.findall(r"(?:^| )([a-zA-Z_][\w.]*)(?= |$)", conditions)[:1] for _, conditions in row.cases]
    for (wanted, _), switch in zip(row.cases, switches, strict=True):
        if isinstance(wanted, str) and wanted.startswith("="):
            name = wanted[1:]
            on = {each: value is not None for each in switch if each != name}
            return on | ({} if on and value is None else {name: value})
    found = next((switch for (wanted, _), switch in zip(row.cases, switches, strict=True) if wanted == value), [])
    return dict.fromkeys(found, True) or dict.fromkeys(switches[0], False)


def _recompute(spec: ExperimentSpec, row: Row, _value: object) -> Values:
    prefix = row.names[0].removesuffix("recompute_granularity")
    return {prefix + name: value for name, value in dict(megatron_fields(base_of_plan(spec.recompute))).items()}


def _graph(spec: ExperimentSpec, _row: Row, value: object) -> Values:
    # Beside the setting, what Megatron-LM's own checks demand with it.
    whole = captures_iteration(spec.cuda_graph)
    impl = "local" if whole else value
    pads = impl == "local" and spec.parallelism.expert_model_parallel_size > 1
    needed = _if(whole, check_for_nan_in_loss_and_grad=False) | _if(pads, moe_pad_experts_for_cuda_graph_inference=True)
    return {"cuda_graph_impl": impl} | needed


def _captured(spec: ExperimentSpec, _row: Row, value: object) -> Values:
    scope = ("full_iteration",) if captures_iteration(spec.cuda_graph) else value
    return _if(spec.cuda_graph.impl != "none", cuda_graph_scope=scope)


def _implementation(spec: ExperimentSpec, row: Row, value: object) -> Values:
    is_whole = row.path == "cuda_graph.impl" and captures_iteration(spec.cuda_graph)
    return {row.names[0]: "full_iteration" if is_whole else value}


def _user_buffers(spec: ExperimentSpec, row: Row, _value: object) -> Values:
    buffers = spec.kernels.model_dump(mode="json")["tp_comm_overlap_cfg"]
    return {f"++{path}" if path != row.names[0] else path: each for path, each in walked(buffers, row.names[0])}


def _reduced(spec: ExperimentSpec, row: Row, value: object) -> Values:
    if spec.compute_dtype == "fp16":
        return {"accumulate_allreduce_grads_in_fp32": value}
    return _of_cases(spec, row, value)


def _of_optimizer(spec: ExperimentSpec, row: Row, value: object) -> Values:
    o = spec.optimizer
    counts = {"sgd_momentum": o.optimizer == "sgd", "loss_scale": value is not None}.get(
        row.path.rpartition(".")[2], o.optimizer_cpu_offload
    )
    return {row.names[0]: value} if counts else {}


def _overlapped(spec: ExperimentSpec, row: Row, value: object) -> Values:
    return {row.names[0]: value} if at_path(spec, f"ddp.{row.names[1]}") else {}


WRITERS: Mapping[str, Write] = {
    "cases": _of_cases, "precision": _precision, "recompute": _recompute, "captured": _captured,
    "implementation": _implementation, "user_buffers": _user_buffers,
    "aligned": lambda spec, row, value: (  # without chunks it has no effect
        _overlapped(spec, row, value) if spec.parallelism.virtual_pipeline_model_parallel_size else {}),
    "listed_when": lambda _, row, value: {row.names[1]: bool(value), row.names[0]: value},
    "context_communication": lambda spec, row, value: (  # Megatron-LM takes a list
        {} if spec.parallelism.context_parallel_size == 1
        else {row.names[0]: value if "." in row.names[0] else (value,)}),
    "pair": lambda _, row, value: {row.names[0]: ",".join(map(str, value)) if isinstance(value, tuple) else None},
    "pattern": lambda _, row, value: {row.names[0]: f"({layer_pattern(value)})" if isinstance(value, tuple) else value},
    "chunks": lambda spec, row, value: (
        {row.names[1]: value} if spec.parallelism.pipeline_model_parallel_layout is None else {}),
    "shards": lambda _spec, _row, value: _if(
        value, use_megatron_fsdp=True, data_parallel_sharding_strategy="optim_grads_params",
        ckpt_format="fsdp_dtensor"),
    "graph_parts": lambda spec, row, value: {
        row.names[0]: () if spec.cuda_graph.impl == "none" or captures_iteration(spec.cuda_graph) else value},
    # Cases that mean more than their conditions
    "model.gated_linear_unit": lambda *_: {},  # the activation has it
    "model.activation_func": lambda spec, _, value: {"squared_relu": value == "squared_relu"} | _if(
        spec.model.gated_linear_unit, swiglu=value == "silu", quick_geglu=value == "quick_gelu"),
    "model.position_embedding_type": _positions,
    "optimizer.optimizer": _as_written,
    "optimizer.sgd_momentum": _of_optimizer,
    "optimizer.loss_scale": _of_optimizer,
    "optimizer.optimizer_offload_fraction": _of_optimizer,
    "optimizer.overlap_cpu_optimizer_d2h_h2d": _of_optimizer,
    "ddp.grad_reduce_in_fp32": _reduced,
    "ddp.align_grad_reduce": _overlapped,
    "parallelism.wgrad_deferral_limit": lambda spec, row, value: (
        {row.names[0]: value} if spec.parallelism.defer_embedding_wgrad_compute else {}),
    "offload.cpu_offloading_num_layers": lambda _, row, value: {
        row.names[1]: bool(value), "model.cpu_offloading_weights": False, row.names[0]: value},
    "cuda_graph.impl": _graph,
    "kernels.attention_backend": lambda spec, _, value: _if(
        spec.kernels.transformer_impl != "local", attention_backend=value),
    "kernels.moe_flex_dispatcher_backend": lambda spec, _, value: _if(
        spec.kernels.has_flex_dispatcher, moe_flex_dispatcher_backend=value),
}  # fmt: skip
"""By the function of `conversions` that reads a value, or by leaf for a row of cases: its inverse.

A value that is spelt like the leaf needs none.
"""


def _write(spec: ExperimentSpec, row: Row, value: object) -> Values:
    own = WRITERS.get(row.path) if row.cases else None
    return (own or WRITERS.get(row.conversion, _as_written))(spec, row, value)


def as_megatron(
    spec: ExperimentSpec,
    paths: Iterable[str] | None = None,
    explicit: Collection[str] = (),
    without: Collection[str] = (),
) -> tuple[Words, Words]:
    """Return the arguments of this job, or of ``paths`` only, and remarks on the rest. BadRequestError: LoRA."""
    if paths is None and spec.task == "peft":
        raise BadRequestError(
            f"{spec.recipe} peft: Megatron-LM's pretrain_gpt.py has no LoRA", remedy="export it with --as bridge"
        )
    wanted = None if paths is None else set(paths)
    rows = [r for r in rows_of("megatron") if r.path not in without and (wanted is None or r.path in wanted)]
    values = {name: (value, row.path in explicit) for row in rows for name, value in _arguments(spec, row).items()}
    written = (_words(arguments()[name], value, explicit=explicit) for name, (value, explicit) in values.items())
    words = tuple(chain.from_iterable(written))
    return words, () if wanted is not None else tuple(_remarks(spec, words))


def _arguments(spec: ExperimentSpec, row: Row) -> Values:
    if not _exists(spec, row.path) or (row.path == "model.num_query_groups" and spec.model.mla):
        return {}
    value = at_path(spec, row.path)
    value = None if row.path == "kernels.transformer_impl" and value == "auto" else value
    return _SWITCHES.get(row.path.rpartition(".")[0], {}) | _write(spec, row, value)


def _exists(spec: ExperimentSpec, path: str) -> bool:
    section, _, name = path.rpartition(".")
    is_of_experts = name.startswith("expert_") or path.startswith("kernels.moe_")
    return (not section or at_path(spec, section) is not None) and (not is_of_experts or spec.model.moe is not None)


_SWITCHES: Mapping[str, Values] = {
    "model.mla": {"multi_latent_attention": True},
    "model.linear_attention": {"experimental_attention_variant": "gated_delta_net"},
}


def _words(argument: Argument, value: object, *, explicit: bool) -> Iterator[str]:
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


def _remarks(spec: ExperimentSpec, words: Words) -> Iterator[str]:
    nodes = -(-spec.num_gpus // spec.gpus_per_node)
    yield f"start it with torchrun --nnodes {nodes} --nproc_per_node {spec.ranks_per_node(nodes)} pretrain_gpt.py"
    if isinstance(spec.recompute, PlannedRecompute):
        yield f"recompute by layer: start {_SCRIPT}, in place of pretrain_gpt.py"
    if spec.env:
        yield f"environment: export {shlex.join(f'{name}={value}' for name, value in spec.env.items())}"
    if spec.kernels.cross_entropy_loss_fusion and spec.kernels.cross_entropy_fusion_impl == "te":
        yield "--cross-entropy-fusion-impl te: Megatron-LM refuses it from core_v0.19.0 on; write native there"
    own = "data, checkpoint, learning rate and its schedule, --train-iters and tokenizer"
    yield f"add your own {own} ({spec.model.vocab_size} tokens; --vocab-size counts for NullTokenizer)"
    yield "--max-position-embeddings is the sequence's length here: write your own if it is larger"
    lost = left_out(spec.model_copy(update={"recompute": base_of_plan(spec.recompute)}), words)
    if lost.pop("kernels.tp_comm_overlap_cfg", None):
        yield "--tp-comm-overlap-cfg takes a YAML file, which you write: `run --dryrun --json` has its settings"
    for path, (here, there) in lost.items():
        theirs = "" if there is None else f", {there} in Megatron-LM"
        yield f"no argument for {path}: {here} here{theirs}"


_SCRIPT = "the file that `mbr-perf recipes export ... --as python` prints"


def left_out(spec: ExperimentSpec, words: Iterable[str]) -> dict[str, tuple[object, object]]:
    """Read the arguments back and return the leaves whose effect they lose, without the environment's."""
    read = arguments_layer(from_words((Word(word, 1) for word in words), "the exported arguments"))
    own = {name: at_path(spec, name) for name in IDENTITY if name != "compute_dtype"}
    found = other_effects(spec, ExperimentSpec.model_validate(nested(read) | own))
    return {path: each for path, each in found.items() if not path.startswith("env.") and _exists(spec, path)}


def as_bridge(
    spec: ExperimentSpec, paths: Iterable[str] | None = None, without: Collection[str] = ()
) -> tuple[Words, Words]:
    """Return the overrides that make a recipe of Bridge this job, or of ``paths`` only, and remarks on the rest."""
    wanted = None if paths is None else set(paths)
    values: Values = {}
    remarks: list[str] = []
    if wanted is None and spec.recompute.granularity == "planned":
        remarks.append(f"recompute by layer: config.model.register_pre_wrap_hook(pre_wrap_hook) with that of {_SCRIPT}")
    for row in rows_of("bridge"):
        named = wanted is None or row.path in {*wanted, *(path.partition(".")[0] for path in wanted)}
        if row.path in without or not named:
            continue
        if row.conversion in ELSEWHERE:
            remarks += ELSEWHERE[row.conversion](spec, row)
            continue
        values |= _overrides(spec, row, wanted)
    if wanted is None:
        values |= {
            "model.multi_latent_attention": spec.model.mla is not None,
            **({} if spec.model.moe else {"model.num_moe_experts": None}),
            **({} if spec.model.yarn else {"model.yarn_rotary_scaling_factor": None}),
            "model.experimental_attention_variant": "gated_delta_net" if spec.model.linear_attention else None,
        }
    # Hydra reads values as YAML's flow style does, and quoted text like it.
    return tuple(f"{path}={scalar(value)}" for path, value in values.items()), tuple(remarks)


def _overrides(spec: ExperimentSpec, row: Row, wanted: set[str] | None) -> Values:
    section, _, name = row.path.rpartition(".")
    if section and at_path(spec, section) is None:  # a part that the model does not have
        return {}
    if row.path == "env":
        names = spec.env if wanted is None or "env" in wanted else [n for n in spec.env if f"env.{n}" in wanted]
        return {f"++env_vars.{each}": spec.env[each] for each in names}
    value = at_path(spec, row.path)
    if value is None and row.path in _DERIVED and not (spec.model.mla and section == "model"):
        value = _DERIVED[row.path](spec)
    found = _write(spec, row, value)
    return found | (_if(found and value is not None, **{f"comm_overlap.{name}": value}) if name in _OF_OVERLAP else {})


_DERIVED: Mapping[str, Callable[[ExperimentSpec], int]] = {
    "model.num_query_groups": lambda spec: spec.model.query_groups,
    "model.kv_channels": lambda spec: spec.model.head_dim,
    "parallelism.microbatch_group_size_per_vp_stage": lambda spec: spec.parallelism.pipeline_model_parallel_size,
}
_OF_OVERLAP = ("tp_comm_overlap", "overlap_grad_reduce", "overlap_param_gather", "align_param_gather", "bucket_size",
               "defer_embedding_wgrad_compute", "wgrad_deferral_limit", "overlap_moe_expert_parallel_comm")  # fmt: skip
"""Fields that Megatron-Bridge copies from its own `comm_overlap` when it completes a configuration."""


def _of_python(spec: ExperimentSpec, row: Row) -> Iterator[str]:
    value = at_path(spec, row.path)
    if value not in ("silu", "fp32"):
        yield f"{row.names[0]} is an object of Python ({value}): set it in the recipe's function"


ELSEWHERE: Mapping[str, Callable[[ExperimentSpec, Row], Iterator[str]]] = {
    "short_name": _of_python, "dtype": _of_python,
    "world_size": lambda spec, _: iter([f"the number of GPUs is no override: -ng {spec.num_gpus}"]),
}  # fmt: skip
"""Settings that Hydra cannot set: a remark says where they are set."""
