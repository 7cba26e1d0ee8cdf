"""Writes a job in words of other programs; for Megatron-Bridge by the inverse of the table that reads its files."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import harness
from harness.errors import BadRequestError, nearest
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute_plan import PlannedRecompute
from harness.foreign.megatron_arguments import arguments
from harness.foreign.settings import rows_of
from harness.foreign.writing import Words, as_bridge, as_megatron
from harness.resolve.recipe import IDENTITY, LEAVES, at_path
from harness.resolve.writing import recipe_text


@dataclass(frozen=True)
class Written:
    """A job in another program's words. ``remarks``: what it takes elsewhere; ``text``: what to paste."""

    form: str
    words: tuple[str, ...]
    remarks: tuple[str, ...]
    text: str


_HEADINGS = {
    "bridge": "Overrides of Megatron-Bridge: paste them behind run_script.py.",
    "megatron-lm": "Arguments of Megatron-LM: paste them behind pretrain_gpt.py.",
}
FORMS = (*_HEADINGS, "yaml", "python")


_OF_TRAINING = ("optimizer.lr", "optimizer.weight_decay")


def exported(spec: ExperimentSpec, form: str, notes: Words = (), sources: Mapping[str, str] | None = None) -> Written:
    """Return the whole job, ``notes`` as remarks, without defaults of training. BadRequestError: unknown form."""
    if form in _HEADINGS:
        own = [path for path in _OF_TRAINING if (sources or {}).get(path) == "default"]
        words, remarks = as_bridge(spec, without=own) if form == "bridge" else as_megatron(spec, without=own)
        return _to_paste(form, words, (*notes, *remarks), _HEADINGS[form])
    if form == "yaml":
        source = f"mbr-perf recipes export, {spec.slug}"
        return Written(form, (), notes, recipe_text(spec, title=spec.recipe, source=source, heading="\n".join(notes)))
    if form == "python":
        if not isinstance(spec.recompute, PlannedRecompute):
            raise BadRequestError(
                f"--as python: {spec.recompute.text} is one setting for all layers, which needs no file",
                remedy="use --as bridge or megatron-lm, or name a plan: --recompute plan.yaml",
            )
        return Written(form, (), notes, plan_script(spec.recompute, spec.slug))
    raise BadRequestError(f"--as {form}: no such form", remedy=nearest(form, FORMS))


def plan_script(plan: PlannedRecompute, job: str) -> str:
    """Return the file that sets a plan in Megatron-LM and Megatron-Bridge: `engine.layer_plan` with the plan in it."""
    stages = [[[(group.layers, group.setting) for group in chunk] for chunk in chunks] for chunks in plan.stages]
    rows = "".join(f"    {tuple(map(tuple, chunks))},  # stage {stage}\n" for stage, chunks in enumerate(stages))
    source = (Path(harness.__file__).parent / "engine" / "layer_plan.py").read_text()
    return source.replace("PLAN: Plan = ()\n", f"# For {job}, made by mbr-perf.\nPLAN: Plan = (\n{rows})\n")


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
    """A setting as lines of both programs; ``without``: arguments that go; ``environment``: options of mbr-perf."""

    bridge: str
    megatron_lm: str
    without: tuple[str, ...]
    environment: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        if not self.bridge:
            return ()
        gone = f"leave out {', '.join(self.without)}"
        added = f"Megatron-LM{f' ({gone})' if self.without else ''}: {self.megatron_lm}"
        instead = gone if self.without else "no argument of recompute"
        variables = self.environment.replace("-E ", "")
        own = (f"Environment: export {variables} (mbr-perf: {self.environment})",) if variables else ()
        return *own, f"Megatron-Bridge: {self.bridge}", added if self.megatron_lm else f"Megatron-LM: {instead}"


_SIZES = ("parallelism.tensor_model_parallel_size", "parallelism.pipeline_model_parallel_size",
          "parallelism.virtual_pipeline_model_parallel_size", "parallelism.context_parallel_size",
          "parallelism.sequence_parallel", "batch.micro_batch_size", "batch.global_batch_size")  # fmt: skip
_OF_EXPERTS = ("parallelism.expert_model_parallel_size", "parallelism.expert_tensor_parallel_size")


def to_paste(spec: ExperimentSpec, base: ExperimentSpec, *, with_sizes: bool = False) -> ToPaste:
    """Return the recompute of ``spec`` and what else differs from ``base``; ``with_sizes``: the layout, too."""
    if spec.recompute.granularity == "planned":
        return ToPaste("", "", ())
    sizes: tuple[str, ...] = () if not with_sizes else _SIZES + _OF_EXPERTS if spec.model.moe else _SIZES
    sizes += ("parallelism.cp_comm_type",) * (spec.parallelism.cp_comm_type != "p2p")  # both leave it out if CP is 1
    paths = dict.fromkeys(
        ("recompute", *sizes, *(path for path in _changed(spec, base) if path not in {*IDENTITY, "env"}))
    )
    (words, _), (former, _) = as_megatron(spec, paths, sizes), as_megatron(base, paths)
    gone = _gone(spec, base, set(_options(former)) - set(_options(words)), sizes)
    env = [f"-E {name}={shlex.quote(value)}" for name, value in spec.env.items() if base.env.get(name) != value]
    return ToPaste(shlex.join(as_bridge(spec, paths)[0]), shlex.join(words), tuple(dict.fromkeys(gone)), " ".join(env))


def _gone(spec: ExperimentSpec, base: ExperimentSpec, former: set[str], sizes: tuple[str, ...]) -> list[str]:
    off = [row for row in rows_of("megatron") if row.path in sizes and not at_path(spec, row.path)]
    names = [name for row in off for name in row.names[: row.num_own] if name in arguments()]
    also = ["--recompute-activations"] if base.recompute.text == "core_attn" != spec.recompute.text else []
    return [*also, *sorted(former), *(option for name in names for option in arguments()[name].options)]


def _options(words: Words) -> list[str]:
    return [word.partition("=")[0] for word in words if word.startswith("--")]


def _changed(spec: ExperimentSpec, base: ExperimentSpec) -> list[str]:
    return [path for path in LEAVES if at_path(spec, path) != at_path(base, path)]


def sayable(spec: ExperimentSpec, base: ExperimentSpec) -> bool:
    """Return whether both programs have words for every setting that differs between two jobs."""
    both = {row.path for row in rows_of("bridge")} & {row.path for row in rows_of("megatron")} | {"recompute"}
    return both.issuperset(_changed(spec, base))
