"""Reads the history of cases, judges it, and writes CSV files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from harness.errors import BadRequestError, nearest, os_errors_reported
from harness.history.cases import (
    CaseHistory,
    CaseSummary,
    Measured,
    NamedCase,
    case_summaries,
    golden_band,
    level_changes,
    named_case,
)
from harness.history.changes import MIN_NIGHTS, ChangePoint, change_points, trend
from harness.history.files import is_ahead, started
from harness.history.record import HistoryRecord
from harness.history.series import Series, series_of
from harness.history.store import HistoryReading, survey_history
from harness.judge.metrics import BY_NAME, METRICS, Metric
from harness.records.store import write_atomically
from harness.show.figures import Value, csv_text
from harness.units import counted, utc_time

_MOST_AHEAD = 5


@dataclass(frozen=True, kw_only=True)
class HistoryRequest:
    """Which case, figure and nights. ``last``: how many are shown; all since ``since`` are judged. None: all of them."""

    case: str
    metric: Metric
    results: Path
    since: datetime | None = None
    last: int | None = None
    fingerprint: str | None = None
    branch: str | None = None
    golden_dir: Path | None = None


def metric_named(name: str) -> Metric:
    """Return the row of the metric table. BadRequestError names the nearest."""
    if name not in BY_NAME:
        raise BadRequestError(f"--metric {name}: no such metric", remedy=nearest(name, BY_NAME))
    return BY_NAME[name]


def moment(text: str | None) -> datetime | None:
    """Read an ISO-8601 date or time, in UTC unless it names a zone. BadRequestError for anything else."""
    if text is None:
        return None
    try:
        return utc_time(text)
    except ValueError as error:
        raise BadRequestError(f"--since {text}: not a date", remedy="2026-01-31 or 2026-01-31T02:00:00Z") from error


def list_cases(results: Path, metric: Metric, since: datetime | None) -> tuple[tuple[CaseSummary, ...], HistoryReading]:
    """Return every case that history has."""
    reading = survey_history(results, since=since)
    return case_summaries(reading.records, metric), replace(reading, notes=(*reading.notes, *_ahead(reading)))


def case_history(request: HistoryRequest) -> tuple[CaseHistory, tuple[str, ...]]:
    """Read the history of a case, with notes. BadRequestError if there is no such case."""
    reading, meant = _meant(request)
    series = series_of(reading.records, request.fingerprint, request.branch, meant.suite_case)
    whole = _since(series, request.since)
    measured = whole.measured(request.metric)
    points, no_points = _points(measured)
    shown = replace(whole, nights=whole.nights[-request.last :] if request.last else whole.nights)
    in_sight = {night.id for night in shown.nights}
    band, no_band = golden_band(shown, request.metric, request.golden_dir)
    values = [value for _, value in measured]
    history = CaseHistory(
        series=shown,
        metric=request.metric,
        measured=shown.measured(request.metric),
        level_changes=tuple(found for found in level_changes(measured, points) if found.night.id in in_sight),
        no_points=no_points,
        trend=trend(values, request.metric.better) if values else None,
        golden=band,
        no_golden=no_band,
    )
    return history, (*reading.notes, *_ahead(reading))


def _ahead(reading: HistoryReading) -> tuple[str, ...]:
    """Notes on runs dated in the future: they count as the newest until that day."""
    now = datetime.now(UTC)
    found = [record for record in reading.records if is_ahead(record, now)]
    dated = (
        f"{record.case}: run {record.run_id} is dated {record.started_at}, in the future"
        for record in found[:_MOST_AHEAD]
    )
    more = (
        [f"and {counted(len(found) - _MOST_AHEAD, 'more run')} dated in the future"] if len(found) > _MOST_AHEAD else []
    )
    return (*dated, *more, *(["mbr-perf results doctor names their files"] if found else []))


def _meant(request: HistoryRequest) -> tuple[HistoryReading, NamedCase]:
    """Return the requested runs, at least one, and the case that the name means. BadRequestError if there is none."""
    reading = survey_history(request.results, case=request.case)
    if reading.records:
        return reading, NamedCase(request.case)
    meant = named_case(request.case, survey_history(request.results).records)
    reading = survey_history(request.results, case=meant.case)
    return replace(reading, records=tuple(record for record in reading.records if meant.has(record))), meant


def _since(series: Series, when: datetime | None) -> Series:
    nights = tuple(night for night in series.nights if when is None or started(night.records[0]) >= when)
    if not nights:
        newest = series.nights[-1].started_at
        raise BadRequestError(f"no night of {series.case} since then", remedy=f"the newest began at {newest}")
    return replace(series, nights=nights)


def _points(measured: Measured) -> tuple[tuple[ChangePoint, ...], str]:
    """Return the points, or why no search was made."""
    values = [value for _, value in measured]
    least = 2 * MIN_NIGHTS
    if len(values) < least:
        return (), f"No change points: {least} nights with this metric are needed; there are {len(values)}."
    return change_points(values), ""


_Row = tuple[HistoryRecord, Callable[[str], float | None]]


def history_csv(history: CaseHistory, *, per_run: bool = False) -> tuple[str, tuple[str, ...]]:
    """Return a row per night with the figure, or with ``per_run`` a row per counted run; and notes on omissions."""
    rows: list[_Row] = [(night.last, night.value) for night, _ in history.measured]
    if per_run:
        runs = (record for night, _ in history.measured for record in night.counted)
        rows = [(record, partial(_figure_of, record)) for record in runs if history.metric.name in record.metrics]
    has = {metric.name: [read(metric.name) is not None for _, read in rows] for metric in METRICS}
    names = [name for name, present in has.items() if rows and all(present)]
    text = csv_text(["time", "commit", "branch", *names], [_values(row, names) for row in rows])
    return text, _notes(
        history, len(rows), [name for name, present in has.items() if any(present) and not all(present)]
    )


def write_csv(path: Path, text: str) -> Path:
    """Write the text over an existing file. BadRequestError if it cannot be written."""
    with os_errors_reported(f"--csv {path}: cannot be written"):
        write_atomically(path, text)
    return path


def _figure_of(record: HistoryRecord, name: str) -> float | None:
    return record.metrics[name].value if name in record.metrics else None


def _values(row: _Row, names: Sequence[str]) -> list[Value]:
    record, read = row
    return [started(record).isoformat(), record.git_commit, record.branch, *(read(name) for name in names)]


def _notes(history: CaseHistory, num_rows: int, some_lack: Sequence[str]) -> tuple[str, ...]:
    missing = len(history.series.nights) - len(history.measured)
    notes = []
    if some_lack:
        notes.append(f"not in the CSV, because some of its {num_rows} rows lack them: {', '.join(some_lack)}")
    if missing:
        notes.append(f"not in the CSV: {counted(missing, 'night')} without {history.metric.name}")
    return tuple(notes)
