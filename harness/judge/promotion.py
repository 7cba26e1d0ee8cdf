"""Decides whether runs may become a golden, and how much repeats may differ."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from harness.errors import BadRequestError, raise_all
from harness.experiment.experiment import MIN_STEPS, ExperimentSpec
from harness.experiment.flops import FORMULA_VERSION
from harness.experiment.recompute import canonical_text
from harness.judge.coverage import is_whole, measured_device
from harness.judge.derive import combine, derive
from harness.judge.gate import default_thresholds
from harness.judge.likeness import SOFTWARE, measured_on
from harness.judge.plausible import doubts_of
from harness.judge.statistics import relative_spread
from harness.records.golden import MOST_SPREAD, GoldenMetric, GoldenRecord, setting_differences
from harness.records.metrics import BY_NAME, METRICS, SUMMARY_METRICS, Metric, Metrics
from harness.records.redact import redact
from harness.records.run import RunRecord
from harness.units import format_share

# If the spread is half the threshold, one of twenty equal runs exceeds the threshold (two standard deviations).
MOST_OF_THRESHOLD = 0.5


_OF_SPREAD = "find out what disturbs the runs and repeat them, or promote anyway with --accept_spread"
_SIGNIFICANT_DIGITS = 6
_SPEED = "tflops_per_gpu"


@dataclass(frozen=True)
class PromotionOptions:
    """Why, by whom, when, and how strictly. ``thresholds``: by metric, if not the GPU's."""

    reason: str
    author: str
    now: datetime
    replace_other: bool = False
    accept_spread: bool = False
    thresholds: Mapping[str, float] = field(default_factory=dict)
    night_id: str | None = None


def promote(
    records: Sequence[RunRecord], options: PromotionOptions, before: GoldenRecord | None = None
) -> GoldenRecord:
    """Make golden values of repeats: medians, highest peaks, spreads. BadRequestError names all that forbids it."""
    each = [derive(record) for record in records]
    mixed = _mixed(records, each)
    spec, stored = records[0].spec, _stored(each)
    wide = _wide(spec, each, options) if not mixed and _SPEED in stored else ()
    raise_all(
        [
            *_request_problems(records, options),
            *mixed,
            *(
                BadRequestError(f"run {record.run_id}: {problem}")
                for record, metrics in zip(records, each, strict=True)
                for problem in _run_problems(record, metrics)
            ),
            *([] if options.replace_other else _other_settings(records[0], before)),
            *(BadRequestError(text, remedy=_OF_SPREAD) for text in wide if not options.accept_spread),
        ]
    )
    golden = GoldenRecord(
        kind="measured",
        recipe=spec.recipe,
        task=spec.task,
        gpu=spec.gpu,
        compute_dtype=spec.compute_dtype,
        num_gpus=spec.num_gpus,
        recompute=canonical_text(spec.recompute),
        fingerprint=records[0].fingerprint,
        spec=spec.identity(),
        metrics=_with_spreads(stored, each),
        measured_on=measured_on(records),
        formula_version=FORMULA_VERSION,
        run_ids=tuple(record.run_id for record in records),
        num_runs=len(records),
        promoted_at=options.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        promoted_by=redact(options.author.strip()),
        reason=redact(options.reason.strip()),
        max_steps=spec.measure.max_steps,
        window=spec.measure.window,
        overridden=wide,
        night_id=options.night_id,
    )
    return golden.model_copy(update=_of_logs(records, each) or _without_time(each))


def _wide(spec: ExperimentSpec, each: Sequence[Metrics], options: PromotionOptions) -> tuple[str, ...]:
    """Return a sentence if throughput of the repeats, or of a single run's steps, varies too much for a golden."""
    steps = each[0].tflops_per_gpu
    what, spread = f"{len(each)} runs", _spread(_SPEED, each)
    if len(each) == 1 and steps:
        what, spread = f"{steps.n} steps of the only run", steps.relative_spread
    threshold = options.thresholds.get(_SPEED, default_thresholds(spec, len(each)).time)
    if spread is None or spread <= MOST_OF_THRESHOLD * threshold:
        return ()
    half = f"{format_share(MOST_OF_THRESHOLD * threshold)}, half the threshold"
    return (f"{_SPEED}: {what} spread by {spread * 100:.1f} % (standard deviation), more than {half}",)


def _stored(each: Sequence[Metrics]) -> dict[str, float]:
    """Return the figures to store, without those that are missing."""
    together, is_any_short = combine(each), any(map(is_short, each))
    return {
        metric.name: value
        for metric in METRICS
        if _is_stored(metric) and not (metric.kind == "time" and is_any_short)
        if (value := metric.read(together)) is not None
    }


def _spread(name: str, each: Sequence[Metrics]) -> float | None:
    return relative_spread([value for run in each if (value := BY_NAME[name].read(run)) is not None])


