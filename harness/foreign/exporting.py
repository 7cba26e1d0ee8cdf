"""Writes a job in words of other programs; for Megatron-Bridge by the inverse of the table that reads its files."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from harness.errors import BadRequestError, Problems, nearest
from harness.experiment.effective import captures_iteration
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import GPUS, PRECISIONS
from harness.experiment.recompute import megatron_fields
from harness.foreign.megatron_arguments import arguments
from harness.foreign.megatron_writing import Values, Words, as_megatron
from harness.foreign.settings import Row, rows_of
from harness.resolve.find import open_recipe
from harness.resolve.points import variants_of
from harness.resolve.recipe import IDENTITY, LEAVES, TASKS, at_path
from harness.resolve.writing import recipe_text, scalar
from harness.units import counted


@dataclass(frozen=True)
class Written:
    """A job in the words of another program, as one of :data:`FORMS`.

    ``remarks``: settings that it takes elsewhere, each as one sentence. ``text``: what to paste.
    """

    form: str
    words: tuple[str, ...]
    remarks: tuple[str, ...]
    text: str


_HEADINGS = {
    "bridge": "Overrides of Megatron-Bridge: paste them behind run_script.py.",
    "megatron-lm": "Arguments of Megatron-LM: paste them behind pretrain_gpt.py.",
}
FORMS = (*_HEADINGS, "yaml")


def exported(spec: ExperimentSpec, form: str, notes: Words = ()) -> Written:
    """Return the whole job. ``notes``: about reading it; they become remarks. BadRequestError for an unknown form."""
    if form in _HEADINGS:
        words, remarks = as_bridge(spec) if form == "bridge" else as_megatron(spec)
        return _to_paste(form, words, (*remarks, *notes), _HEADINGS[form])
    if form == "yaml":
        source = f"mbr-perf recipes export, {spec.slug}"
        return Written(form, (), notes, recipe_text(spec, title=spec.recipe, source=source, heading="\n".join(notes)))
    raise BadRequestError(f"--as {form}: no such form", remedy=nearest(form, FORMS))


def _to_paste(form: str, words: Words, remarks: Words, heading: str) -> Written:
    comments = "".join(f"# {' '.join(each.splitlines())}\n" for each in (heading, *remarks))
    lines: list[list[str]] = []
    for word in words:
        is_value = bool(lines) and lines[-1][0].startswith("--") and not word.startswith("--")
        lines[-1].append(word) if is_value else lines.append([word])
    block = " \\\n    ".join(map(shlex.join, lines))
    return Written(form, words, remarks, f"{comments}{block}\n")


@dataclass(frozen=True)
class ToPaste:
    """A setting as overrides of Megatron-Bridge and as arguments of Megatron-LM, one line each, quoted for a shell.

    ``without``: the arguments of Megatron-LM that the job must no longer have.
    """

    bridge: str
    megatron_lm: str
    without: tuple[str, ...]

    @property
    def lines(self) -> tuple[str, str]:
        gone = f"leave out {', '.join(self.without)}"
        added = f"Megatron-LM{f' ({gone})' if self.without else ''}: {self.megatron_lm}"
        return f"Megatron-Bridge: {self.bridge}", added if self.megatron_lm else f"Megatron-LM: {gone}"


_SIZES = ("parallelism.tensor_model_parallel_size", "parallelism.pipeline_model_parallel_size",
          "parallelism.virtual_pipeline_model_parallel_size", "parallelism.context_parallel_size",
          "parallelism.sequence_parallel", "batch.micro_batch_size")  # fmt: skip
_OF_EXPERTS = ("parallelism.expert_model_parallel_size", "parallelism.expert_tensor_parallel_size")


def to_paste(spec: ExperimentSpec, base: ExperimentSpec, *, with_sizes: bool = False) -> ToPaste:
    """Return the recompute of ``spec`` with every other setting that differs from ``base``, the job without the advice.

    ``with_sizes``: also the parallel sizes and the micro-batch, whether or not they differ, because the layouts of a
    plan need not include the job's own.
    """
    sizes = () if not with_sizes else _SIZES + _OF_EXPERTS if spec.model.moe else _SIZES
    paths = dict.fromkeys(("recompute", *sizes, *(path for path in _changed(spec, base) if path not in IDENTITY)))
    (words, _), (former, _) = as_megatron(spec, paths, sizes), as_megatron(base, paths)
    off = [row for row in rows_of("megatron") if row.path in sizes and not at_path(spec, row.path)]
    gone = [*(option for option in _options(former) if option not in _options(words)), *_options_of(off)]
    if not words and not gone:
        gone = ["--recompute-granularity"]
    return ToPaste(shlex.join(as_bridge(spec, paths)[0]), shlex.join(words), tuple(dict.fromkeys(gone)))


def _options(words: Words) -> list[str]:
    return [word.partition("=")[0] for word in words if word.startswith("--")]


def _options_of(rows: Iterable[Row]) -> list[str]:
    names = [name for row in rows for name in row.names if name in arguments()]
    return [option for name in names for option in arguments()[name].options]


def _changed(spec: ExperimentSpec, base: ExperimentSpec) -> list[str]:
    return [path for path in LEAVES if at_path(spec, path) != at_path(base, path)]


def sayable(spec: ExperimentSpec, base: ExperimentSpec) -> bool:
    """Return whether both programs have words for every setting that differs between two jobs."""
    both = {row.path for row in rows_of("bridge")} & {row.path for row in rows_of("megatron")} | {"recompute"}
    return both.issuperset(_changed(spec, base))


def point_options(point: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Split ``llama3_70b.sft.h100.fp8_cs.32`` into options: the recipe, then parts in any order.

    BadRequestError for a part that is nothing of these, or that an option gives otherwise. The reader of the recipe
    reports a recipe that cannot be read.
    """
    name, *parts = [point] if "/" in point else point.split(".")
    problems, options = Problems(), dict[str, Any](model_recipe_name=name)
    variants: tuple[str, ...] | None = None
    with suppress(BadRequestError):
        variants = variants_of(open_recipe(name, given.get("recipes_dir")).points)
    for part in parts:
        kinds = {
            "task": part in TASKS,
            "gpu": part in GPUS,
            "compute_dtype": part in PRECISIONS,
            "num_gpus": part.isdecimal(),
        }
        kind = next((kind for kind, fits in kinds.items() if fits), "variant")
        value = int(part) if kind == "num_gpus" else part
        if kind == "variant" and variants is not None and part not in variants:
            known = nearest(part, (*TASKS, *GPUS, *PRECISIONS, *variants))
            problems.add(f"{point}: {part} is no task, GPU, precision, number of GPUs or variant of {name}", known)
            continue
        if kind in options:
            problems.add(
                f"{point}: {options[kind]} and {part} are both its {kind}",
                "write RECIPE.TASK.GPU.PRECISION.GPUS.VARIANT",
            )
        options[kind] = value
    for option, value in options.items():
        if given[option] not in (None, "", value):
            problems.add(f"{point} contradicts --{option} {given[option]}", "give one of them")
    problems.raise_if_any()
    return options


