"""The answer of `plan --search` for people: the best layouts with their commands, and the Pareto set of memory and time."""

from collections.abc import Iterator, Mapping, Sequence

from harness.plan.request import PlanRequest
from harness.plan.run import Planned
from harness.plan.searched import NUM_BEST, SLOWEST, Searched, Tried, command
from harness.plan.show import assumptions, layout_cells, nearest_line, size_unit, verdict_text
from harness.plan.show_layouts import SAME, same_time_lines
from harness.planning.search import Row
from harness.recipes.foreign.exporting import to_paste
from harness.showing.page import (
    GAP,
    Block,
    Code,
    Column,
    Facts,
    Line,
    Page,
    Section,
    Span,
    Table,
    listing,
    table,
)
from harness.showing.request_text import VALUES, paste_lines, request_facts
from harness.units import counted, format_seconds

# Rows of the Pareto set that the page shows; --json has all.
_MOST_PARETO = 20


def news_line(known: Searched) -> str:
    """Say how far a search has come, and the best layout so far."""
    done = f"{sum(known.counts.values())} of {known.num_layouts} layouts"
    best = next(iter(known.best), None)
    if best is None or best.row is None:
        return f"{done}; none fits so far"
    return f"{done}; best so far: {best.name}, recompute {best.row.text}, {format_seconds(best.seconds)} a step"


def search_page(found: Searched, request: PlanRequest) -> Page:
    """Return the page of a search, finished or interrupted."""
    best = [(each, each.row) for each in found.best if each.row]
    limits = next((each.plan.limits for each in found.tried.values()), None)
    blocks: list[Block] = [
        request_facts(found.base.spec, without=("Parallelism", "Recompute", "Fingerprint", "TP overlap"))
    ]
    if limits and limits.capacity_bytes is not None:
        blocks.append(Facts((("Limit", limits.text),), VALUES))
    notes = (*found.base.notes, *([found.traced_with] if found.traced_with else []))
    blocks += [listing(f"Note: {note}" for note in notes), GAP, *_counts(found), GAP]
    if not best:
        blocks.append(
            Line(Span("Nothing fits", "bad") if not found.interrupted else "Nothing that fits was found so far")
        )
        return Page(tuple(blocks))
    planned = Planned(found.layouts)
    marks = dict.fromkeys((layout.name for layout in planned.same_time), f" {SAME}") | {best[0][0].name: " *"}
    blocks += [
        Line(f"The {counted(len(best), 'layout')} with the fastest steps that fit", "strong"),
        _table(best, marks),
        *same_time_lines(best[0][0].name, [(each.name, row) for each, row in best if each.name in marks]),
        GAP,
    ]
    commands = "\n".join(command(each, row, request) for each, row in best)
    blocks.append(Section("Commands", (Code(commands),)))
    fastest = best[0][1].candidate.spec
    lines = paste_lines(to_paste(fastest, found.base.spec, with_sizes=True), 2)
    blocks.append(Section(f"The first of them, {best[0][0].name}, to paste into a job of another program", lines))
    front = found.pareto
    title = (
        f"Settings that no other one beats in memory and time (Pareto set), up to {SLOWEST:g} times the fastest step"
    )
    blocks.append(Section(title, (_table(front[:: max(1, -(-len(front) // _MOST_PARETO))]),)))
    nearest = [each for each in (planned.nearest_golden, planned.nearest_published) if each]
    blocks += [assumptions(best[0][0].plan), *map(nearest_line, nearest)]
    return Page(tuple(blocks))


def _counts(found: Searched) -> Iterator[Block]:
    if found.interrupted:
        done = sum(found.counts.values())
        yield Line(
            Span(f"Interrupted: {done} of {found.num_layouts} layouts are decided; these are the best so far", "bad")
        )
    ended = (f"{count} {how}" for how, count in found.counts.most_common())
    yield Line(f"{counted(found.num_layouts, 'layout')}: {', '.join(ended)}", hang=2)
    if len(found.best) < NUM_BEST:
        why = "; ".join(f"{reason} ({count})" for reason, count in found.reasons.most_common(3))
        yield from [Line(f"Not legal: {why}", "dim", hang=2)] if why else []


def _table(rows: Sequence[tuple[Tried, Row]], marks: Mapping[str, str] | None = None) -> Table:
    unit = size_unit([row for _, row in rows])
    columns = [Column(title, right=title not in ("Layout", "Recompute", "")) for title in (
        "Layout", "Recompute", f"Peak {unit}", f"Range {unit}", "Step", "TFLOP/s/GPU", "")]  # fmt: skip
    return table(columns, [
        [*layout_cells(f"{tried.name}{(marks or {}).get(tried.name, '')}", row, row.prediction, unit), verdict_text(row)]
        for tried, row in rows if row.prediction
    ])  # fmt: skip
