"""Shows plans of several layouts, a row per layout, and the answer of `plan --search` with the Pareto set."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from harness.plan.request import PlanRequest
from harness.plan.run import Layout, Planned
from harness.plan.searched import NUM_BEST, SLOWEST, Searched, Tried, command
from harness.plan.show import assumptions, layout_cells, nearest_lines, option, pasted, size_unit, verdict_text
from harness.predict.advice import WITHOUT_GRAPHS, asked_text
from harness.predict.ranges import ratio_error
from harness.predict.search import Plan, Row
from harness.show.page import (
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
    Words,
    listing,
    table,
)
from harness.show.request_text import VALUES, request_facts
from harness.units import GIB, MIB, counted, format_bytes, format_percent, format_seconds

_DROPPED_OF_LAYOUTS = {"TFLOP/s/GPU": 3, "Cost": 2}
SAME = "="


def layouts_page(planned: Planned, whose: str = "the recipe's") -> Page:
    """Return the page of several layouts. A layout that is illegal or that no setting fits shows the reason.

    ``whose``: as in `plan_page`.
    """
    plans, marks = {layout.name: layout.plan for layout in planned.layouts if layout.plan}, _marks(planned)
    unit = size_unit([row for plan in plans.values() for row in plan.rows])
    rows = [_layout(name, plan, marks.get(name, ""), unit) for name, plan in plans.items()]
    illegal = listing(f"{layout.name}: {layout.problem}" for layout in planned.layouts if layout.plan is None)
    return Page((
        *_shared_request(list(plans.values()), planned.notes),
        table(_columns(unit, "Cost", drop=_DROPPED_OF_LAYOUTS), rows),
        illegal,
        *_about_layouts(plans.values()),
        *_chosen(planned, plans, whose),
    ))  # fmt: skip


def _marks(planned: Planned) -> dict[str, str]:
    best = {planned.best.name: " *"} if planned.best else {}
    return {layout.name: f" {SAME}" for layout in planned.same_time} | best


def _columns(unit: str, *more: str, drop: Mapping[str, int] | None = None) -> list[Column]:
    titles = ("Layout", "Recompute", f"Peak {unit}", f"Range {unit}", "Step", "TFLOP/s/GPU", *more, "")
    texts = ("Layout", "Recompute", "")
    return [Column(title, right=title not in texts, drop=(drop or {}).get(title, 0)) for title in titles]


def _same_time(planned: Planned) -> Iterator[Line]:
    """Say which layouts are as fast as the best one, as far as predictions tell, and which needs the least memory."""
    if not planned.best or not planned.same_time:
        return
    rows = ((layout.name, layout.row) for layout in (planned.best, *planned.same_time))
    sizes = {name: row.prediction.peak_bytes for name, row in rows if row and row.prediction}
    error, smallest = ratio_error(), min(sizes, key=lambda name: sizes[name])
    itself = smallest == planned.best.name
    least = "the recommended one" if itself else f"{smallest} ({format_bytes(sizes[smallest])})"
    yield Line(
        f"{SAME}: as fast as the recommended layout, as far as predictions can tell: in 9 of 10 of {error.num_rows} "
        f"measured pairs the predicted ratio of two layouts' times errs by up to {error.share * 100:.0f} %. Of these "
        f"layouts {least} needs the least memory",
        hang=4,
    )


def _layout(name: str, plan: Plan, mark: str, unit: str) -> list[Words]:
    row = plan.recommended
    if row is None or row.prediction is None:
        predicted = [r.prediction.peak_bytes for r in plan.rows if r.prediction]
        if not predicted:
            reason = next((r.reason for r in plan.rows if r.candidate.is_legal), "no setting is legal")
            return [name, Span(f"not predicted: {reason}", "bad"), "-", "", "", "", "", ""]
        smallest, dear = f"{min(predicted) / (GIB if unit == 'GiB' else MIB):.1f}", plan.too_dear
        what = "nothing fits" if dear is None else f"too slow: {dear.text}, {format_percent(dear.overhead or 0)}"
        return [name, Span(what, "bad"), smallest, "", "", "", "", "OOM" if dear is None else "FITS"]
    shown = layout_cells(f"{name}{mark}", row, row.prediction, unit)
    return [*shown, "-" if row.overhead is None else format_percent(row.overhead), verdict_text(row)]


def _about_layouts(plans: Iterable[Plan]) -> Iterator[Line]:
    limited = any(plan.limits.max_overhead is not None for plan in plans)
    about = "Cost compares with the step without recompute of the same layout"
    yield Line(f"{about}{', and so does the limit of --max_overhead' if limited else ''}", "dim", hang=2)
    if any(plan.spec.cuda_graph.impl != "none" and plan.safe is None for plan in plans):
        yield Line(f"More settings may fit {WITHOUT_GRAPHS}: graphs forbid settings and widen ranges", "dim", hang=2)


def _chosen(planned: Planned, plans: Mapping[str, Plan], whose: str) -> Iterator[Block]:
    """Yield the recommended setting, equally fast layouts, the request's setting, and a faster one that may not fit."""
    best = planned.best
    if best is None or best.plan is None or best.row is None:
        return
    base = next(iter(plans.values())).spec
    yield Line((Span("Use ", "strong"), Span(f"{best.name}  {option(best.row)}", "chosen")), hang=4)
    yield from pasted(best.row, base, with_sizes=True)
    yield from _same_time(planned)
    if asked := asked_text(best.plan, whose):
        yield Line(asked[0].upper() + asked[1:], hang=4)
    if best.plan.safe is None:
        yield Line("No setting fits with its whole range", hang=4)
    elif tight := _faster(best, plans):
        _, name, row = tight
        yield Line(f"Faster, but the upper end of its range does not fit: {name}  {option(row)}", hang=4)
        yield from pasted(row, base, with_sizes=True)
    yield assumptions(best.plan)


