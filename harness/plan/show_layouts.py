"""Shows plans of several layouts, a row per layout, and the answer of `plan --search` with the Pareto set."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.measure.understanding import with_stop
from harness.plan.answer import answer_of, size_unit
from harness.plan.request import PlanRequest
from harness.plan.run import Layout, Planned, Unplanned
from harness.plan.searched import NUM_BEST, SLOWEST, Searched, Tried, command
from harness.plan.show import MOST_ROWS, SAME, Shown, assumptions, limit_lines, pasted, setting_table
from harness.predict.advice import WITHOUT_GRAPHS, asked_text, why_none
from harness.predict.layouts import Sizes
from harness.predict.ranges import ratio_error
from harness.predict.search import Plan, Row, cost_of
from harness.resolve.recipe import LAID_OUT
from harness.resolve.sweep_file import SIZES
from harness.show.page import GAP, Block, Code, Details, Line, Page, Section, Span, answer_line, details, listing
from harness.show.progress import Counting
from harness.show.request_text import export_lines, other_notes, request_facts, stop_lines, stop_words
from harness.units import counted, format_bytes, format_seconds, sentence


def layouts_page(planned: Planned, whose: str = "the recipe's") -> Page:
    """Return the page of several layouts. A layout that is illegal or that no setting fits shows the reason.

    ``whose``: as in `plan_page`.
    """
    best, first = planned.best, planned.made[0].plan
    missing = (f"{layout.name}: {why}" for layout in planned.layouts if (why := _why_missing(layout)))
    rows = [(layout.name, layout.plan, row) for layout in planned.made if (row := best_row(layout.plan))]
    judged, settled = best.plan if best else first, (best or planned.made[0]).settled
    facts = request_facts(judged.spec, without=("Parallelism", "Recompute", "Fingerprint"))
    return Page(
        (
            *_table(rows, planned),
            listing(missing),
            *limit_lines(judged, settled.notes),
            *(_chosen(best, first, planned.made, whose) if best else ()),
            Details(len(facts.rows), "fact", (facts,)),
            details("note", [*other_notes(planned.notes), *_about(planned, [each.plan for each in planned.made])]),
            assumptions(judged),
        ),
        answer=_answer(planned) if best else answer_line(Span(f"Nothing fits: {_why_nothing(planned)}", "bad")),
    )


def _why_nothing(planned: Planned) -> str:
    first = planned.made[0].plan
    near = min((each for each in planned.made if each.plan.predicted), key=lambda each: each.lacking, default=None)
    if near is None or near.lacking <= 0 or first.limits.capacity_bytes is None:
        return why_none(first)
    return (
        f"closest is {near.name} with recompute {near.smallest.label}, {_of_usable(near, near.smallest)}; try --search"
    )


def _answer(planned: Planned, of: str = "", fewest: str = "", *, is_early: bool = False) -> Line:
    """Return line 1: the best layout, what it is the best ``of`` (always if ``is_early``), the ``fewest`` GPUs."""
    best = planned.best
    assert best and best.row
    same = f"; as fast: {', '.join(each.name for each in planned.same_time)}" if planned.same_time else ""
    more = [f"; best of {of or counted(len(planned.layouts), 'layout')}", same]
    row = best.plan.cure or best.row
    keep = [*more[:is_early], *stop_words(best.settled.notes)]
    return answer_of(best.plan, f"{fewest}{best.name} with recompute {row.label}", more, keep)


def best_row(plan: Plan) -> Row | None:
    """Return the recommended setting; where none is, the cheapest that fits, else the one of least memory."""
    least = min(plan.predicted, key=lambda row: cost_of(row)[::-1], default=None)
    return plan.recommended or plan.too_dear or least


def _why_missing(layout: Layout | Unplanned) -> str:
    if isinstance(layout, Unplanned):
        return layout.problem
    if best_row(layout.plan):
        return ""
    reason = next((row.reason for row in layout.plan.rows if row.candidate.is_legal), "no setting is legal")
    return f"not predicted: {reason}"


def _table(rows: Sequence[tuple[str, Plan, Row]], planned: Planned) -> tuple[Block, ...]:
    """Return the table; sizes that are the same in all its rows stand below it."""
    same = _shared_words([name for name, *_ in rows])
    best = {planned.best.name: " *"} if planned.best else {}
    marks = {layout.name: f" {SAME}" for layout in planned.same_time} | best
    unit = size_unit([row for *_, row in rows])
    _, plan, row = next((each for each in rows if planned.best and each[2] is planned.best.row), rows[0])
    fastest = plan.seconds_per_token(row)
    shown = [
        Shown(
            (" ".join(word for word in name.split() if word not in same) or "vp=none") + marks.get(name, ""),
            row,
            plan.limits,
            plan.seconds_per_token(row) / fastest - 1 if fastest else None,
        )
        for name, plan, row in rows
    ]
    return setting_table(shown, unit, layouts=True), *([Line(f"All rows: {' '.join(same)}", "dim")] if same else [])


def _shared_words(names: Sequence[str]) -> list[str]:
    return [word for word in names[0].split() if len(names) > 1 and all(word in name.split() for name in names)]


def _about(planned: Planned, plans: Sequence[Plan]) -> Iterator[str]:
    """Say which layouts are as fast as the best one, as far as predictions tell, and which needs the least memory."""
    yield "Cost compares the time per token with the recommended layout's, or with the first one's where none fits"
    if any(plan.spec.cuda_graph.impl != "none" and plan.safe is None for plan in plans):
        yield f"More settings may fit {WITHOUT_GRAPHS}: graphs forbid settings and widen ranges"
    if not planned.best or not planned.same_time:
        return
    rows = ((layout.name, layout.row) for layout in (planned.best, *planned.same_time))
    sizes = {name: row.prediction.peak_bytes for name, row in rows if row and row.prediction}
    error, smallest = ratio_error(), min(sizes, key=lambda name: sizes[name])
    least = "the recommended one" if smallest == planned.best.name else f"{smallest} ({format_bytes(sizes[smallest])})"
    yield (
        f"{SAME}: as fast as the recommended layout, as far as predictions can tell. Of {error.num_rows} pairs, "
        f"9 of 10 have a ratio of times within {error.share * 100:.0f} % of the predicted one. "
        f"Of these layouts, {least} needs the least memory"
    )


def _chosen(best: Layout, first: Plan, layouts: Sequence[Layout], whose: str) -> Iterator[Block]:
    """Yield the recommended setting to paste, the request's setting, and a faster one that may not fit."""
    if asked := asked_text(best.plan, whose):
        yield Line(sentence(asked), hang=2)
    if best.plan.safe is None:
        yield Line("No setting fits with its whole range", hang=2)
    elif tight := _faster(best, layouts):
        _, name, row = tight
        text = f"Faster, but the upper end of its range does not fit: {name} with recompute {row.label}"
        yield Line(text, hang=2)
        yield Details(2, "override", tuple(pasted(row, first.spec, with_sizes=True)))
    yield GAP
    yield from pasted(best.row, first.spec, with_sizes=True)
    yield from export_lines(best.settled.notes)


