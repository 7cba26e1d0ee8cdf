"""JSON of histories, and what was added."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from harness.history.cases import CaseHistory, CaseSummary
from harness.history.changes import Trend, changes, setup_of
from harness.history.series import Night
from harness.judge.metrics import Better, Metric
from harness.records.batches import Purpose
from harness.records.run import Status
from harness.show.json import Document, Shown, Text, at


class ChangeRow(Shown):
    """One difference between two nights."""

    name: str
    before: str | None
    after: str | None


class CaseRow(Shown):
    """A case with the settings of its newest run. ``last_value``: of the last night that has the figure."""

    case: str = at("series", "case")
    suite_case: Text = at("series", "suite_case")
    fingerprint: str = at("series", "fingerprint")
    num_nights: int
    num_runs: int
    num_runs_of_other_settings: int = at("num_others")
    last_started_at: str
    last_outcome: str
    last_value: float | None = at("value")
    trend: Trend | None
    notes: tuple[str, ...] = at("series", "notes")


class HistoryDocument(Document):
    """``mbr-perf history --json``."""

    results_dir: Path
    metric: str
    unit: str
    cases: tuple[CaseRow, ...]
    notes: tuple[str, ...]


def history_document(
    cases: Sequence[CaseSummary], metric: Metric, results: Path, notes: Sequence[str]
) -> HistoryDocument:
    """Return the list of cases."""
    rows = [CaseRow.of(case, num_nights=len(case.series.nights)) for case in cases]
    return HistoryDocument.of(results_dir=results, metric=metric.name, unit=metric.unit, cases=rows, notes=notes)


class RunRow(Shown):
    """One run of a night."""

    run_id: str
    status: Status
    purpose: Purpose
    suspect: tuple[str, ...]
    failure: str | None
    sm_clock_mhz: float | None
    power_cap_share: float | None
    value: float | None


class NightRow(Shown):
    """Runs of a case for one figure. ``changed``: since the night before."""

    id: str
    started_at: str
    is_start_known: bool
    value: float | None
    spread: float | None
    outcome: str
    runs: tuple[RunRow, ...]
    setup: dict[str, str | None]
    changed: tuple[ChangeRow, ...]

    @classmethod
    def of_night(cls, night: Night, metric: Metric, before: Night | None) -> Self:
        """Return the medians over its runs."""
        runs = [
            RunRow.of(record, value=figure.value if (figure := record.metrics.get(metric.name)) else None)
            for record in night.records
        ]
        return cls.of(
            night, value=night.value(metric.name), spread=night.spread(metric.name), runs=runs, setup=setup_of(night),
            changed=changes(before, night) if before else (),
        )  # fmt: skip


class ChangePointRow(Shown):
    """A new level. ``changed_where``: set if the change was one night before or after."""

    started_at: str = at("night", "started_at")
    night: str = at("night", "id")
    before: float = at("point", "before")
    after: float = at("point", "after")
    change: float = at("point", "fraction")
    p_value: float = at("point", "p_value")
    changed: tuple[ChangeRow, ...]
    changed_where: str | None


class BandRow(Shown):
    """The golden and the band within its threshold."""

    path: Path
    value: float
    threshold: float
    low: float
    high: float


class CaseDocument(Document):
    """``mbr-perf history CASE --json``: nights oldest first."""

    case: str = at("series", "case")
    suite_case: Text = at("series", "suite_case")
    fingerprint: str = at("series", "fingerprint")
    metric: str = at("metric", "name")
    unit: str = at("metric", "unit")
    better: Better = at("metric", "better")
    nights: tuple[NightRow, ...]
    change_points: tuple[ChangePointRow, ...]
    no_change_points: str = at("no_points")
    trend: Trend | None
    golden: BandRow | None
    no_golden: str
    notes: tuple[str, ...]


def case_document(history: CaseHistory, notes: Sequence[str]) -> CaseDocument:
    """Return a case: its nights, change points, golden band and newest night."""
    nights = history.series.nights
    return CaseDocument.of(
        history,
        nights=[
            NightRow.of_night(night, history.metric, nights[number - 1] if number else None)
            for number, night in enumerate(nights)
        ],
        change_points=[
            ChangePointRow.of(found, changed_where=found.where if found.changed else None)
            for found in history.level_changes
        ],
        notes=[*history.series.notes, *notes],
    )


class AddedRow(Shown):
    """A run that was added to history; ``added`` is false if history already had it."""

    run_id: str = at("record", "run_id")
    case: str = at("record", "case")
    status: Status = at("record", "status")
    suspect: tuple[str, ...] = at("record", "suspect")
    path: Path
    added: bool = at("is_new")


class AddedDocument(Document):
    """``mbr-perf history add --json``."""

    runs: tuple[AddedRow, ...]
