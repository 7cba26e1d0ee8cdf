"""Reads the history of cases, judges it, and writes it as CSV and as pages."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.errors import BadRequestError, nearest
from harness.history.cases import CaseHistory, case_summaries, explained, golden_band, named_case
from harness.history.changes import LEAST_OF_LEVEL, change_points, trend
from harness.history.chart import trend_picture
from harness.history.record import HistoryRecord
from harness.history.series import Series, series_of
from harness.history.show import case_page, cases_page, page_name
from harness.history.store import read_history, survey_history
from harness.records.metrics import BY_NAME, METRICS, Metric
from harness.records.store import write_atomically
from harness.show.figures import csv_text
from harness.show.html import html
from harness.show.page import Page, Section


def metric_named(name: str) -> Metric:
    """Return the row of the metric table. BadRequestError names the nearest."""
    if name not in BY_NAME:
        raise BadRequestError(f"--metric {name}: no such metric", remedy=nearest(name, BY_NAME))
    return BY_NAME[name]


def case_history(
    case: str, metric: Metric, results: Path, fingerprint: str | None, golden_dir: Path | None
) -> tuple[CaseHistory, tuple[str, ...]]:
    """Read the history of a case, with notes. BadRequestError if there is no such case."""
    reading = survey_history(results, case=case)
    if not reading.records:
        reading = survey_history(results, named_case(case, survey_history(results).records))
    return history_of(series_of(reading.records, fingerprint), metric, golden_dir), reading.notes


def history_of(series: Series, metric: Metric, golden_dir: Path | None = None) -> CaseHistory:
    """Judge a series."""
    measured = series.measured(metric)
    values, least = [value for _, value in measured], 2 * LEAST_OF_LEVEL
    none = f"No change points: they need {least} nights with this metric ({len(values)} so far)."
    band, no_band = golden_band(series, metric, golden_dir)
    return CaseHistory.of(
        series=series,
        metric=metric,
        change_points=tuple(explained(measured, point) for point in change_points(values)),
        no_change_points=none if len(values) < least else "",
        trend=trend(values, metric.better) if values else None,
        golden=band,
        no_golden=no_band,
    )


def write_pages(results: Path, folder: Path, metric: Metric, golden_dir: Path | None, index: Page) -> None:
    """Write a page per case, and ``index.html``. OSError, or RunFailedError for a history that cannot be read."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = case_summaries(read_history(results), metric)
    for series in (case.series for case in cases):
        history = history_of(series, metric, golden_dir)
        drawn = (trend_picture(history),) if history.measured else ()
        page = case_page(history)
        page = replace(page, title=series.case, blocks=(*drawn, *page.blocks))
        write_atomically(folder / page_name(series), html(page))
    listed = Section("Cases over the nights", cases_page(cases, metric, results, is_linked=True).blocks)
    write_atomically(folder / "index.html", html(replace(index, blocks=(*index.blocks, listed))))


_PER_RUN = (
    "run_id", "case", "suite", "suite_case", "night_id", "purpose", "started_at", "status", "outcome", "fingerprint",
    "failure", "duration_s", "git_commit", "branch", "hostname", "device_name", "driver_version", "container", "job_id",
)  # fmt: skip


def runs_csv(records: Sequence[HistoryRecord]) -> str:
    """Return a row per run, for grep and spreadsheets: where it comes from, how it ended, and every metric."""
    names = [metric.name for metric in METRICS if any(metric.name in each.metrics for each in records)]
    rows = (
        [
            *(getattr(each, name) for name in _PER_RUN),
            "; ".join(each.suspect),
            *(each.metrics[name].value if name in each.metrics else None for name in names),
        ]
        for each in records
    )
    return csv_text([*_PER_RUN, "suspect", *names], rows)
