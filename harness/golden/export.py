"""Exports a golden or a run as golden values of Megatron-Bridge."""

import math
from pathlib import Path

from harness.errors import BadRequestError, os_errors_reported
from harness.experiment.experiment import MeasureSpec
from harness.experiment.flops import achieved_tflops, model_flops_per_step
from harness.explain.references import named
from harness.foreign.golden import LOSS, OF_WHOLE_RUN, THROUGHPUT, TIME_MS, Document, bridge_text
from harness.judge.derive import derive
from harness.judge.plausible import doubts_of, impossible_golden
from harness.judge.readings import window_of
from harness.records.golden import GoldenRecord
from harness.records.run import RunRecord
from harness.records.store import write_atomically
from harness.show import json
from harness.units import GB, counted

_PEAKS = {"max_alloc": "peak_allocated_bytes", "max_reserved": "peak_reserved_bytes"}
_NO_ALLOC = (
    "no alloc, so Megatron-Bridge does not check memory: its max_alloc is of a log's first report, ours of the "
    "whole run"
)


class ExportDocument(json.Document):
    """``mbr-perf golden export --json``. ``document``: golden values of Megatron-Bridge by step."""

    format: str = "bridge"
    path: Path | None = None
    document: dict[str, object]
    notes: tuple[str, ...]

    @property
    def text(self) -> str:
        return bridge_text(self.document)


def export_bridge(reference: str, results: Path | None = None, goldens: Path | None = None) -> ExportDocument:
    """Export the golden or run that ``reference`` names. BadRequestError: it has no step time."""
    found = named(reference, results, goldens)
    record = found.record
    return of_run(record) if isinstance(record, RunRecord) else of_golden(found.name, record)


def of_golden(name: str, golden: GoldenRecord) -> ExportDocument:
    """Export a golden. Every step carries its medians. BadRequestError: a figure cannot be true."""
    if wrong := impossible_golden(golden):
        raise BadRequestError(
            f"{name}: {'; '.join(wrong)}", remedy="write it again with mbr-perf golden promote RUN --reason ..."
        )
    stored = {name: metric.value for name, metric in golden.metrics.items()}
    step: Document = {}
    if "step_time_s" in stored:
        step[TIME_MS] = stored["step_time_s"] * 1000
    if "tflops_per_gpu" in stored:
        step[THROUGHPUT] = stored["tflops_per_gpu"]
    if not step:
        raise BadRequestError(
            f"{name}: has neither throughput nor step time, which golden values of Megatron-Bridge need",
            remedy="export the run that it was promoted from: mbr-perf golden export RUN",
        )
    count = golden.max_steps or MeasureSpec().max_steps
    notes = [f"each of {counted(count, 'step')} carries the median: a golden stores no steps and no losses"]
    if TIME_MS not in step:
        notes.append(f"no {TIME_MS!r}, so Megatron-Bridge's evaluator cannot read this golden")
    document: Document = {str(number): dict(step) for number in range(count)}
    return _with_memory(document, {key: stored.get(metric) for key, metric in _PEAKS.items()}, notes)


def of_run(run: RunRecord) -> ExportDocument:
    """Export the steps of a run and the loss of its last stage. BadRequestError for an imported log."""
    if run.imported is not None:
        remedy = "compare the log itself: mbr-perf compare NEW.log OLD.log"
        raise BadRequestError(f"{run.run_id}: imported from a log, which has these values", remedy=remedy)
    metrics = derive(run)
    doubts = [*([] if run.status == "ok" else [f"ended as {run.status}"]), *doubts_of(run, metrics)]
    if doubts := [*doubts, *([run.no_time] if run.no_time else [])]:
        raise BadRequestError(f"{run.run_id}: cannot become a golden: {'; '.join(doubts)}", remedy=_REMEDY)
    losses, notes = _losses(run), list[str]()
    document: Document = {
        str(number): step if number not in losses else {LOSS: losses[number], **step}
        for number, step in _steps(run).items()
    }
    found = {key: getattr(metrics, metric) for key, metric in _PEAKS.items()}
    values = {key: None if peak is None else peak.value for key, peak in found.items()}
    notes += [f"{key}: {metrics.problems[metric]}" for key, metric in _PEAKS.items() if metric in metrics.problems]
    return _with_memory(document, values, [*notes, *([] if losses else ["no losses, because the run recorded none"])])


def _steps(run: RunRecord) -> dict[int, Document]:
    window = window_of(run.ranks, run.spec.num_gpus, 0, run.spec.measure.max_steps)
    if window.missing or not window.seconds:
        raise BadRequestError(f"{run.run_id}: {window.problem or 'no step'}", remedy=_REMEDY)
    flops = model_flops_per_step(run.spec)
    return {
        number: {TIME_MS: seconds * 1000, THROUGHPUT: achieved_tflops(flops, seconds, run.spec.num_gpus)}
        for number, seconds in enumerate(window.seconds)
    }


_REMEDY = "name a run that ended well: mbr-perf results list"


def write_export(path: Path, exported: ExportDocument) -> None:
    """Write the file. BadRequestError: it cannot be written; an existing file stays as it is."""
    with os_errors_reported(f"{path}: cannot be written", "name a file in a writable folder with -o"):
        write_atomically(path, exported.text)


def _with_memory(document: Document, values: dict[str, int | float | None], notes: list[str]) -> ExportDocument:
    known = {key: value / GB for key, value in values.items() if value is not None}
    if not known:
        return ExportDocument(document=document, notes=(*notes, "no memory"))
    return ExportDocument(document=document | known | {OF_WHOLE_RUN: 1}, notes=(*notes, _NO_ALLOC))


def _losses(run: RunRecord) -> dict[int, float]:
    """Return the loss by step. All ranks that know a loss know the same value."""
    steps = ((step.step, step.loss) for rank in run.ranks for step in rank.steps)
    return {number: loss for number, loss in steps if loss is not None and math.isfinite(loss)}
