"""Shows an explanation: what changed, whether it is noise, and the causes, the likeliest first."""

from collections.abc import Iterator, Mapping, Sequence

from harness.experiment.recompute import shown_setting
from harness.explain.causes import FEW_PERCENT, SMALL, moved
from harness.explain.values import Cause, Change, DifferenceRow, Explanation, SideRow
from harness.records.metrics import BY_NAME
from harness.records.run import BUILT_OTHERWISE
from harness.show import figures
from harness.show.page import GAP, Block, Column, Facts, Line, Page, Section, answer_line, details, listing, table
from harness.units import counted, format_percent

_KINDS = {"run": "run", "golden": "golden", "published": "golden, published elsewhere"}


def explanation_page(found: Explanation) -> Page:
    """Return the answer: what changed, and what can explain it; the rest are details."""
    ours = "Run" if found.run.kind == "run" else "Golden"
    likely, rest = ([cause for cause in found.causes if cause.can_explain is able] for able in (True, False))
    sides = ((ours.lower(), found.run), ("reference", found.reference))
    said = f"Both sides recorded {found.num_compared} facts, only one of them {found.num_one_sided} more."
    return Page(
        (
            *_changes(found.metrics, found.reference, ours),
            Facts(((ours, _title(found.run)), ("Reference", _title(found.reference))), 10),
            listing(found.verdict),
            GAP,
            *_causes("Differences, the likeliest cause first:", likely),
            *_causes("Other differences:" if likely else "Differences:", rest),
            GAP,
            listing(f"Next: {text}" for text in found.advice),
            details("detail", (said, *(f"Caveat, {name}: {text}" for name, side in sides for text in side.caveats))),
        ),
        answer=answer_line(*_answer(found, likely)),
    )


def _answer(found: Explanation, likely: Sequence[Cause]) -> Iterator[str]:
    changed = {each.metric: each for each in found.metrics if moved(each)}
    if "step_time_s" in changed:  # throughput says the same
        changed = {name: each for name, each in changed.items() if BY_NAME[name].better == "lower"}
    if not changed:
        yield f"No metric changed; {counted(len(found.causes), 'difference')} recorded."
        return
    yield ", ".join(f"{BY_NAME[name].title} {format_percent(each.change or 0)}" for name, each in changed.items())
    if built := "; ".join(why for why in found.verdict if why.startswith(BUILT_OTHERWISE)):
        yield f"; {built}"
    elif all(each.is_noise for each in changed.values()):
        yield "; may be noise: equal runs differ by as much."
    else:
        yield _likeliest(likely, changed)


def _likeliest(likely: Sequence[Cause], changed: Mapping[str, Change]) -> str:
    if first := next((cause for cause in likely if _is_as_large(cause, changed)), None):
        return f"; likeliest cause: {first.name} ({first.differences[0].name}), usual effect: {first.size}"
    if likely:
        return f"; {counted(len(likely), 'possible cause')} recorded, none usually with so large an effect."
    return "; no recorded difference explains it."


def _is_as_large(cause: Cause, changed: Mapping[str, Change]) -> bool:
    """Return whether the usual effect of the cause is as large as the changes that it may explain."""
    sizes = [abs(changed[name].change or 0) for name in cause.explains if name in changed]
    return cause.size not in SMALL or max(sizes, default=0) <= FEW_PERCENT


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
        lines = [*map(_difference, cause.differences)]
        if cause.explains:
            metrics = ", ".join(BY_NAME[name].title for name in cause.explains)
            lines.append(f"May explain {metrics}; usual effect: {cause.size}")
        blocks.append(Line(f"{cause.rank:2}. {cause.name}", hang=4))
        blocks.append(listing((f"    {line}" for line in lines), hang=6))
    return [Section(heading, tuple(blocks))] if causes else []


def _difference(row: DifferenceRow) -> str:
    ours, theirs = (
        "not recorded" if value is None else shown_setting(value) or "empty" for value in (row.run, row.reference)
    )
    source = f" (from {row.source})" if row.source else ""
    return f"{row.name}: {ours}{source}, reference: {theirs}"
