"""Measurements nearest to a planned setting: goldens, and throughput that others published."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from harness.errors import HarnessError
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import canonical_text, parse_recompute
from harness.predict.flops import achieved_tflops, model_flops_per_step
from harness.predict.prediction import Prediction
from harness.predict.search import Plan
from harness.records.folders import checkout_dir
from harness.records.golden import difference_text, leaves, setting_differences, unstated_options
from harness.records.goldens import golden_dir, list_goldens
from harness.resolve.recipe import Request
from harness.resolve.resolve import resolve
from harness.show.page import Block, Line, details
from harness.units import counted, format_percent


@dataclass(frozen=True)
class Nearest:
    """The measurement with the fewest other settings than a planned one. Errors: predicted over measured, less 1.

    ``differences``: settings that the measurement has otherwise or does not state. ``source``: who published it; empty
    for a golden.
    """

    name: str
    recompute: str
    differences: tuple[str, ...]
    peak_error: float | None
    throughput_error: float | None
    source: str = ""


# A measurement of another layout says nothing about the error of a prediction. Neither does a golden of another batch.
_OF_LAYOUT = ("num_gpus", "parallelism.", "model.", "batch.seq_length", "batch.micro_batch_size")
_OF_GOLDEN = (*_OF_LAYOUT, "batch.")

_PUBLISHED = "accuracy/inputs/h100_times.json"


def nearest_golden(plan: Plan, sources: Mapping[str, str], folder: Path | None = None) -> Nearest | None:
    """Return the golden of ``folder`` nearest to a predicted setting of the same job and layout, or None."""
    spec, found = plan.spec, []
    rows = _predicted(plan)
    for path, golden in list_goldens(folder or golden_dir())[0].items():
        try:
            row = rows.get(canonical_text(parse_recompute(golden.recompute)))
        except ValueError:  # a setting of another version
            continue
        labels = (golden.recipe, golden.task, golden.gpu, golden.compute_dtype)
        if row is None or labels != (spec.recipe, spec.task, spec.gpu, spec.compute_dtype):
            continue
        text, own, prediction = row
        different = setting_differences(golden, own, own.fingerprint)
        if any(name.startswith(_OF_GOLDEN) for name in different):
            continue
        texts = [difference_text(name, *values) for name, values in different.items()]
        texts += [f"{name}: not stated by the golden" for name in unstated_options(golden, own, sources)]
        peak, speed = golden.metrics.get("peak_allocated_bytes"), golden.metrics.get("tflops_per_gpu")
        throughput = prediction.tflops_per_gpu / speed.value - 1 if speed and prediction.tflops_per_gpu else None
        # Published peaks are of later steps, as far as they tell: they are 16 % below the eager steps before a capture.
        stages, is_own = prediction.stages, golden.kind == "measured"
        planned = max(stage.whole_run for stage in stages) if is_own else prediction.peak_bytes
        peak_error = planned / peak.value - 1 if peak else None
        found.append(Nearest(path.stem, text, tuple(texts), peak_error, throughput))
    return min(found, key=lambda each: (len(each.differences), each.name), default=None)


def _predicted(plan: Plan) -> dict[str, tuple[str, ExperimentSpec, Prediction]]:
    return {
        canonical_text(row.candidate.spec.recompute): (row.text, row.candidate.spec, row.prediction)
        for row in plan.rows
        if row.prediction
    }


def published_file() -> Path:
    """Return the file with published throughput, in the checkout or in the installed package."""
    checkout = checkout_dir()
    return checkout / "results" / _PUBLISHED if checkout else Path(harness.__file__).parent / "_data" / _PUBLISHED


def published_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows: ``request`` names an operating point of mbr-perf, ``set`` what differs from it."""
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    return rows


def published_spec(row: Mapping[str, Any]) -> ExperimentSpec:
    """The operating point that a published row names, with what it sets. HarnessError where a recipe lacks it."""
    changed = resolve(Request(gpu="h100", **row["request"])).spec.model_dump()
    for path, value in row["set"].items():
        *sections, last = path.split(".")
        place = changed
        for section in sections:
            place = place[section]
        place[last] = parse_recompute(value) if path == "recompute" else _frozen(value)
    return ExperimentSpec.model_validate(changed)


