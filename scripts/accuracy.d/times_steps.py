"""Measured steps as requests: published throughput, pull requests, papers, Megatron-LM's functional tests."""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median_low
from typing import Any

import published
from korthikanti import costs_of, made_of
from korthikanti import spec_of as paper_spec

from harness.errors import HarnessError
from harness.experiment.effective import NO_SOFTWARE, effective_recompute
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.flops import model_flops_per_step, recompute_flops_per_step
from harness.experiment.recompute import parse_recompute
from harness.launch.environment import Host
from harness.predict.compose import ChunkCost, Op, Work
from harness.predict.experts import at_pace
from harness.predict.search import Traces
from harness.predict.stages import Composer
from harness.predict.step_ranges import generation_of
from harness.predict.time_model import Clock, Efficiency, StepTime, kind_of_step, step_time
from harness.resolve.recipe import Request
from harness.resolve.resolve import resolve

# Inputs whose rows have Megatron-LM's arguments.
ARGUED = ("h100_dense_times", "megatron_lm_goldens", "other_published", "experts")

Row = dict[str, Any]
Costs = tuple[tuple[ChunkCost, ...], ...]

# Steps of a few tens of milliseconds on shared machines: the same test, run on several days, repeats within this share
# where a published figure repeats within a tenth.
SCATTER = {"published": 0.1, "functional test": 0.3}
_DETERMINISTIC = "torch's deterministic mode: other kernels, and every new tensor is filled"


@dataclass(frozen=True)
class Step:
    """One measured step. ``model``: what is left out together; ``origin``: a key of :data:`SCATTER`. ``runs``: seconds of each run."""

    name: str
    model: str
    origin: str
    spec: ExperimentSpec
    costs: Costs
    seconds: float
    source: str
    taken_as: tuple[str, ...]
    runs: tuple[float, ...]

    @cached_property
    def condensed(self) -> Costs:
        """``costs`` with equal work in fewer operations, which a fit reads hundreds of times."""
        made = {id(chunk): replace(chunk, work=_condensed(chunk.work)) for stage in self.costs for chunk in stage}
        return tuple(tuple(made[id(chunk)] for chunk in stage) for stage in self.costs)

    @property
    def experts(self) -> str:
        return "experts" if self.spec.model.moe else "dense"

    @property
    def generation(self) -> str:
        """Return what a constant of the GPU is fitted for: ``8.x`` to A100, ``9.x`` to Hopper, ``10.x`` to Blackwell."""
        return generation_of(self.spec.gpu)

    def predicted(self, efficiency: Efficiency) -> float:
        """Return the seconds at these efficiencies."""
        return Clock(self.spec, efficiency).step(self.condensed).likely_s

    def time(self, efficiency: Efficiency) -> StepTime:
        """Return the whole prediction."""
        return step_time(self.spec, self.condensed, efficiency)

    def kind(self, efficiency: Efficiency) -> str:
        """Return the class whose residuals give the range."""
        return kind_of_step(self.spec, self.time(efficiency))


def _condensed(work: Work) -> Work:
    """Return work with one mean operation for all that move bytes, and for all messages alike: both cost by the byte."""
    counts: dict[Op, float] = {}
    sums: dict[Op, list[float]] = {}
    for op, count in work:
        if op.kind not in ("elementwise", "comm"):
            counts[op] = counts.get(op, 0) + count
            continue
        total = sums.setdefault(op._replace(dtype="bf16", flops=0, bytes=0, comm_bytes=0), [0.0, 0.0, 0.0])
        for place, figure in enumerate((1, op.bytes, op.comm_bytes)):
            total[place] += count * figure
    for op, (count, moved, sent) in sums.items():
        if count:
            each = op._replace(bytes=round(moved / count), comm_bytes=round(sent / count))
            counts[each] = counts.get(each, 0) + count
    return Work(counts)


def read(folder: Path, host: Host) -> tuple[list[Step], dict[str, str]]:
    """Return all steps of the inputs in ``folder``, and the rows left out, each with the reason."""
    steps, left_out = _published(folder / "h100_times.json", host)
    for read_rows, name in ((_published, "blackwell_times"), *((_argued, name) for name in ARGUED)):
        found, missing = read_rows(folder / f"{name}.json", host)
        steps, left_out = [*steps, *found], left_out | missing
    return [*steps, *_of_papers(folder / "korthikanti2022.json", host)], left_out


def _of_papers(source: Path, host: Host) -> list[Step]:
    """Return whole models on A100. Where only the throughput is known, seconds follow from the model's FLOPs.

    Narayanan et al. count the recomputed forward pass as work done, Korthikanti et al. do not.
    """
    rows = [row for row in json.loads(source.read_text())["rows"] if not row["id"].startswith("kor-t4")]
    rows = [row for row in rows if row["step_s"] or row["mfu_percent"] or row["tflops_per_gpu"]]
    specs, steps = [*map(paper_spec, rows)], []
    for row, spec, costs in zip(rows, specs, made_of(specs, host, costs_of), strict=True):
        seconds = row["step_s"]
        if seconds is None:
            rate = row["tflops_per_gpu"] or row["mfu_percent"] / 100 * spec.gpu_type.peak_flops["bf16"] / 1e12
            flops = model_flops_per_step(spec)
            if row["tflops_per_gpu"]:
                flops += recompute_flops_per_step(spec, effective_recompute(spec, "local", NO_SOFTWARE))
            seconds = flops / (rate * 1e12 * spec.num_gpus)
        model = next(part for part in row["id"].split("-") if part[0].isdigit())
        steps.append(Step(row["id"], model, "published", spec, costs, seconds, row["source"], (), (seconds,)))
    return steps


