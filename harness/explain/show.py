"""Shows an explanation, for people and as JSON: what changed, whether it is noise, and the causes, the likeliest first."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator

from harness.explain.judge import moved
from harness.explain.values import GROUPS, Cause, Change, Contrast, Departure, Explanation, Fit, Group, Key, Side
from harness.judge.metrics import BY_NAME
from harness.show import figures
from harness.show.json import Document, Shown, Text, at
from harness.show.page import GAP, Block, Facts, Line, Page, Section, listing, table
from harness.units import format_percent, grouped

_MOST_LISTED = 12
_KINDS = {"run": "run", "golden": "golden", "published": "golden, published elsewhere"}


def explanation_page(found: Explanation, predictions: Sequence[str]) -> Page:
    """Return the whole answer. ``predictions``: a line on the prediction for either side."""
    likely = [cause for cause in found.causes if cause.can_explain]
    rest = [cause for cause in found.causes if not cause.can_explain]
    has_moved = any(moved(change) for change in found.changes)
    likely_first = f"Differences{' that can explain the change' * has_moved}, the likeliest first:"
    other = "reference" if found.theirs.kind == "run" else found.theirs.kind
    sides = ((found.ours.kind, found.ours), (other, found.theirs))
    return Page(
        (
            Facts((("Run", title(found.ours)), ("Reference", title(found.theirs))), 10),
            GAP,
            *change_blocks(found.changes, found.theirs),
            GAP,
            listing([*found.verdict, *(line for line in predictions if line)]),
            *_causes(likely_first, likely),
            *_causes(_rest(has_moved=has_moved, is_all=not likely), rest),
            GAP,
            *([] if found.causes else ["Everything that both sides recorded is equal."]),
            GAP,
            listing(coverage(found.contrast)),
            listing(f"Caveat, {name}: {text}" for name, side in sides for text in side.caveats),
            GAP,
            listing(f"Next: {text}" for text in found.advice),
        )
    )


def _rest(*, has_moved: bool, is_all: bool) -> str:
    if not is_all:
        return "Other differences:"
    return "Differences that cannot explain the change:" if has_moved else "Differences that changed no metric:"


def title(side: Side) -> str:
    """Return the name, the kind, and the number of runs."""
    runs = f" of {side.num_runs} runs" if side.num_runs > 1 else ""
    return f"{side.name} ({_KINDS[side.kind]}{runs})"


def change_blocks(changes: Sequence[Change], theirs: Side) -> Iterator[Block]:
    """Yield every metric of either side, with the noise if it is known."""
    if not changes:
        return
    columns = ("Run", "Reference", "Change", "Equal runs differ by")
    yield table(("Metric", *columns), (_change(change, theirs) for change in changes), right=columns)
    if theirs.derived:
        yield "* calculated from the throughput with mbr-perf's formula; not stored"


def _change(change: Change, theirs: Side) -> tuple[str, ...]:
    metric, mark = BY_NAME[change.metric], " *" if change.metric in theirs.derived else ""
    return (
        metric.title,
        figures.figure(metric, change.ours),
        figures.figure(metric, change.theirs) + mark,
        figures.ABSENT if change.change is None else format_percent(change.change),
        figures.ABSENT if change.noise is None else f"±{change.noise * 100:.1f} %",
    )


def _causes(heading: str, causes: Sequence[Cause]) -> list[Section]:
    blocks: list[Block] = []
    for cause in causes:
        blocks.append(Line(f"{cause.rank:2}. {cause.name}", hang=4))
        blocks.append(listing((f"    {line}" for line in (*_departures(cause.departures), *_fits(cause))), hang=6))
        blocks.append(Line(f"    Why: {cause.why}", "dim", hang=6))
    return [Section(heading, tuple(blocks))] if causes else []


def _departures(departures: Sequence[Departure]) -> list[str]:
    """Return one line each, up to a limit, and the number of the others."""
    lines = [_departure(each) for each in departures[:_MOST_LISTED]]
    left = len(departures) - len(lines)
    return [*lines, *([f"and {left} more; --json lists them"] if left > 0 else [])]


def _departure(departure: Departure) -> str:
    here = "not recorded" if departure.ours is None else departure.ours or "empty"
    there = "not recorded" if departure.theirs is None else departure.theirs or "empty"
    source = f" (from {departure.source})" if departure.source else ""
    return f"{departure.name}: {here} here{source}, {there} there"


def _fits(cause: Cause) -> list[str]:
    """Return one line per statement, with all metrics that it holds for."""
    metrics = grouped(
        (fit.text, BY_NAME[fit.metric].title)
        for fit in cause.fits
        if fit.fit != "nothing" and (fit.fit != "unmeasured" or fit.expected is not None)
    )
    lines = [f"{', '.join(names)}: {text}" for text, names in metrics.items()]
    moves = ", ".join(_within(BY_NAME[fit.metric].title) for fit in cause.fits)
    return [*lines, *([f"Usual effect: {cause.size}; changes {moves}"] if moves else [])]


def _within(title: str) -> str:
    """Return the title for use inside a sentence; a unit stays as it is."""
    return title[0].lower() + title[1:] if title[1:2].islower() else title


def coverage(contrast: Contrast, *, ours: str = "the run", theirs: str = "the reference") -> list[str]:
    """Return what agrees, and what only one side or neither side recorded."""
    same = ", ".join(f"{GROUPS[group]} ({count})" for group, count in contrast.same.items())
    return [
        f"Equal on both sides: {same or 'nothing'}.",
        *_unrecorded(f"Not recorded by {theirs}", contrast.unrecorded_theirs),
        *_unrecorded(f"Not recorded by {ours}", contrast.unrecorded_ours),
        *(
            [f"Recorded by neither: {', '.join(GROUPS[group] for group in contrast.neither)}."]
            if contrast.neither
            else []
        ),
    ]


def _unrecorded(heading: str, keys: Iterable[Key]) -> list[str]:
    by_group = grouped((GROUPS[group], name) for group, name in keys)
    listed = ", ".join(
        f"{group} ({', '.join(names) if len(names) <= 3 else len(names)})" for group, names in by_group.items()
    )
    return [f"{heading}: {listed}."] if listed else []


Unrecorded = Annotated[dict[str, list[str]], BeforeValidator(grouped)]
"""Names by group."""


class SideRow(Shown):
    """The run or golden, and how far to trust it."""

    name: str
    kind: Literal["run", "golden", "published"]
    num_runs: int
    derived: Annotated[tuple[str, ...], BeforeValidator(sorted)]
    caveats: tuple[str, ...]


class ChangeRow(Shown):
    """One metric on both sides."""

    metric: str
    run: float | None = at("ours")
    reference: float | None = at("theirs")
    change: float | None
    noise: float | None
    basis: Text
    is_noise: bool


class DifferenceRow(Shown):
    """One recorded value that differs."""

    group: Group
    name: str
    run: str | None = at("ours")
    reference: str | None = at("theirs")
    source: Text


class MetricFitRow(Shown):
    """Whether a cause can explain the change of one metric."""

    metric: str
    fit: Fit
    text: str
    expected: float | None


class CauseRow(Shown):
    """Differences with the same effect, and the metrics that they can have changed."""

    rank: int
    name: str
    can_explain: bool
    differences: tuple[DifferenceRow, ...] = at("departures")
    says: tuple[MetricFitRow, ...] = at("fits")
    size: str
    why: str


class NotRecorded(Shown):
    """Facts that only the other side, or neither side, recorded."""

    run: Unrecorded = at("unrecorded_ours")
    reference: Unrecorded = at("unrecorded_theirs")
    neither: tuple[Group, ...]


class ExplainDocument(Document):
    """``mbr-perf explain --json``. ``same``: how many facts agree, by group."""

    run: SideRow = at("ours")
    reference: SideRow = at("theirs")
    metrics: tuple[ChangeRow, ...] = at("changes")
    verdict: tuple[str, ...]
    causes: tuple[CauseRow, ...]
    same: dict[Group, int] = at("contrast", "same")
    not_recorded: NotRecorded = at("contrast")
    advice: tuple[str, ...]
    exit_code: int = 0
