"""`mbr-perf explain` for people: what changed, whether it is noise, and the causes in the order of their likely effect."""

from collections.abc import Iterable, Sequence

from rich.text import Text

from harness.explain.judge import moved
from harness.explain.values import GROUPS, Cause, Change, Contrast, Departure, Explanation, Key, Side
from harness.showing import figures
from harness.showing.printing import Console, plain_table, print_hanging, print_lines, show
from harness.units import format_percent

_INDENT = 4
_MOST_LISTED = 12
_KINDS = {"run": "run", "golden": "golden", "published": "golden, published elsewhere"}


def print_explanation(console: Console, found: Explanation, predictions: Sequence[str]) -> None:
    """The whole answer. ``predictions``: lines on what was predicted of either side."""
    print_lines(console, [f"Run       {title(found.ours)}", f"Against   {title(found.theirs)}", ""])
    print_changes(console, found.changes, found.theirs)
    told = [*found.verdict, *(line for line in predictions if line)]
    print_lines(console, [*told, ""] if told else [])
    likely = [cause for cause in found.causes if cause.can_explain]
    rest = [cause for cause in found.causes if not cause.can_explain]
    has_moved = any(moved(change) for change in found.changes)
    _print_causes(
        console, f"What differs{' and can have changed that' * has_moved}, the likeliest effect first:", likely
    )
    _print_causes(console, _rest(has_moved=has_moved, is_all=not likely), rest)
    if not found.causes:
        print_lines(console, ["Nothing that both sides recorded differs.", ""])
    print_lines(console, coverage(found.contrast))
    print_lines(
        console, [f"Caveat, {side.kind}: {text}" for side in (found.ours, found.theirs) for text in side.caveats]
    )
    print_lines(console, ["", *(f"Next: {text}" for text in found.advice)] if found.advice else [])


def _rest(*, has_moved: bool, is_all: bool) -> str:
    if not is_all:
        return "What differs too:"
    return "What differs, and cannot have changed that:" if has_moved else "What differs, and has moved no figure:"


def title(side: Side) -> str:
    """Name, kind, and how many runs stand behind it."""
    runs = f" of {side.num_runs} runs" if side.num_runs > 1 else ""
    return f"{side.name} ({_KINDS[side.kind]}{runs})"


def print_changes(console: Console, changes: Sequence[Change], theirs: Side) -> None:
    """Every metric of either side, with what equal runs differ by where that is known."""
    if not changes:
        return
    table = plain_table("Metric", "Run", "Against", "Change", "Equal runs differ by",
                        right=("Run", "Against", "Change", "Equal runs differ by"))  # fmt: skip
    for change in changes:
        metric = figures.BY_NAME[change.metric]
        worked_out = " *" if change.metric in theirs.derived else ""
        table.add_row(
            Text(metric.title),
            figures.figure(metric, change.ours),
            figures.figure(metric, change.theirs) + worked_out,
            figures.ABSENT if change.change is None else format_percent(change.change),
            figures.ABSENT if change.noise is None else f"±{change.noise * 100:.1f} %",
        )
    show(console, table)
    if theirs.derived:
        print_lines(console, ["* worked out from the throughput by our formula; not stored"])
    console.print()


def _print_causes(console: Console, heading: str, causes: Sequence[Cause]) -> None:
    if not causes:
        return
    print_lines(console, [heading], style="bold")
    for cause in causes:
        print_hanging(console, Text(f"{cause.rank:2}. {cause.name}"), _INDENT)
        for line in departure_lines(cause.departures):
            print_hanging(console, Text(f"    {line}"), _INDENT + 2)
        for line in _says(cause):
            print_hanging(console, Text(f"    {line}"), _INDENT + 2)
        print_hanging(console, Text(f"    Why: {cause.why}", style="dim"), _INDENT + 2)
    console.print()


def departure_lines(departures: Sequence[Departure]) -> list[str]:
    """One line each; of very many only the first, with their number."""
    lines = [_departure(each) for each in departures[:_MOST_LISTED]]
    left = len(departures) - len(lines)
    return [*lines, *([f"and {left} more; --json lists them"] if left > 0 else [])]


def _departure(departure: Departure) -> str:
    here = "not recorded" if departure.ours is None else departure.ours or "empty"
    there = "not recorded" if departure.theirs is None else departure.theirs or "empty"
    source = f" (from {departure.source})" if departure.source else ""
    return f"{departure.name}: {here} here{source}, {there} there"


def _says(cause: Cause) -> list[str]:
    """One line per thing said, with all the metrics that it is said of."""
    metrics: dict[str, list[str]] = {}
    for one in cause.says:
        if one.fit != "nothing" and (one.fit != "unmeasured" or one.expected is not None):
            metrics.setdefault(one.text, []).append(figures.BY_NAME[one.metric].title)
    lines = [f"{', '.join(names)}: {text}" for text, names in metrics.items()]
    moves = ", ".join(_within(figures.BY_NAME[one.metric].title) for one in cause.says)
    return [*lines, *([f"Usually: {cause.size}; moves {moves}"] if moves else [])]


def _within(title: str) -> str:
    """The title inside a sentence; a unit stays as it is."""
    return title[0].lower() + title[1:] if title[1:2].islower() else title


def coverage(contrast: Contrast, *, ours: str = "the run", theirs: str = "what it is held against") -> list[str]:
    """What agrees in one line, and what only one side or neither wrote down."""
    same = ", ".join(f"{GROUPS[group]} ({count})" for group, count in contrast.same.items())
    return [
        f"The same on both sides: {same or 'nothing'}.",
        *_unrecorded(f"Not recorded by {theirs}", contrast.unrecorded_theirs),
        *_unrecorded(f"Not recorded by {ours}", contrast.unrecorded_ours),
        *(
            [f"Recorded by neither: {', '.join(GROUPS[group] for group in contrast.neither)}."]
            if contrast.neither
            else []
        ),
    ]


def _unrecorded(told: str, keys: Iterable[Key]) -> list[str]:
    counted: dict[str, list[str]] = {}
    for group, name in keys:
        counted.setdefault(GROUPS[group], []).append(name)
    if not counted:
        return []
    listed = ", ".join(
        f"{group} ({', '.join(names) if len(names) <= 3 else len(names)})" for group, names in counted.items()
    )
    return [f"{told}: {listed}."]