def _faster(best: Layout, layouts: Sequence[Layout]) -> tuple[float, str, Row] | None:
    """Return the fastest setting of any layout that is faster than the recommended one but may not fit."""
    assert best.row
    fastest, error = best.plan.seconds_per_token(best.row), ratio_error()
    rows = ((each.plan.seconds_per_token(row), each.name, row) for each in layouts for row in each.plan.rows)
    faster = [each for each in rows if each[2].verdict == "TIGHT" and each[0] < fastest]
    surely = [each for each in faster if each[1] != best.name and not error.hides(each[0], fastest)]
    return min(
        [each for each in faster if each[2] is best.plan.riskier] + surely, key=lambda each: each[0], default=None
    )


# Rows of the Pareto set that the page shows; --json has all.
_MOST_PARETO = 20


def news(progress: Counting, known: Searched) -> None:
    """Show how far a search has come, and the best layout so far."""
    best = min((each for each in known.tried.values() if each.row), key=lambda each: each.rank, default=None)
    text = f"best so far: {best.name}, {format_seconds(best.seconds)} a step" if best else "none fits so far"
    progress(sum(known.counts.values()), known.num_layouts, text)


def search_page(found: Searched, request: PlanRequest, *, show_all: bool = False) -> Page:
    """Return the page of a search, finished or interrupted. ``show_all``: every layout that it recommends."""
    best = [(each, each.row) for each in found.best if each.row]
    facts = request_facts(found.base.spec, without=("Parallelism", "Recompute", "Fingerprint", "TP overlap"))
    more = Details(len(facts.rows), "fact", (facts,))
    of, fewest = _extent(found, request)
    notes = [*other_notes(found.base.notes), *found.sources]
    if not best:
        nothing = Span("Nothing that fits was found so far" if found.interrupted else "Nothing fits", "bad")
        next_step = Line(f"Next: {_next_step(found, request)}", hang=2)
        return Page(
            (*_without_graphs(found), listing(_counts(found)), next_step, more, details("note", notes)),
            answer=answer_line((nothing, f" among {of}"), _closest(found), ".", keep=["."]),
        )
    unseen = counted(found.num_layouts - sum(found.counts.values()), "layout")
    early = f"Ended early: {unseen} not seen; `plan` of one of these may show other figures, because it replays steps"
    first = replace(best[0][0], settled=with_stop(best[0][0].settled, request.asked))
    planned, front = Planned((first, *found.best[1:])), thinned(found.pareto, keep=best[0])
    shown = f"; {len(front)} of {len(found.pareto)} shown, --json has all" if len(front) < len(found.pareto) else ""
    pareto = f"Settings that no other one beats in memory and time, up to {SLOWEST:g} times the fastest step{shown}"
    commands = [command(*each, request) for each in best]
    rest = tuple((each.name, each.plan, row) for each, row in front)
    return Page(
        (
            *[Line(early, "doubt", hang=2)] * found.interrupted,
            *_without_graphs(found),
            *stop_lines(first.settled.notes),
            *_table([(each.name, each.plan, row) for each, row in best[: None if show_all else MOST_ROWS]], planned),
            *limit_lines(replace(best[0][0].plan, spec=best[0][1].candidate.spec), _still_assumed(found)),
            GAP,
            Code(commands[0]),
            *pasted(best[0][1], found.base.spec, with_sizes=True),
            more,
            details("note", [*notes, *found.other_vps(), *_counts(found)]),
            Details(len(commands) - 1, "command", (Section("The other layouts", (Code("\n".join(commands[1:])),)),)),
            Details(0 if show_all else max(0, len(best) - MOST_ROWS), "more layout", option="--all"),
            Details(len(front), "Pareto setting", (Section(pareto, _table(rest, planned)),)),
            details("note", _about(planned, [each.plan for each, _ in best])),
            assumptions(best[0][0].plan),
        ),
        answer=_answer(planned, of, fewest, is_early=found.interrupted),
    )


