"""Shows goldens and their differences in a terminal, as Markdown and as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.text import Text

from harness.errors import BadRequestError
from harness.explain.contrast import contrast
from harness.explain.judge import changes
from harness.explain.show import coverage, title
from harness.explain.values import ABSENT, Change, Departure, Side
from harness.records.golden import GoldenRecord, told_of
from harness.records.goldens import MEND_GOLDEN, GoldenChange
from harness.showing import figures
from harness.showing.markup import as_markdown
from harness.showing.printing import Console, plain_table, print_lines, show
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


def print_goldens(
    console: Console,
    goldens: Mapping[Path, GoldenRecord],
    folder: Path,
    *,
    retired: bool = False,
    unread: Mapping[Path, BadRequestError],
) -> None:
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


def promotions_markdown(
    promoted: Sequence[tuple[str, GoldenRecord, Side, Side | None]], refused: Sequence[tuple[str, str]]
) -> str:
    """Every promoted golden by name, as it is and as it was; then what was not promoted, with the reason."""
    return "\n".join([*(_promotion(*each) for each in promoted), *([_refusals(refused)] if refused else [])])


def _promotion(name: str, golden: GoldenRecord, after: Side, before: Side | None) -> str:
    runs = ", ".join(f"`{run_id}`" for run_id in golden.run_ids)
    night = f", night `{golden.night_id}`" if golden.night_id else ""
    lines = [
        f"### {as_markdown(name)}",
        "",
        f"Reason: {as_markdown(golden.reason)}",
        "",
        f"Promoted by {as_markdown(golden.promoted_by)}, {golden.promoted_at}, from {runs}{night}.",
        "",
        *_tables(after, before),
        *(f"- Accepted: {as_markdown(why)}" for why in golden.overridden),
    ]
    return "\n".join(lines).rstrip() + "\n"


def difference_markdown(before: Side, after: Side) -> str:
    """What is not the same in two goldens or runs."""
    heading = [f"### {as_markdown(after.name)} against {as_markdown(before.name)}", ""]
    return "\n".join([*heading, *_tables(after, before)]).rstrip() + "\n"


def _refusals(rows: Iterable[tuple[str, str]]) -> str:
    listed = [f"- {as_markdown(name)}: {as_markdown(why)}" for name, why in rows]
    return "\n".join(["### Not promoted", "", *listed]) + "\n"


def _tables(after: Side, before: Side | None) -> list[str]:
    nobody = Side(name="", kind="golden", metrics={}, facts={}, closed=frozenset())
    told = changes(after, before or nobody)
    values = _table(METRIC_TITLES, metric_rows(told, after, before), num_left=1)
    if before is None:
        return [*values, "", "The first golden in this place."]
    rows = departure_rows(contrast(after, before).departures)
    if not rows:
        return [*values, "", "Settings, machine and software are those of before, as far as both are recorded."]
    return [*values, "", *_table(("Changed with it", "Before", "After"), rows, num_left=3), ""]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, num_left: int) -> list[str]:
    rule = ["---" if column < num_left else "---:" for column in range(len(titles))]
    return [_row(titles), "| " + " | ".join(rule) + " |", *(_row(row) for row in rows)]


def _row(texts: Sequence[str]) -> str:
    return "| " + " | ".join(as_markdown(text) for text in texts) + " |"