def published_spec(row: Row) -> ExperimentSpec:
    """The operating point that a published row names, with what it sets. HarnessError where a recipe lacks it."""
    changed = resolve(Request(**{"gpu": "h100"} | row["request"])).spec.model_dump(mode="json")
    for path, value in row["set"].items():
        *sections, last = path.split(".")
        place = changed
        for section in sections:
            place = place[section]
        place[last] = parse_recompute(value).model_dump(mode="json") if path == "recompute" else value
    return ExperimentSpec.model_validate_json(json.dumps(changed))


def _seconds(row: Row, spec: ExperimentSpec) -> float:
    """Return the seconds of a step of ``spec``, from whichever figure was published."""
    if row["step_s"]:
        return float(row["step_s"])
    if row["tokens_per_s_per_gpu"]:
        return spec.tokens_per_step / spec.num_gpus / float(row["tokens_per_s_per_gpu"])
    return model_flops_per_step(spec) / (float(row["tflops_per_gpu"]) * 1e12 * spec.num_gpus)


def _published(source: Path, host: Host) -> tuple[list[Step], dict[str, str]]:
    rows: list[Row] = json.loads(source.read_text())["rows"]
    left_out = {row["id"]: row["left_out"] for row in rows if row["left_out"]}
    specs: dict[str, ExperimentSpec] = {}
    for row in rows:
        if row["id"] not in left_out:
            try:
                specs[row["id"]] = published.on_te(published_spec(row))
            except HarnessError as error:
                left_out[row["id"]] = error.message
    costs, missing = _costs({name: (spec, "transformer_engine") for name, spec in specs.items()}, host)
    left_out |= missing
    seconds = {row["id"]: _seconds(row, specs[row["id"]]) for row in rows if row["id"] in costs}
    return [
        Step(row["id"], row["model"], "published", specs[row["id"]], costs[row["id"]], seconds[row["id"]],
             f"{row['source']}; settings: {row['settings_from']}", tuple(row["taken_as"]), (seconds[row["id"]],))
        for row in rows if row["id"] in costs
    ], left_out  # fmt: skip


def _argued(source: Path, host: Host) -> tuple[list[Step], dict[str, str]]:
    """Rows on H100 with Megatron-LM's arguments: published ones name their model, functional tests do not.

    Runs of equal specs are one step: of two times the shorter, a slow machine is not it.
    """
    steps: list[Step] = []
    rows = {row["path"]: row for row in json.loads(source.read_text())["rows"]
            if row["hardware"] == "H100" or ("simumax" in row["path"] and row["stage"] <= 0)}  # fmt: skip
    left_out = {path: _DETERMINISTIC for path, row in rows.items() if row["arguments"].get("deterministic-mode")}
    left_out |= {path: "no step time recorded" for path, row in rows.items() if not row["step_time_s"]}
    cases, unread = published.cases_of((row for path, row in rows.items() if path not in left_out), needs_peaks=False)
    left_out |= unread
    ordered = sorted(cases, key=lambda case: case.implementation != cases[0].implementation)
    group = {case.paths[0]: case for case in ordered}
    costs, missing = _costs({path: (case.spec, case.implementation) for path, case in group.items()}, host)
    left_out |= missing
    for path in costs:
        case, model = group[path], rows[path].get("model")
        if "simumax" in path:  # rows of one model: left out together is a layout
            model = model or path.partition("-")[2].rpartition("_mbc")[0]
        runs = tuple(rows[each]["step_time_s"] for each in case.paths)
        shape, moe = case.spec.model, case.spec.model.moe
        test = f"test of {shape.num_layers} x {shape.hidden_size}{f', {moe.num_moe_experts} experts' if moe else ''}"
        steps.append(Step(
            path if model else case.name, model or test, "published" if model else "functional test", case.spec,
            costs[path], median_low(runs), ", ".join(case.paths), case.taken_as, runs,
        ))  # fmt: skip
    return steps, left_out


def _costs(jobs: published.Jobs, host: Host) -> tuple[dict[str, Costs], dict[str, str]]:
    """Return the chunks of each request on the rank that sets the pace, and why some have none."""

    def costs(composer: Composer, traces: Traces) -> Costs:
        even = composer.chunk_costs(traces.even)
        return at_pace(composer.spec, even, composer.chunk_costs(traces.uneven) if traces.uneven else even)

    found, left_out = published.composed(jobs, host, costs)
    return {name: found[name] for name in jobs if name in found}, left_out