def _without_graphs(found: Searched) -> Iterator[Line]:
    """Yield the layout that is safer or faster without CUDA graphs than the best one."""
    if (eager := found.eager) and eager.row:
        how = "Faster" if found.best and found.best[0].rank[0] == eager.rank[0] else "Safer" if found.best else "Fits"
        what = f"{eager.name} with recompute {eager.row.label}"
        yield Line(
            f"{how} {WITHOUT_GRAPHS}: {what}, {_of_usable(eager, eager.row)}, {format_seconds(eager.seconds)} a step"
        )


def _of_usable(layout: Layout, row: Row) -> str:
    assert row.prediction
    sizes = (format_bytes(size) for size in (row.prediction.fits[1], layout.plan.limits.budget_bytes or 0))
    return "needs {} of {} usable".format(*sizes)


def _closest(found: Searched) -> str:
    """Name the layout of a search without an answer that lacks the least."""
    if (near := found.nearest) is not None:
        return f"; closest: {near.name} with recompute {near.smallest.label} {_of_usable(near, near.smallest)}"
    size, name = found.least
    return f"; closest: {name}, {format_bytes(size)} of weights, gradients and states" if name else ""


def _next_step(found: Searched, request: PlanRequest) -> str:
    """Say what to change so that something may fit."""
    given = [f"-{name}" for name in Sizes._fields if getattr(request.asked, SIZES[name]) is not None]
    free = f"leave out {' '.join(given)}, so that the search tries other sizes; or " if given else ""
    more = ",".join(str(found.base.spec.num_gpus * times) for times in (2, 4, 8))
    return f"{free}more GPUs: --search --over ng={more} finds the fewest"


def _still_assumed(found: Searched) -> list[str]:
    """Return the notes of the request without what the search chose: the micro-batch and the pipeline's layout."""
    micro = f"micro {found.base.spec.batch.micro_batch_size}"
    notes = (re.sub(f"{micro}, |, {micro}(?=;)| -mb", "", note) for note in found.base.notes)
    return [note for note in notes if micro not in note and not note.startswith(LAID_OUT)]


def _extent(found: Searched, request: PlanRequest) -> tuple[str, str]:
    """Say how many layouts were tried, and of how many GPUs where the request names several numbers."""
    done = f"{sum(found.counts.values())} of " if found.interrupted else ""
    early = f" ({'time is up' if found.is_time_up else 'interrupted'})" if found.interrupted else ""
    tried = f"{done}{counted(found.num_layouts, 'layout')}{early}"
    if not request.num_gpus:
        return tried, ""
    gpus, are = counted(found.base.spec.num_gpus, "GPU"), "are" if len(found.too_few) > 1 else "is"
    few = f" ({' and '.join(map(str, found.too_few))} {are} too few)" if found.too_few else ""
    return f"{tried} of {gpus}", f"{gpus}{few}: "


def thinned(front: Sequence[tuple[Tried, Row]], keep: tuple[Tried, Row]) -> list[tuple[Tried, Row]]:
    """Return at most ``_MOST_PARETO`` rows of a Pareto set in its order: both ends, ``keep``, and rows far apart."""
    rows = list(front)
    while len(rows) > _MOST_PARETO:
        sizes = [row.prediction.peak_bytes if row.prediction else 0 for _, row in rows]
        inner = [at for at in range(1, len(rows) - 1) if rows[at][1] is not keep[1]]
        del rows[min(inner, key=lambda at: abs(sizes[at + 1] - sizes[at - 1]))]
    return rows


def _counts(found: Searched) -> Iterator[str]:
    ends = ", ".join(f"{how} ({count})" for how, count in found.counts.most_common())
    yield f"{counted(found.num_layouts, 'layout')}: {ends}"
    why = "; ".join(f"{reason} ({count})" for reason, count in found.reasons.most_common(3))
    if why and len(found.best) < NUM_BEST:
        yield f"Not legal: {why}"
