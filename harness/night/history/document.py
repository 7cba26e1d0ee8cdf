"""JSON of histories, and what was added."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.text import Text

from harness.judging.metrics import Metric
from harness.night.history.cases import CaseHistory, CaseSummary, LevelChange
from harness.night.history.changes import Change, changes, setup_of
from harness.night.history.record import HistoryRecord
from harness.night.history.series import Night
from harness.showing.json import SCHEMA_VERSION, Document
from harness.showing.printing import Console, plain_table, print_lines, show


def cases_document(cases: Sequence[CaseSummary], metric: Metric, results: Path, notes: Sequence[str]) -> Document:
    """The list of cases; ``last_value`` is of the last night that has the figure."""
    return {
        "schema_version": SCHEMA_VERSION,
        "results_dir": str(results),
        "metric": metric.name,
        "unit": metric.unit,
        "cases": [_case(case) for case in cases],
        "notes": list(notes),
    }


def case_document(history: CaseHistory, notes: Sequence[str]) -> Document:
    """One case: nights oldest first with medians over their runs, change points, the golden band, the newest night."""
    series, metric, golden = history.series, history.metric, history.golden
    return {
        "schema_version": SCHEMA_VERSION,
        "case": series.case,
        "suite_case": series.suite_case or None,
        "fingerprint": series.fingerprint,
        "metric": metric.name,
        "unit": metric.unit,
        "better": metric.better,
        "nights": [
            _night(night, metric, series.nights[number - 1] if number else None)
            for number, night in enumerate(series.nights)
        ],
        "change_points": [_change_point(found) for found in history.level_changes],
        "no_change_points": history.no_points,
        "trend": asdict(history.trend) if history.trend else None,
        "golden": {"path": str(golden.path), "value": golden.value, "threshold": golden.threshold,
                   "low": golden.low, "high": golden.high} if golden else None,
        "no_golden": history.no_golden,
        "notes": [*series.notes, *notes],
    }  # fmt: skip


def _case(summary: CaseSummary) -> Document:
    return {
        "case": summary.series.case,
        "suite_case": summary.series.suite_case or None,
        "fingerprint": summary.series.fingerprint,
        "num_nights": len(summary.series.nights),
        "num_runs": summary.num_runs,
        "num_runs_of_other_settings": summary.num_others,
        "last_started_at": summary.last_started_at,
        "last_outcome": summary.last_outcome,
        "last_value": summary.value,
        "trend": asdict(summary.trend) if summary.trend else None,
        "notes": list(summary.series.notes),
    }


def _night(night: Night, metric: Metric, before: Night | None) -> Document:
    return {
        "id": night.id,
        "started_at": night.started_at,
        "is_start_known": night.is_start_known,
        "value": night.value(metric.name),
        "spread": night.spread(metric.name),
        "outcome": night.outcome,
        "runs": [
            {"run_id": record.run_id, "status": record.status, "purpose": record.purpose,
             "suspect": list(record.suspect), "failure": record.failure,
             "sm_clock_mhz": record.sm_clock_mhz, "power_cap_share": record.power_cap_share,
             "value": record.metrics[metric.name].value if metric.name in record.metrics else None}
            for record in night.records
        ],
        "setup": setup_of(night),
        "changed": [_change(change) for change in changes(before, night)] if before else [],
    }  # fmt: skip


def _change_point(found: LevelChange) -> Document:
    point = found.point
    return {
        "started_at": found.night.started_at,
        "night": found.night.id,
        "before": point.before,
        "after": point.after,
        "change": point.fraction,
        "p_value": point.p_value,
        "changed": [_change(change) for change in found.changed],
        "changed_where": found.where if found.changed else None,
    }


def _change(change: Change) -> Document:
    return {"name": change.name, "before": change.before, "after": change.after}


Added = tuple[HistoryRecord, Path, bool]


def print_added(console: Console, rows: Sequence[Added]) -> None:
    """A line per run, and how many are new."""
    table = plain_table("Run", "Case", "Status", "In history")
    for record, _, is_new in rows:
        status = f"{record.status}, suspect" if record.suspect else record.status
        table.add_row(Text(record.run_id), Text(record.case), status, "added" if is_new else "was there already")
    show(console, table)
    num_new = sum(is_new for *_, is_new in rows)
    print_lines(console, [f"{num_new} of {len(rows)} {'run' if len(rows) == 1 else 'runs'} added"])


def added_document(rows: Sequence[Added]) -> Document:
    """As JSON."""
    runs = [
        {"run_id": record.run_id, "case": record.case, "status": record.status, "suspect": list(record.suspect),
         "path": str(path), "added": is_new}
        for record, path, is_new in rows
    ]  # fmt: skip
    return {"schema_version": SCHEMA_VERSION, "runs": runs}