def _frozen(value: Any) -> Any:
    """Return lists as tuples, which a strict spec takes."""
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def published_seconds(row: Mapping[str, Any], spec: ExperimentSpec) -> float:
    """Return the seconds of a step of ``spec``, from whichever figure was published."""
    if row["step_s"]:
        return float(row["step_s"])
    if row["tokens_per_s_per_gpu"]:
        tokens = spec.batch.global_batch_size * spec.batch.seq_length
        return tokens / spec.num_gpus / float(row["tokens_per_s_per_gpu"])
    return model_flops_per_step(spec) / (float(row["tflops_per_gpu"]) * 1e12 * spec.num_gpus)


def nearest_published(plan: Plan, file: Path | None = None) -> Nearest | None:
    """Return the published throughput nearest to a predicted setting of the same recipe, layout and precision.

    Its global batch may differ, because throughput hardly depends on it. Among equally near rows the first one counts,
    which is the latest. The implementation of the layers is not compared, because no source states it. None without
    such a row.
    """
    spec, found = plan.spec, []
    rows, file = _predicted(plan), file or published_file()
    if spec.gpu != "h100" or not file.is_file():
        return None
    named = {"model_recipe_name": spec.recipe, "task": spec.task, "compute_dtype": spec.compute_dtype}
    for row in published_rows(file):
        if row["left_out"] or row["request"] | named != row["request"]:
            continue
        try:
            theirs = published_spec(row)
        except HarnessError:  # a point that recipes no longer have
            continue
        ours = rows.get(canonical_text(theirs.recompute))
        if ours is None or (predicted := ours[2].tflops_per_gpu) is None:
            continue
        text, own, _ = ours
        different = _differences(own, theirs)
        if any(name.startswith(_OF_LAYOUT) for name in different):
            continue
        seconds = published_seconds(row, theirs)
        published = achieved_tflops(model_flops_per_step(theirs), seconds, theirs.num_gpus)
        texts = tuple(f"{name}: published {there}, here {here}" for name, (here, there) in different.items())
        source = f"{row['source']}, {published:.0f} TFLOP/s/GPU"
        found.append(Nearest(row["id"], text, (*texts, *row["taken_as"]), None, predicted / published - 1, source))
    return min(found, key=lambda each: len(each.differences), default=None)


def _differences(own: ExperimentSpec, theirs: ExperimentSpec) -> dict[str, tuple[str, str]]:
    ours, others = leaves(own.identity()), leaves(theirs.identity())
    paths = sorted((ours.keys() | others.keys()) - {"kernels.transformer_impl"})
    both = {path: (ours.get(path, "none"), others.get(path, "none")) for path in paths}
    return {path: values for path, values in both.items() if values[0] != values[1]}


def nearest_blocks(golden: Nearest | None, published: Nearest | None) -> list[Block]:
    """Return the nearest golden, else the nearest published figure, as a line; the rest is details."""
    known = [each for each in (golden, published) if each]
    missing = [] if golden else ["Nearest golden: none with this recipe, task, GPU, precision, layout and batch"]
    apart = [f"{each.name} differs: {'; '.join(each.differences)}" for each in known if each.differences]
    lines = [Line(nearest_text(each), hang=2) for each in known]
    return [*lines[:1], details("note", [*missing, *lines[1:], *apart])]


def nearest_text(nearest: Nearest) -> str:
    """Name the nearest golden or published figure, and say how far the prediction of its setting is from it."""
    errors = (("peak", nearest.peak_error), ("TFLOP/s/GPU", nearest.throughput_error))
    texts = [f"predicted {what} {format_percent(error)}" for what, error in errors if error is not None]
    what = f"published figure: {nearest.name} ({nearest.source})" if nearest.source else f"golden: {nearest.name}"
    others = f"; {counted(len(nearest.differences), 'other setting')}" if nearest.differences else ""
    return f"Nearest {what}: {', '.join(texts) or 'no peak, no throughput'}{others}"