def _with_spreads(stored: Mapping[str, float], each: Sequence[Metrics]) -> dict[str, GoldenMetric]:
    """Return the rounded figures with their spreads. BadRequestError: a golden may not have so much of it."""
    spreads = {name: _spread(name, each) for name in stored}
    problems = [
        BadRequestError(
            f"{name}: the runs spread by {format_share(spread)}; a golden may have at most {format_share(MOST_SPREAD)}",
            remedy="find out what disturbs the runs and repeat them",
        )
        for name, spread in spreads.items()
        if spread is not None and spread > MOST_SPREAD
    ]
    raise_all(problems)
    return {
        name: GoldenMetric(
            value=value if isinstance(value, int) else float(f"{value:.{_SIGNIFICANT_DIGITS}g}"),
            relative_spread=None if (spread := spreads[name]) is None else round(spread, 6),
        )
        for name, value in stored.items()
    }


def _other_settings(record: RunRecord, before: GoldenRecord | None) -> list[BadRequestError]:
    """Refuse to replace a golden of other settings: a proxy with fewer layers has the same file name."""
    if before is None or before.fingerprint in (None, record.fingerprint):
        return []
    different = setting_differences(before, record.spec, record.fingerprint)
    return [
        BadRequestError(
            f"the golden with this name is for other settings: {'; '.join(each.text for each in different)}",
            remedy="use another --golden_dir, or replace the golden with --replace_other",
        )
    ]


def _without_time(each: Sequence[Metrics]) -> dict[str, object]:
    short = next(filter(is_short, each), None)
    return {"caveats": (f"no time: {short.problems['step_time_s']}",)} if short else {}


def _of_logs(records: Sequence[RunRecord], each: Sequence[Metrics]) -> dict[str, object]:
    """Return the fields of a golden from logs: it is external, and its caveats name the values that the logs lack."""
    logs = [record.imported for record in records if record.imported is not None]
    if not logs:
        return {}
    files = ", ".join(f"{file.name} (sha256 {file.sha256[:12]})" for log in logs for file in log.files)
    short = {
        f"{name}: {metrics.problems[name]}"
        for metrics in each
        for name, peak in metrics.peaks.items()
        if peak is not None and name in metrics.problems
    }
    missing = dict.fromkeys(text for log in logs for text in (*log.unsaid, log.provisional) if text)
    return {"kind": "external", "source": f"training logs: {files}", "caveats": (*sorted(short), *missing)}


def _is_stored(metric: Metric) -> bool:
    return metric.gate is not None or metric.name in SUMMARY_METRICS


def _request_problems(records: Sequence[RunRecord], options: PromotionOptions) -> Iterator[BadRequestError]:
    if not options.reason.strip():
        yield BadRequestError("--reason is empty", remedy="give the reason why this run becomes the reference")
    if not options.author.strip():
        yield BadRequestError("--author is empty", remedy="pass --author, or set git config user.name")
    num_each = Counter(record.run_id for record in records)
    yield from (
        BadRequestError(f"run {run} is named twice; name different runs") for run, n in num_each.items() if n > 1
    )


def _mixed(records: Sequence[RunRecord], each: Sequence[Metrics]) -> list[BadRequestError]:
    traits: dict[str, set[str]] = {
        "settings (fingerprint)": {record.fingerprint for record in records},
        "counted FLOPs": {str(metrics.counted_flops_per_step) for metrics in each},
        "device": {str(measured_device(record)) for record in records},
        "driver": {str(record.provenance.driver_version) for record in records},
        "container": {str(record.provenance.container) for record in records},
    }
    traits |= {name: {str(record.provenance.versions.get(name)) for record in records} for name in SOFTWARE}
    return [
        BadRequestError(f"the runs differ in {name}: {', '.join(sorted(values))}", remedy="promote runs of one kind")
        for name, values in traits.items()
        if len(values) > 1
    ]


def _run_problems(record: RunRecord, metrics: Metrics) -> list[str]:
    problems = [f"suspect: {why}" for why in doubts_of(record, metrics)]
    problems += record.unmeasured
    if record.status != "ok":
        problems.append(f"ended as {record.status}: {record.failure or 'no failure recorded'}")
    if not is_whole(record):
        problems.append("not every rank finished")
    is_log = record.imported is not None  # whose golden's caveats name the ranks without memory
    for metric in METRICS:
        is_left_out = metric.kind == "time" and is_short(metrics)
        problem, value = metrics.problems.get(metric.name), metric.read(metrics)
        is_known = (is_log and metric.gate == "memory") or (is_left_out and record.status == "ok")
        if problem and metric.gate and not is_known and (value is not None or metric.gate == "time"):
            problems.append(f"{metric.name}: {problem}")
    return problems


def is_short(metrics: Metrics) -> bool:
    """Return whether a finished run has too few steps for a verdict on time, but figures of memory."""
    steps = metrics.step_time_s
    return steps is not None and steps.n < MIN_STEPS and metrics.peak_allocated_bytes is not None
