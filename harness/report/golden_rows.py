"""What a promotion or a difference of goldens says, as texts for a terminal or for Markdown."""

from collections.abc import Sequence

from harness.analysis.explain.values import ABSENT, Change, Departure, Side
from harness.report import figures
from harness.units import format_percent

METRIC_TITLES = ("Metric", "Before", "After", "Change", "Spread before", "Spread after")


def metric_rows(changes: Sequence[Change], after: Side, before: Side | None) -> list[tuple[str, ...]]:
    """One row per metric: figures, change, and the spread over the runs behind either. Last the number of runs."""
    rows = [
        (
            figures.BY_NAME[change.metric].title,
            _figure(change.metric, change.theirs, before),
            _figure(change.metric, change.ours, after),
            figures.ABSENT if change.change is None else format_percent(change.change),
            _spread(change.metric, before),
            _spread(change.metric, after),
        )
        for change in changes
    ]
    counts = (figures.ABSENT if before is None else str(before.num_runs), str(after.num_runs))
    return [*rows, ("Runs", *counts, "", "", "")]


def _figure(name: str, value: float | None, side: Side | None) -> str:
    mark = " (worked out)" if side is not None and name in side.derived else ""
    return figures.figure(figures.BY_NAME[name], value) + mark


def _spread(name: str, side: Side | None) -> str:
    spread = None if side is None else side.spreads.get(name)
    return figures.ABSENT if spread is None else f"{spread * 100:.2f} %"


def departure_rows(departures: Sequence[Departure]) -> list[tuple[str, str, str]]:
    """Name, before, after: settings, machine and software that are not the same."""
    return [(each.name, _text(each.theirs), _text(each.ours)) for each in departures]


def _text(value: str | None) -> str:
    return "not recorded" if value is None else value or ABSENT
