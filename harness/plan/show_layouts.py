"""Shows plans of several layouts, a row per layout, and the answer of `plan --search` with the Pareto set."""

from collections.abc import Iterator, Mapping, Sequence

from harness.foreign.exporting import to_paste
from harness.plan.request import PlanRequest
from harness.plan.run import Planned
from harness.plan.searched import NUM_BEST, SLOWEST, Searched, Tried, command
from harness.plan.show import assumptions, layout_cells, nearest_lines, option, size_unit, verdict_text
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
from harness.show.request_text import VALUES, paste_lines, request_facts
from harness.units import GIB, MIB, counted, format_bytes, format_percent, format_seconds

Layout = tuple[str, Plan | None, str]
_DROPPED_OF_LAYOUTS = {"TFLOP/s/GPU": 3, "Cost": 2}


def layouts_page(
    layouts: Sequence[Layout],
    best: str | None,
    notes: Sequence[str] = (),
    same: Sequence[str] = (),
    whose: str = "the recipe's",
) -> Page:
    """Return the page of several layouts. A layout that is illegal or that no setting fits shows the reason.

    ``same``: names of layouts that are as fast as the ``best`` one, as far as predictions can tell. ``whose``: as in
    `plan_page`.
    """
    unit = size_unit([row for _, plan, _ in layouts if plan for row in plan.rows])
    peak, both = f"Peak {unit}", f"Range {unit}"
    right = (peak, both, "Step", "TFLOP/s/GPU", "Cost")
    columns = [Column(title, right=title in right, drop=_DROPPED_OF_LAYOUTS.get(title, 0))
               for title in ("Layout", "Recompute", *right, "")]  # fmt: skip
    marks = dict.fromkeys(same, f" {SAME}") | {best: " *"}
    rows = table(columns, [_layout(name, plan, marks.get(name, ""), unit) for name, plan, _ in layouts if plan])
    illegal = listing(f"{name}: {problem}" for name, plan, problem in layouts if plan is None)
    plans = [plan for _, plan, _ in layouts if plan]
    chosen = next((plan for name, plan, _ in layouts if name == best and plan), None)
    blocks = (*_shared_request(plans, notes), rows, illegal, *_about_layouts(plans))
    fitting = [(name, plan.recommended) for name, plan, _ in layouts if plan and plan.recommended and name in marks]
    return Page((*blocks, *_chosen(layouts, best or "", chosen, [*same_time_lines(best, fitting)], whose)))


SAME = "="


def same_time_lines(best: str | None, group: Sequence[tuple[str, Row]]) -> Iterator[Line]:
    """Say which layouts are as fast as the ``best`` one, as far as predictions tell, and which needs the least memory.

    ``group``: all of them with their setting, the best one included; no line if it is alone.
    """
    if len(group) < 2:
        return
    error = ratio_error()
    sizes = {name: row.prediction.peak_bytes for name, row in group if row.prediction}
    smallest = min(sizes, key=lambda name: sizes[name])
    least = "the recommended one" if smallest == best else f"{smallest} ({format_bytes(sizes[smallest])})"
    yield Line(
        f"{SAME}: as fast as the recommended layout, as far as predictions can tell: in 9 of 10 of {error.num_rows} "
        "measured pairs the "
        f"predicted ratio of two layouts' times errs by up to {error.share * 100:.0f} %. Of these layouts {least} "
        "needs the least memory",
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


def _about_layouts(plans: Sequence[Plan]) -> Iterator[Line]:
    limited = any(plan.limits.max_overhead is not None for plan in plans)
    about = "Cost compares with the step without recompute of the same layout"
    yield Line(f"{about}{', and so does the limit of --max_overhead' if limited else ''}", "dim", hang=2)
    if any(plan.spec.cuda_graph.impl != "none" and plan.safe is None for plan in plans):
        yield Line(f"More settings may fit {WITHOUT_GRAPHS}: graphs forbid settings and widen ranges", "dim", hang=2)


def _chosen(
    layouts: Sequence[Layout], name: str, chosen: Plan | None, same: Sequence[Line], whose: str
) -> Iterator[Block]:
    """Yield the recommended setting, equally fast layouts, the request's setting, and a faster one that may not fit."""
    if chosen is None or chosen.recommended is None:
        return
    best = chosen.recommended
    first = next(plan for _, plan, _ in layouts if plan)
    yield Line((Span("Use ", "strong"), Span(f"{name}  {option(best)}", "chosen")), hang=4)
    yield from paste_lines(to_paste(best.candidate.spec, first.spec, with_sizes=True), 4)
    yield from same
    if asked := asked_text(chosen, whose):
        yield Line(asked[0].upper() + asked[1:], hang=4)
    if chosen.safe is None:
        yield Line("No setting fits with its whole range", hang=4)
        yield assumptions(chosen)
        return
    fastest, error = chosen.seconds_per_token(best), ratio_error()
    tight = [
        (seconds, where, row)
        for where, plan, _ in layouts
        for row in (plan.rows if plan else ())
        if plan and row.verdict == "TIGHT" and (seconds := plan.seconds_per_token(row)) < fastest
        if row is chosen.riskier or (plan is not chosen and not error.hides(seconds, fastest))
    ]
    if tight:
        _, where, row = min(tight, key=lambda each: each[0])
        yield Line(f"Faster, but the upper end of its range does not fit: {where}  {option(row)}", hang=4)
        yield from paste_lines(to_paste(row.candidate.spec, first.spec, with_sizes=True), 4)
    yield assumptions(chosen)


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
    front = thinned(found.pareto, keep=best[0])
    title = (
        f"Settings that no other one beats in memory and time (Pareto set), up to {SLOWEST:g} times the fastest step"
        f"{f'; {len(front)} of {len(found.pareto)} shown, --json has all' if len(front) < len(found.pareto) else ''}"
    )
    blocks.append(Section(title, (_table(front),)))
    nearest = nearest_lines(planned.nearest_golden, planned.nearest_published)
    blocks += [assumptions(best[0][0].plan), *nearest]
    return Page(tuple(blocks))


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
    columns = [Column(title, right=title not in ("Layout", "Recompute", "")) for title in (
        "Layout", "Recompute", f"Peak {unit}", f"Range {unit}", "Step", "TFLOP/s/GPU", "")]  # fmt: skip
    return table(columns, [
        [*layout_cells(tried.name + (marks or {}).get(tried.name, ""), row, row.prediction, unit), verdict_text(row)]
        for tried, row in rows if row.prediction
    ])  # fmt: skip
