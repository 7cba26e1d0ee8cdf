"""A history record, and how a run becomes one."""

import math
from datetime import datetime

from pydantic import Field

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.frozen import Frozen
from harness.judge.coverage import measured_device
from harness.judge.gate import Outcome
from harness.judge.plausible import doubts_of
from harness.records.batches import Purpose
from harness.records.metrics import METRICS, SUMMARY_METRICS, Metrics, Summary
from harness.records.rank import Recorded
from harness.records.run import RunRecord, Status
from harness.units import GIB, first_line, utc_time

LIMIT = "@"
"""Between the place of a case's golden and the memory limit of its runs, in the name of a case that has one."""


class HistoryFigure(Frozen):
    """One metric of one run as `records.metrics` reads it; ``stdev``: over its ``n`` steps, for metrics of steps."""

    value: float
    stdev: float | None = None
    n: int | None = None


class Occasion(Frozen):
    """Why a run was made; by default ad hoc. ``allowed``: the threshold that decided, by metric."""

    suite: str = ""
    suite_case: str = ""
    night_id: str = ""
    purpose: Purpose = "repeat"
    outcome: Outcome | None = None
    is_expected: bool = False
    allowed: dict[str, float] = Field(default_factory=dict)


class HistoryRecord(Recorded, Occasion):
    """A run in history, which never changes.

    ``case``: ``<gpu>/<slug>``, the place of its golden, then its memory limit if it has one; runs of one case with
    another ``fingerprint`` are another series. ``is_start_known`` False: of an imported run whose log has no times.
    Units are those of the metric table. ``sm_clock_mhz``: median SM clock of the slowest GPU; ``power_cap_share``: time
    under the power cap of the most limited one (0 to 1).
    """

    run_id: str
    case: str
    fingerprint: str
    started_at: str
    is_start_known: bool = True
    duration_s: float
    status: Status
    failure: str | None = None
    suspect: tuple[str, ...] = ()
    metrics: dict[str, HistoryFigure] = Field(default_factory=dict)
    formula_version: str
    sm_clock_mhz: float | None = None
    power_cap_share: float | None = None
    predicted_peak_bytes: int | None = None
    git_commit: str | None = None
    branch: str | None = None
    hostname: str
    device_name: str | None = None
    driver_version: str | None = None
    versions: dict[str, str | None] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)
    container: str | None = None
    job_id: str | None = None

    @property
    def end(self) -> str:
        """The outcome of the case in its night, else how the run ended."""
        return self.outcome or self.status


def started(record: HistoryRecord) -> datetime:
    """Return when the run started, in UTC. BadRequestError if that is no time."""
    try:
        return utc_time(record.started_at)
    except ValueError as error:
        raise BadRequestError(f"run {record.run_id}: started_at {record.started_at!r}: not an ISO-8601 time") from error


def case_of(spec: ExperimentSpec) -> str:
    """Return ``<gpu>/<slug>``, and ``@0.13GiB`` where memory is limited: such runs are a series of their own."""
    limit = spec.measure.memory_limit_bytes
    return f"{spec.gpu}/{spec.slug}" + ("" if limit is None else f"{LIMIT}{limit / GIB:.4g}GiB")


_OF_PROVENANCE = ("started_at", "duration_s", "git_commit", "hostname", "driver_version", "container", "job_id")


def history_record(record: RunRecord, metrics: Metrics, occasion: Occasion | None = None) -> HistoryRecord:
    """Make the record of one run by its own ``metrics``. BadRequestError: it had no real device."""
    if record.no_time:
        raise BadRequestError(
            f"run {record.run_id}: {record.no_time}", remedy="leave it out: history has measured runs"
        )
    why = occasion or Occasion()
    where = record.provenance
    return HistoryRecord(
        **dict(why),
        **{name: getattr(where, name) for name in _OF_PROVENANCE},
        run_id=record.run_id,
        case=case_of(record.spec),
        fingerprint=record.fingerprint,
        is_start_known=record.imported is None or record.imported.start_source != "unknown",
        status=record.status,
        failure=first_line(record.failure) or None,
        suspect=(*doubts_of(record, metrics), *record.unmeasured),
        metrics=_figures(metrics),
        formula_version=metrics.formula_version,
        sm_clock_mhz=metrics.clocks.sm_clock_mhz if metrics.clocks else None,
        power_cap_share=metrics.clocks.power_cap_share if metrics.clocks else None,
        predicted_peak_bytes=record.prediction.measurable_peak_bytes if record.prediction else None,
        branch=where.git_branch,
        device_name=measured_device(record),
        versions=dict(sorted(where.versions.items())),
        environment=dict(sorted(where.environment.items())),
    )


def _figures(metrics: Metrics) -> dict[str, HistoryFigure]:
    found: dict[str, HistoryFigure] = {}
    for metric in METRICS:
        value = metric.read(metrics)
        of_steps: Summary | None = getattr(metrics, metric.name) if metric.name in SUMMARY_METRICS else None
        if value is not None and math.isfinite(value):
            steps = {"stdev": of_steps.stdev, "n": of_steps.n} if of_steps else {}
            found[metric.name] = HistoryFigure.model_validate({"value": value, **steps})
    return found