def as_bridge(spec: ExperimentSpec, paths: Iterable[str] | None = None) -> tuple[Words, Words]:
    """Return the overrides of `run_script.py` that make a recipe of Megatron-Bridge this job, and remarks on the rest.

    ``paths``: only these leaves, such as those that a recommendation changes; None: every leaf that a container holds.
    """
    wanted = None if paths is None else set(paths)
    values: Values = {}
    remarks: list[str] = []
    for row in rows_of("bridge"):
        if wanted is not None and row.path not in {*wanted, *(path.partition(".")[0] for path in wanted)}:
            continue
        if row.conversion in _ELSEWHERE:
            remarks += _ELSEWHERE[row.conversion](spec, row)
            continue
        values |= _row_values(spec, row, wanted)
    if wanted is None:
        values |= _switches(spec)
    # Hydra reads values as YAML's flow style does, and quoted text like it.
    return tuple(f"{path}={scalar(value)}" for path, value in values.items()), tuple(remarks)


def _row_values(spec: ExperimentSpec, row: Row, wanted: set[str] | None) -> Values:
    section = row.path.rpartition(".")[0]
    if section and at_path(spec, section) is None:  # a part that the model does not have
        return {}
    if row.path == "env":
        names = spec.env if wanted is None or "env" in wanted else [n for n in spec.env if f"env.{n}" in wanted]
        return {f"++env_vars.{name}": spec.env[name] for name in names}
    write = _WRITERS.get(row.conversion)
    value = _completed(spec, row.path)
    found = {row.names[0]: value} if write is None else write(spec, row, value)
    name = row.path.rpartition(".")[2]
    return found | ({f"comm_overlap.{name}": value} if name in _OF_OVERLAP and value is not None else {})


def _completed(spec: ExperimentSpec, path: str) -> object:
    value = at_path(spec, path)
    if value is not None or path not in _DERIVED:
        return value
    return None if spec.model.mla and path.startswith("model.") else _DERIVED[path](spec)


