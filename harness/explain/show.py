"""Shows an explanation: what changed, whether it is noise, and the causes, the likeliest first."""

from collections.abc import Iterator, Mapping, Sequence

from harness.experiment.recompute import shown_setting
from harness.explain.judge import moved
from harness.explain.values import GROUPS, Cause, Change, DifferenceRow, Explanation, NotRecorded, SideRow
from harness.judge.differences import Group
from harness.records.metrics import BY_NAME
from harness.show import figures
from harness.show.page import GAP, Block, Facts, Line, Page, Section, answer_line, listing, table
from harness.units import counted, format_percent, grouped

_MOST_LISTED = 12
_KINDS = {"run": "run", "golden": "golden", "published": "golden, published elsewhere"}


def explanation_page(found: Explanation) -> Page:
    """Return the whole answer."""
    likely, rest = ([cause for cause in found.causes if cause.can_explain is able] for able in (True, False))
    has_moved = any(moved(change) for change in found.metrics)
    likely_first = f"Differences{' that can explain the change' * has_moved}, the likeliest first:"
    alone = "Differences that cannot explain the change:" if has_moved else "Differences that changed no metric:"
    other = "reference" if found.reference.kind == "run" else found.reference.kind
    sides = ((found.run.kind, found.run), (other, found.reference))
    return Page(
        (
            Facts((("Run", title(found.run)), ("Reference", title(found.reference))), 10),
            GAP,
            *change_blocks(found.metrics, found.reference),
            GAP,
            listing(found.verdict),
            *_causes(likely_first, likely),
            *_causes("Other differences:" if likely else alone, rest),
            GAP,
            *([] if found.causes else ["Everything that both sides recorded is equal."]),
            GAP,
            listing(coverage(found.same, found.not_recorded)),
            listing(f"Caveat, {name}: {text}" for name, side in sides for text in side.caveats),
            GAP,
            listing(f"Next: {text}" for text in found.advice),
        ),
        answer=answer_line(*_answer(found, likely)),
    )


def _answer(found: Explanation, likely: Sequence[Cause]) -> Iterator[str]:
    changed = [
        f"{BY_NAME[each.metric].title} {format_percent(each.change or 0)}" for each in found.metrics if moved(each)
    ]
    yield ", ".join(changed[:3]) or "No metric changed"
    if likely and changed:
        yield f"; likeliest cause: {likely[0].name}"
    yield f"; {counted(len(found.causes), 'difference')} in all." if found.causes else "; no recorded difference."


def title(side: SideRow) -> str:
    """Return the name, the kind, and the number of runs."""
    runs = f" of {side.num_runs} runs" if side.num_runs > 1 else ""
    return f"{side.name} ({_KINDS[side.kind]}{runs})"


def change_blocks(changes: Sequence[Change], reference: SideRow) -> Iterator[Block]:
    """Yield every metric of either side, with the noise if it is known."""
    if not changes:
        return
    columns = ("Run", "Reference", "Change", "Equal runs differ by")
    yield table(("Metric", *columns), (_change(change, reference) for change in changes), right=columns)
    if reference.derived:
        yield "* calculated from the throughput with mbr-perf's formula; not stored"


def _change(change: Change, reference: SideRow) -> tuple[str, ...]:
    metric, mark = BY_NAME[change.metric], " *" if change.metric in reference.derived else ""
    return (
        metric.title,
        figures.figure(metric, change.run),
        figures.figure(metric, change.reference) + mark,
        figures.ABSENT if change.change is None else format_percent(change.change),
        figures.ABSENT if change.noise is None else f"±{change.noise * 100:.1f} %",
    )


def _causes(heading: str, causes: Sequence[Cause]) -> list[Section]:
    blocks: list[Block] = []
    for cause in causes:
        left = len(cause.differences) - _MOST_LISTED
        lines = [*map(_difference, cause.differences[:_MOST_LISTED]), *_says(cause)]
        lines[_MOST_LISTED:_MOST_LISTED] = [f"and {left} more; --json lists them"] if left > 0 else []
        blocks.append(Line(f"{cause.rank:2}. {cause.name}", hang=4))
        blocks.append(listing((f"    {line}" for line in lines), hang=6))
        blocks.append(Line(f"    Why: {cause.why}", "dim", hang=6))
    return [Section(heading, tuple(blocks))] if causes else []


def _difference(row: DifferenceRow) -> str:
    here, there = (
        "not recorded" if value is None else shown_setting(value) or "empty" for value in (row.run, row.reference)
    )
    source = f" (from {row.source})" if row.source else ""
    return f"{row.name}: {here} here{source}, {there} there"


def _says(cause: Cause) -> list[str]:
    metrics = grouped(
        (fit.text, BY_NAME[fit.metric].title)
        for fit in cause.says
        if fit.fit != "nothing" and (fit.fit != "unmeasured" or fit.expected is not None)
    )
    lines = [f"{', '.join(names)}: {text}" for text, names in metrics.items()]
    moves = ", ".join(_within(BY_NAME[fit.metric].title) for fit in cause.says)
    return [*lines, *([f"Usual effect: {cause.size}; changes {moves}"] if moves else [])]


def _within(title: str) -> str:
    return title[0].lower() + title[1:] if title[1:2].islower() else title


def coverage(
    same: Mapping[Group, int], missing: NotRecorded, *, ours: str = "the run", theirs: str = "the reference"
) -> list[str]:
    """Return what agrees, and what only one side or neither side recorded."""
    equal = ", ".join(f"{GROUPS[group]} ({count})" for group, count in same.items())
    neither = ", ".join(GROUPS[group] for group in missing.neither)
    return [
        f"Equal on both sides: {equal or 'nothing'}.",
        *_unrecorded(f"Not recorded by {theirs}", missing.reference),
        *_unrecorded(f"Not recorded by {ours}", missing.run),
        *([f"Recorded by neither: {neither}."] if neither else []),
    ]


def _unrecorded(heading: str, by_group: Mapping[Group, list[str]]) -> list[str]:
    listed = ", ".join(
        f"{GROUPS[group]} ({', '.join(names) if len(names) <= 3 else len(names)})" for group, names in by_group.items()
    )
    return [f"{heading}: {listed}."] if listed else []
