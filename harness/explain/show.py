"""Shows an explanation: what changed, whether it is noise, and the causes, the likeliest first."""

from collections.abc import Iterator, Mapping, Sequence

from harness.experiment.recompute import shown_setting
from harness.explain.causes import moved
from harness.explain.effects import FEW_PERCENT, SMALL
from harness.explain.values import GROUPS, Cause, Change, DifferenceRow, Explanation, NotRecorded, SideRow
from harness.records.golden import Group
from harness.records.metrics import BY_NAME
from harness.records.run import BUILT_OTHERWISE
from harness.show import figures
from harness.show.page import GAP, Block, Column, Facts, Line, Page, Section, answer_line, details, listing, table
from harness.units import counted, format_percent, grouped

_MOST_LISTED = 12
_KINDS = {"run": "run", "golden": "golden", "published": "golden, published elsewhere"}


def explanation_page(found: Explanation) -> Page:
    """Return the answer: what changed, and what can explain it; the rest are details."""
    ours = "Run" if found.run.kind == "run" else "Golden"
    likely, rest = ([cause for cause in found.causes if cause.can_explain is able] for able in (True, False))
    has_moved = any(moved(change) for change in found.metrics)
    alone = f"Differences that {'cannot explain the change' if has_moved else 'changed no metric'}:"
    sides = ((ours.lower(), found.run), ("reference", found.reference))
    said = _coverage(found.same, found.not_recorded, f"the {ours.lower()}")
    return Page(
        (
            *_changes(found.metrics, found.reference, ours),
            Facts(((ours, _title(found.run)), ("Reference", _title(found.reference))), 10),
            listing(found.verdict),
            GAP,
            *_causes("Differences, the likeliest cause first:", likely),
            *_causes("Other differences:" if likely else alone, rest),
            GAP,
            listing(f"Next: {text}" for text in found.advice),
            details("detail", (*said, *(f"Caveat, {name}: {text}" for name, side in sides for text in side.caveats))),
        ),
        answer=answer_line(*_answer(found, likely)),
    )


def _answer(found: Explanation, likely: Sequence[Cause]) -> Iterator[str]:
    changed = {each.metric: each.change or 0 for each in found.metrics if moved(each)}
    has_time = "step_time_s" in changed  # throughput says the same
    titles = {name: BY_NAME[name].title for name in changed if BY_NAME[name].better == "lower" or not has_time}
    yield ", ".join(f"{title} {format_percent(changed[name])}" for name, title in titles.items()) or "No metric changed"
    if changed:
        yield from _reason(found, titles, likely)
    else:
        yield f"; {counted(len(found.causes), 'difference')} recorded."


def _reason(found: Explanation, titles: Mapping[str, str], likely: Sequence[Cause]) -> Iterator[str]:
    beyond = [each for each in found.metrics if each.metric in titles and not each.is_noise]
    built = [why for why in found.verdict if why.startswith(BUILT_OTHERWISE)]
    able = [cause for cause in likely if any(_explains(cause, each) for each in beyond)]
    if built:
        yield f"; {'; '.join(built)}"
    elif not beyond:
        yield "; may be noise: equal runs differ by as much."
    elif able:
        yield from _likeliest({each.metric: titles[each.metric] for each in beyond}, able)
    elif likely:
        yield f"; {counted(len(likely), 'recorded difference')}, none usually as large."
    else:
        yield "; no recorded difference explains it."


def _explains(cause: Cause, change: Change) -> bool:
    """Return whether the cause can explain the change, and its usual effect is as large."""
    is_as_large = cause.size not in SMALL or abs(change.change or 0) <= FEW_PERCENT
    return is_as_large and change.metric in _explained(cause)


def _explained(cause: Cause) -> set[str]:
    return {fit.metric for fit in cause.says if fit.fit not in ("nothing", "no", "unmeasured")}


def _likeliest(titles: Mapping[str, str], likely: Sequence[Cause]) -> Iterator[str]:
    yield f"; likeliest cause: {likely[0].name} ({likely[0].differences[0].name})"
    unexplained = ", ".join(titles[name] for name in titles if not any(name in _explained(cause) for cause in likely))
    yield f"; nothing recorded explains {unexplained}" if unexplained else ""
    yield f"; {counted(len(likely) - 1, 'further possible cause')}" if len(likely) > 1 else ""


def _title(side: SideRow) -> str:
    runs = f" of {side.num_runs} runs" if side.num_runs > 1 else ""
    return f"{side.name} ({_KINDS[side.kind]}{runs})"


def _changes(changes: Sequence[Change], reference: SideRow, ours: str) -> Iterator[Block]:
    if not changes:
        return
    columns = [Column(title, right=True) for title in (ours, "Reference", "Change")]
    noise = Column("Equal runs differ by", right=True, optional=True)
    yield table(("Metric", *columns, noise), (_change(change, reference) for change in changes))
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
    return [Section(heading, tuple(blocks))] if causes else []


def _difference(row: DifferenceRow) -> str:
    ours, theirs = (
        "not recorded" if value is None else shown_setting(value) or "empty" for value in (row.run, row.reference)
    )
    source = f" (from {row.source})" if row.source else ""
    return f"{row.name}: {ours}{source}, reference: {theirs}"


def _says(cause: Cause) -> list[str]:
    metrics = grouped(
        (fit.text, BY_NAME[fit.metric].title)
        for fit in cause.says
        if fit.fit != "nothing" and (fit.fit != "unmeasured" or fit.expected is not None)
    )
    usual = [f"Usual effect: {cause.size}"] if cause.can_explain else []
    return [*(f"{', '.join(names)}: {text}" for text, names in metrics.items()), *usual]


def _coverage(same: Mapping[Group, int], missing: NotRecorded, ours: str) -> list[str]:
    equal = ", ".join(f"{GROUPS[group]} ({count})" for group, count in same.items())
    neither = ", ".join(GROUPS[group] for group in missing.neither)
    return [
        f"Equal on both sides: {equal or 'nothing'}.",
        *_unrecorded("Not recorded by the reference", missing.reference),
        *_unrecorded(f"Not recorded by {ours}", missing.run),
        *([f"Recorded by neither: {neither}."] if neither else []),
    ]


def _unrecorded(heading: str, by_group: Mapping[Group, list[str]]) -> list[str]:
    listed = ", ".join(
        f"{GROUPS[group]} ({', '.join(names) if len(names) <= 3 else len(names)})" for group, names in by_group.items()
    )
    return [f"{heading}: {listed}."] if listed else []
