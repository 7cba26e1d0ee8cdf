"""Golden values at a terminal: the list, one of them, and what a promotion changes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from harness.records.golden import GoldenRecord
from harness.records.goldens import GoldenChange
from harness.report import figures
from harness.report.printing import plain_table, print_lines, show
from harness.units import format_percent


def print_goldens(console: Console, goldens: Mapping[Path, GoldenRecord], folder: Path) -> None:
    """One line per golden."""
    if not goldens:
        print_lines(console, [f"No golden in {folder}"])
        return
    table = plain_table("Golden", "Kind", "Runs", "Values", "Promoted", right=("Runs",))
    for path, golden in goldens.items():
        name = str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
        table.add_row(Text(name), golden.kind, str(golden.num_runs), str(len(golden.metrics)), golden.promoted_at[:10])
    show(console, table)


def print_golden(console: Console, path: Path, golden: GoldenRecord) -> None:
    """One golden: values, machine, and who promoted it why."""
    print_lines(console, [str(path), _origin(golden)])
    table = plain_table("Metric", "Value", "Spread", "Note", right=("Value", "Spread"))
    for name, value in golden.metrics.items():
        spread = figures.ABSENT if value.relative_spread is None else f"{value.relative_spread * 100:.2f} %"
        metric = figures.BY_NAME.get(name)
        shown = figures.figure(metric, value.value) if metric else str(value.value)
        table.add_row(Text(metric.title if metric else name), shown, spread, Text(value.note or ""))
    show(console, table)
    where = golden.measured_on
    machine = [where.device_name, where.driver_version, *(f"{k} {v}" for k, v in sorted(where.versions.items()) if v)]
    print_lines(
        console, [f"Measured on {golden.gpu}: {', '.join(part for part in machine if part) or 'not published'}"]
    )
    print_lines(console, [f"Promoted {golden.promoted_at} by {golden.promoted_by}: {golden.reason}"])
    print_lines(console, [f"Source: {golden.source}"] if golden.source else [])
    print_lines(console, [f"Caveat: {caveat}" for caveat in golden.caveats])


def print_promotion(console: Console, path: Path, changes: Sequence[GoldenChange]) -> None:
    """What a promotion changed, before and after."""
    table = plain_table("Value", "Before", "After", "Change", right=("Before", "After", "Change"))
    for item in changes:
        metric, values = figures.BY_NAME.get(item.name), (item.before, item.after)
        shown = [
            figures.figure(metric, value) if metric and isinstance(value, int | float) else str(value or figures.ABSENT)
            for value in values
        ]
        change = figures.ABSENT
        if metric and isinstance(item.before, int | float) and isinstance(item.after, int | float):
            change = format_percent(item.after / item.before - 1)
        table.add_row(Text(metric.title if metric else item.name), *map(Text, shown), change)
    if changes:
        show(console, table)
    else:
        print_lines(console, ["The values are those that were there."])
    print_lines(console, [f"Written: {path}. It counts once it is committed."])


def _origin(golden: GoldenRecord) -> str:
    if golden.kind == "external":
        return "external: published elsewhere, not measured by mbr-perf"
    return f"measured in {golden.num_runs} run{'s' * (golden.num_runs > 1)}: {', '.join(golden.run_ids)}"
