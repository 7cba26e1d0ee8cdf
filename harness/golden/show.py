"""Shows goldens, their differences, and what a promotion changes, for people and as JSON."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from harness.errors import BadRequestError
from harness.explain.causes import changes
from harness.explain.values import Change, Side
from harness.records.golden import GoldenMetric, GoldenRecord
from harness.records.goldens import MEND_GOLDEN
from harness.records.metrics import BY_NAME
from harness.show import figures
from harness.show.json import Document, Shown
from harness.show.page import Column, Page, Table, answer_line, listing, table
from harness.units import counted, format_percent

_SPREADS = (Column("Spread before", right=True, optional=True), Column("Spread after", right=True, optional=True))


def goldens_page(goldens: Mapping[Path, GoldenRecord], folder: Path, *, unread: Mapping[Path, BadRequestError]) -> Page:
    """Return a row per golden. ``unread`` files come last."""
    columns: list[str | Column] = [
        Column("Golden", whole=True),
        Column("Kind", drop=1),
        Column("Runs", right=True, drop=2),
        Column("Values", drop=3),
        Column("Promoted", drop=1),
    ]
    rows = [_cells(path, golden, folder) for path, golden in goldens.items()]
    none = [] if unread else [f"No golden in {folder}"]
    problems = (problem.message for error in unread.values() for problem in error.problems)
    damaged = listing((f"Cannot be read: {problem}" for problem in problems), style="bad")
    listed = [table(columns, rows)] if rows else none
    kinds = ", ".join(f"{num} {kind}" for kind, num in Counter(golden.kind for golden in goldens.values()).items())
    answer = f"{counted(len(goldens), 'golden')}: {kinds}." if rows else ""
    return Page((*listed, damaged, *([f"  {MEND_GOLDEN}"] if unread else [])), answer=answer)


def _cells(path: Path, golden: GoldenRecord, folder: Path) -> list[str]:
    name = str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
    return [name, golden.kind, str(golden.num_runs), str(len(golden.metrics)), golden.promoted_at[:10]]


def golden_page(path: Path, golden: GoldenRecord) -> Page:
    """Return a golden: values, machine, and who promoted it and why."""
    where = golden.measured_on
    values = [f"{title} {shown}" for title, shown, *_ in map(_stored, golden.metrics.items())]
    versions = (f"{name} {version}" for name, version in sorted(where.versions.items()) if version)
    machine = [part for part in (where.device_name, where.driver_version, where.container, *versions) if part]
    return Page(
        (
            str(path),
            _origin(golden),
            table(
                ("Metric", "Value", "Spread", "Note"), map(_stored, golden.metrics.items()), right=("Value", "Spread")
            ),
            f"Measured on {golden.gpu}: {', '.join(machine) or 'not published'}",
            f"Promoted {golden.promoted_at} by {golden.promoted_by}: {golden.reason}",
            listing(f"Accepted: {why}" for why in golden.overridden),
            *([f"Source: {golden.source}"] if golden.source else []),
            listing(f"Caveat: {caveat}" for caveat in golden.caveats),
        ),
        answer=answer_line(f"{', '.join(values)}: the {golden.kind} golden {path.stem}."),
    )


def _origin(golden: GoldenRecord) -> str:
    if golden.kind == "external":
        return "external: published elsewhere, not measured by mbr-perf"
    return f"measured in {golden.num_runs} run{'s' * (golden.num_runs > 1)}: {', '.join(golden.run_ids)}"


def _stored(named: tuple[str, GoldenMetric]) -> tuple[str, ...]:
    name, value = named
    metric = BY_NAME.get(name)
    shown = figures.figure(metric, value.value) if metric else str(value.value)
    return metric.title if metric else name, shown, _percent(value.relative_spread), value.note or ""


def values_table(after: Side, before: Side | None) -> Table:
    """Return a row per metric: values, change, and the spread over the runs of either side; last the number of runs."""
    empty = Side(name="", kind="golden", metrics={}, facts={}, closed=frozenset())
    counts = ("Runs", figures.ABSENT if before is None else str(before.num_runs), str(after.num_runs))
    rows = [_value(change, after, before) for change in changes(after, before or empty)]
    return table(("Metric", *(right := ("Before", "After", "Change")), *_SPREADS), [*rows, counts], right=right)


def _value(change: Change, after: Side, before: Side | None) -> tuple[str, ...]:
    name, sides = change.metric, (before, after)
    shown = [
        figures.figure(BY_NAME[name], value) + " (calculated)" * (side is not None and name in side.derived)
        for value, side in zip((change.reference, change.run), sides, strict=True)
    ]
    moved = figures.ABSENT if change.change is None else format_percent(change.change)
    return (
        BY_NAME[name].title,
        *shown,
        moved,
        *(_percent(side.spreads.get(name) if side else None) for side in sides),
    )


def _percent(spread: float | None) -> str:
    return figures.ABSENT if spread is None else f"{spread * 100:.2f} %"


class GoldenRow(Shown):
    """One golden and its file."""

    path: Path
    golden: GoldenRecord


class DamagedRow(Shown):
    """A file that cannot be read, and why."""

    path: Path
    message: str


class GoldensDocument(Document):
    """``mbr-perf golden list --json``."""

    goldens: tuple[GoldenRow, ...]
    damaged: tuple[DamagedRow, ...]


class GoldenDocument(GoldenRow, Document):
    """``mbr-perf golden show --json``."""


class PromotedDocument(GoldenDocument):
    """``mbr-perf golden promote RUN --json``."""

    is_written: bool