_DERIVED: Mapping[str, Callable[[ExperimentSpec], int]] = {
    "model.num_query_groups": lambda spec: spec.model.query_groups,
    "model.kv_channels": lambda spec: spec.model.head_dim,
    "parallelism.microbatch_group_size_per_vp_stage": lambda spec: spec.parallelism.pipeline_model_parallel_size,
}


_OF_OVERLAP = ("tp_comm_overlap", "overlap_grad_reduce", "overlap_param_gather", "align_param_gather", "bucket_size",
               "defer_embedding_wgrad_compute", "overlap_moe_expert_parallel_comm")  # fmt: skip
"""Fields that Megatron-Bridge copies from its own `comm_overlap` when it completes a configuration."""


def _precision(spec: ExperimentSpec, _row: Row, _value: object) -> Values:
    own = {"fp8": None, "fp4": None} | spec.precision.transformer_config
    return {"model.bf16": spec.compute_dtype != "fp32"} | {f"model.{name}": value for name, value in own.items()}


def _graph(spec: ExperimentSpec, row: Row, value: object) -> Values:
    if row.path != "cuda_graph.impl":  # the kernel of the attention
        return {row.names[0]: value}
    return {row.names[0]: "full_iteration" if captures_iteration(spec.cuda_graph) else value}


def _number(spec: ExperimentSpec, row: Row, value: object) -> Values:
    if row.path == "offload.cpu_offloading_num_layers":
        return {row.names[1]: bool(value), "model.cpu_offloading_weights": False, row.names[0]: value}
    defers = spec.parallelism.defer_embedding_wgrad_compute
    return {row.names[0]: value, "comm_overlap.wgrad_deferral_limit": value} if defers else {}


def _user_buffers(spec: ExperimentSpec, row: Row, _value: object) -> Values:
    buffers = spec.kernels.model_dump(mode="json")["tp_comm_overlap_cfg"]
    return dict(_flat(row.names[0], buffers)) if isinstance(buffers, dict) else {row.names[0]: buffers}


def _flat(path: str, values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(f"{path}.{name}", value)
        else:
            yield f"++{path}.{name}", value


_WRITERS: Mapping[str, Callable[[ExperimentSpec, Row, object], Values]] = {
    "precision": _precision,
    "when": lambda _spec, row, value: (
        {row.names[1]: False} if value is None else {row.names[1]: True, row.names[0]: value}
    ),
    "number_when": _number,
    "recompute": lambda spec, _row, _value: {f"model.{n}": v for n, v in dict(megatron_fields(spec.recompute)).items()},
    "implementation": _graph,
    "graph_parts": lambda spec, row, value: {
        row.names[0]: () if spec.cuda_graph.impl == "none" or captures_iteration(spec.cuda_graph) else value
    },
    "listed_when": lambda _spec, row, value: {row.names[1]: bool(value), row.names[0]: value},
    "user_buffers": _user_buffers,
}
"""By the function that reads a value: its inverse. Values that a file spells as we do need none."""


def _world_size(spec: ExperimentSpec, _row: Row) -> Iterator[str]:
    if spec.gpu_type.is_cpu:
        yield f"this point is for {counted(spec.num_gpus, 'CPU rank')}; Megatron-Bridge trains on GPUs only"
    else:
        yield f"the number of GPUs is no override: -ng {spec.num_gpus}"


def _of_python(spec: ExperimentSpec, row: Row) -> Iterator[str]:
    value, is_activation = at_path(spec, row.path), row.path == "model.activation_func"
    if value not in ("silu", "fp32"):
        kind = "a function of Python" if is_activation else "a type of torch"
        where = "the recipe's model has it" if is_activation else "set it in the recipe's function"
        yield f"{row.names[0]} is {kind} ({value}): {where}"


_ELSEWHERE: Mapping[str, Callable[[ExperimentSpec, Row], Iterator[str]]] = {
    "world_size": _world_size, "short_name": _of_python, "dtype": _of_python,
}  # fmt: skip
"""Settings that Hydra cannot set: a remark says where they are set."""


def _switches(spec: ExperimentSpec) -> Values:
    return {
        "model.multi_latent_attention": spec.model.mla is not None,
        **({} if spec.model.moe else {"model.num_moe_experts": None}),
        **({} if spec.model.yarn else {"model.yarn_rotary_scaling_factor": None}),
        "model.experimental_attention_variant": "gated_delta_net" if spec.model.linear_attention else None,
    }