def _faster(best: Layout, plans: Mapping[str, Plan]) -> tuple[float, str, Row] | None:
    """Return the fastest setting of any layout that is faster than the recommended one but may not fit."""
    assert best.plan and best.row
    fastest, error = best.plan.seconds_per_token(best.row), ratio_error()
    rows = ((plan.seconds_per_token(row), name, row) for name, plan in plans.items() for row in plan.rows)
    faster = [each for each in rows if each[2].verdict == "TIGHT" and each[0] < fastest]
    surely = [each for each in faster if each[1] != best.name and not error.hides(each[0], fastest)]
    return min(
        [each for each in faster if each[2] is best.plan.riskier] + surely, key=lambda each: each[0], default=None
    )


def _shared_request(plans: Sequence[Plan], notes: Sequence[str]) -> Iterator[Block]:
    """Yield the facts that all layouts share: recipe, batch and limits. They come from the first layout."""
    if not plans:
        return
    limits, varied = plans[0].limits, ("Parallelism", "Recompute", "Fingerprint")
    yield request_facts(plans[0].spec, without=varied)
    limit = "unknown memory, so mbr-perf does not know what fits" if limits.capacity_bytes is None else limits.text
    most = (
        ""
        if limits.max_overhead is None
        else f", at most {limits.max_overhead * 100:g} % slower than without recompute"
    )
    yield Facts((("Limit", f"{limit}{most}"),), VALUES)
    yield "(these facts are of the first layout; settings of --over differ)"
    yield listing(f"Note: {note}" for note in notes)
    yield GAP


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
    known = limits is not None and limits.capacity_bytes is not None
    notes = (*found.base.notes, *([found.traced_with] if found.traced_with else []))
    blocks: list[Block] = [
        request_facts(found.base.spec, without=("Parallelism", "Recompute", "Fingerprint", "TP overlap")),
        *([Facts((("Limit", limits.text),), VALUES)] if limits and known else []),
        *(listing(f"Note: {note}" for note in notes), GAP, *_counts(found), GAP),
    ]
    if not best:
        words = "Nothing that fits was found so far" if found.interrupted else Span("Nothing fits", "bad")
        return Page((*blocks, Line(words)))
    (first, row), planned, front = best[0], Planned(found.layouts), thinned(found.pareto, keep=best[0])
    shown = f"; {len(front)} of {len(found.pareto)} shown, --json has all" if len(front) < len(found.pareto) else ""
    return Page((
        *blocks,
        Line(f"The {counted(len(best), 'layout')} with the fastest steps that fit", "strong"),
        _table(best, _marks(planned)),
        *_same_time(planned),
        GAP,
        Section("Commands", (Code("\n".join(command(*each, request) for each in best)),)),
        Section(
            f"The first of them, {first.name}, to paste into a job of another program",
            tuple(pasted(row, found.base.spec, with_sizes=True, indent=2)),
        ),
        Section(
            "Settings that no other one beats in memory and time (Pareto set), up to "
            f"{SLOWEST:g} times the fastest step{shown}",
            (_table(front),),
        ),
        assumptions(first.plan),
        *nearest_lines(planned.nearest_golden, planned.nearest_published),
    ))  # fmt: skip


def thinned(front: Sequence[tuple[Tried, Row]], keep: tuple[Tried, Row]) -> list[tuple[Tried, Row]]:
    """Return at most ``_MOST_PARETO`` rows of a Pareto set in its order: both ends, ``keep``, and rows far apart."""
    rows = list(front)
    while len(rows) > _MOST_PARETO:
        sizes = [row.prediction.peak_bytes if row.prediction else 0 for _, row in rows]
        inner = [at for at in range(1, len(rows) - 1) if rows[at][1] is not keep[1]]
        del rows[min(inner, key=lambda at: abs(sizes[at + 1] - sizes[at - 1]))]
    return rows


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
    cells = (
        (*layout_cells(tried.name + (marks or {}).get(tried.name, ""), row, row.prediction, unit), verdict_text(row))
        for tried, row in rows
        if row.prediction
    )
    return table(_columns(unit), cells)
