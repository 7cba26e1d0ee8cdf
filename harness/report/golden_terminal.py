"""Golden values at a terminal: the list, one of them, what a promotion changes, and the difference of two."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.text import Text

from harness.analysis.explain.changes import changes
from harness.analysis.explain.contrast import contrast
from harness.analysis.explain.values import Side
from harness.errors import BadRequestError
from harness.records.golden import GoldenRecord
from harness.records.golden_retired import told_of
from harness.records.goldens import MEND_GOLDEN, GoldenChange
from harness.report import figures
from harness.report.console import Console
from harness.report.explain_terminal import coverage, title
from harness.report.golden_rows import METRIC_TITLES, departure_rows, metric_rows
from harness.report.printing import plain_table, print_lines, show
from harness.units import format_percent


def print_goldens(
    console: Console, goldens: Mapping[Path, GoldenRecord], folder: Path, *,
    retired: bool = False, unread: Mapping[Path, BadRequestError],
) -> None:  # fmt: skip
    """One line per golden; of retired ones also who took them out of force, and why. Files that are ``unread`` come last."""
    if goldens or not unread:
        _print_read(console, goldens, folder, retired=retired)
    print_lines(console, [f"Cannot be read: {error.message}" for error in unread.values()], style="red")
    print_lines(console, [f"  {MEND_GOLDEN}"] if unread else [])


def _print_read(console: Console, goldens: Mapping[Path, GoldenRecord], folder: Path, *, retired: bool) -> None:
    if not goldens:
        print_lines(console, [f"No {'retired ' * retired}golden in {folder}"])
        return
    columns = ["Golden", "Kind", "Runs", "Values", "Promoted", *(["Retired", "By", "Reason"] if retired else [])]
    table = plain_table(*columns, right=("Runs",))
    for path, golden in goldens.items():
        name = str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
        cells = [name, golden.kind, str(golden.num_runs), str(len(golden.metrics)), golden.promoted_at[:10]]
        if retired:
            cells += [(golden.retired_at or "")[:10], golden.retired_by or "", golden.retired_reason or ""]
        table.add_row(*map(Text, cells))
    show(console, table)


def print_golden(console: Console, path: Path, golden: GoldenRecord) -> None:
    """One golden: values, machine, and who promoted it why."""
    print_lines(console, [str(path), _origin(golden)])
    if golden.retired_at:
        print_lines(console, [f"Not in force: it {told_of(golden)}"], style="yellow")
    table = plain_table("Metric", "Value", "Spread", "Note", right=("Value", "Spread"))
    for name, value in golden.metrics.items():
        spread = figures.ABSENT if value.relative_spread is None else f"{value.relative_spread * 100:.2f} %"
        metric = figures.BY_NAME.get(name)
        shown = figures.figure(metric, value.value) if metric else str(value.value)
        table.add_row(Text(metric.title if metric else name), shown, spread, Text(value.note or ""))
    show(console, table)
    where = golden.measured_on
    machine = [
        where.device_name,
        where.driver_version,
        where.container,
        *(f"{k} {v}" for k, v in sorted(where.versions.items()) if v),
    ]
    print_lines(
        console, [f"Measured on {golden.gpu}: {', '.join(part for part in machine if part) or 'not published'}"]
    )
    print_lines(console, [f"Promoted {golden.promoted_at} by {golden.promoted_by}: {golden.reason}"])
    print_lines(console, [f"Accepted: {why}" for why in golden.overridden])
    print_lines(console, [f"Source: {golden.source}"] if golden.source else [])
    print_lines(console, [f"Caveat: {caveat}" for caveat in golden.caveats])


def print_promotion(console: Console, path: Path, changed: Sequence[GoldenChange], *, is_written: bool = True) -> None:
    """What a promotion changed, or without ``is_written`` would change, before and after."""
    table = plain_table("Value", "Before", "After", "Change", right=("Before", "After", "Change"))
    for item in changed:
        metric, values = figures.BY_NAME.get(item.name), (item.before, item.after)
        shown = [
            figures.figure(metric, value) if metric and isinstance(value, int | float) else str(value or figures.ABSENT)
            for value in values
        ]
        change = figures.ABSENT
        if metric and isinstance(item.before, int | float) and isinstance(item.after, int | float):
            change = format_percent(item.after / item.before - 1)
        table.add_row(Text(metric.title if metric else item.name), *map(Text, shown), change)
    if changed:
        show(console, table)
    else:
        print_lines(console, ["The values are those that were there."])
    done = f"Written: {path}. It counts once it is committed." if is_written else f"Not written: {path}"
    print_lines(console, [done])


def print_difference(console: Console, before: Side, after: Side) -> None:
    """Two goldens or runs: figures, then whatever else is not the same."""
    print_lines(console, [f"Before  {title(before)}", f"After   {title(after)}", ""])
    table = plain_table(*METRIC_TITLES, right=METRIC_TITLES[1:])
    for row in metric_rows(changes(after, before), after, before):
        table.add_row(*map(Text, row))
    show(console, table)
    console.print()
    found = contrast(after, before)
    if found.departures:
        table = plain_table("Not the same", "Before", "After")
        for row in departure_rows(found.departures):
            table.add_row(*map(Text, row))
        show(console, table)
        console.print()
    else:
        print_lines(console, ["Nothing else that both recorded differs.", ""])
    print_lines(console, coverage(found, ours="after", theirs="before"))


def _origin(golden: GoldenRecord) -> str:
    if golden.kind == "external":
        return "external: published elsewhere, not measured by mbr-perf"
    return f"measured in {golden.num_runs} run{'s' * (golden.num_runs > 1)}: {', '.join(golden.run_ids)}"
