"""Finds figures of a run that cannot be true: such a run gets no verdict and is never promoted."""

import math
from collections.abc import Iterable
from datetime import timedelta

from harness.judge.metrics import Metrics
from harness.judge.plausible_ranks import impossible_of_ranks, is_measured
from harness.records.run import RunRecord
from harness.units import format_seconds, format_share, grouped, ranks_text, utc_time

_CLOCK_SLEW = timedelta(seconds=5)  # a clock may be set back by so much without a note
USUAL_MFU = 0.75  # published training runs on H100 reach at most 60 %


def doubts_of(record: RunRecord, metrics: Metrics) -> tuple[str, ...]:
    """Return every reason not to trust a run: doubts from the run itself, then figures that cannot be true.

    ``metrics``: of this run. The figures of a failed run are partial and are not checked.
    """
    return tuple(dict.fromkeys((*record.suspect, *impossible(record, metrics))))


def impossible(record: RunRecord, metrics: Metrics) -> tuple[str, ...]:
    """Return the figures of a run that cannot be true, one sentence for each kind."""
    if record.status != "ok":
        return ()
    problems = grouped((what, rank) for rank, what in impossible_of_ranks(record))
    return (
        *(f"{ranks_text(sorted(set(ranks)))}: {what}" for what, ranks in problems.items()),
        *_too_fast(record, metrics),
        *_too_short(record),
        *_of_settings(record),
        *_of_clock(record),
    )


def remarkable(record: RunRecord, metrics: Metrics) -> tuple[str, ...]:
    """Return a note for a model FLOPs utilization that is possible and very unusual; empty for CPU runs."""
    if metrics.mfu is None or record.spec.gpu_type.is_cpu or not USUAL_MFU < metrics.mfu <= 1:
        return ()
    return (
        f"an MFU of {format_share(metrics.mfu)} is unusually high: check that the recipe and the number of GPUs are those "
        "of this job",
    )


def _too_fast(record: RunRecord, metrics: Metrics) -> Iterable[str]:
    spec = record.spec
    if spec.gpu_type.is_cpu or metrics.mfu is None or metrics.mfu <= 1 or not math.isfinite(metrics.mfu):
        return ()
    return (
        f"an MFU of {format_share(metrics.mfu)} is not possible: the model FLOPs of a step are more than "
        f"{spec.gpu_type.name} can do in that time at its dense {spec.precision.peak} peak; check the recipe and the number of GPUs",
    )


def _too_short(record: RunRecord) -> Iterable[str]:
    """Return that the steps of a rank took longer than the run, as where milliseconds stand for seconds."""
    if not is_measured(record):
        return ()
    steps_s = max((math.fsum(step.seconds for step in rank.steps) for rank in record.ranks), default=0.0)
    if steps_s <= record.provenance.duration_s:
        return ()
    duration_s = record.provenance.duration_s
    return (f"the steps take {format_seconds(steps_s)} together, the whole run took {format_seconds(duration_s)}",)


def _of_clock(record: RunRecord) -> Iterable[str]:
    """Return that the run ended before it began; a note says where the machine's clock was set back meanwhile."""
    where = record.provenance
    if not is_measured(record) or any("clock of this machine was set" in note for note in record.notes):
        return ()
    try:
        backwards = utc_time(where.finished_at) - utc_time(where.started_at) < -_CLOCK_SLEW
    except ValueError:
        return (f"its times are not ISO-8601: started {where.started_at!r}, finished {where.finished_at!r}",)
    return (f"it finished at {where.finished_at}, before its start at {where.started_at}",) if backwards else ()


def _of_settings(record: RunRecord) -> Iterable[str]:
    """Return that the settings are not those that the run was recorded with."""
    own = record.spec.fingerprint
    if record.fingerprint == own:
        return ()
    return (f"fingerprint: the record says {record.fingerprint}, its own settings have {own}",)
