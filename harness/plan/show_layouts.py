"""Shows plans of several layouts, a row per layout, and the answer of `plan --search` with the Pareto set."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite

from harness.measure.understanding import with_stop
from harness.plan.answer import answer_of, size_unit
from harness.plan.request import PlanRequest
from harness.plan.run import Layout, Planned, Unplanned
from harness.plan.searched import Searched, command
from harness.plan.show import MOST_ROWS, SAME, Shown, assumptions, limit_lines, pasted, setting_table
from harness.predict.advice import asked_text, why_none
from harness.predict.ranges import ratio_error
from harness.predict.search import Plan, Row, cost_of
from harness.resolve.recipe import LAID_OUT
from harness.show.page import GAP, Block, Code, Details, Line, Page, Section, Span, answer_line, details, listing
from harness.show.progress import Counting
from harness.show.request_text import export_lines, other_notes, request_facts, stop_lines, stop_words
from harness.units import counted, format_bytes, format_seconds, sentence


def layouts_page(planned: Planned) -> Page:
    """Return the page of several layouts. A layout that is illegal or that no setting fits shows the reason."""
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
            *(_chosen(best, first, planned.made) if best else ()),
            Details(len(facts.rows), "fact", (facts,)),
            details("note", [*other_notes(planned.notes), *_about(planned)]),
            assumptions(judged),
        ),
        answer=_answer(planned) if best else answer_line(Span(f"Nothing fits: {_why_nothing(planned)}", "bad")),
    )


def _why_nothing(planned: Planned) -> str:
    near = min((each for each in planned.made if each.plan.predicted), key=lambda each: each.lacking, default=None)
    if near is None or near.lacking <= 0 or near.plan.limits.capacity_bytes is None:
        return why_none(planned.made[0].plan)
    return f"closest is {_with_need(near, near.smallest)}; try --search"


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


def _about(planned: Planned) -> Iterator[str]:
    yield "Cost compares the time per token with the recommended layout's, or with the first one's where none fits"
    if planned.same_time:
        error = ratio_error()
        yield (
            f"{SAME}: as fast as the recommended layout, as far as predictions can tell: of {error.num_rows} measured "
            f"pairs, 9 of 10 have a ratio of times within {error.share * 100:.0f} % of the predicted one"
        )


def _chosen(best: Layout, first: Plan, layouts: Sequence[Layout]) -> Iterator[Block]:
    """Yield the recommended setting to paste, the request's setting, and a faster one that may not fit."""
    if asked := asked_text(best.plan):
        yield Line(sentence(asked), hang=2)
    if best.plan.safe is None:
        yield Line("No setting fits with its whole range", hang=2)
    elif tight := _faster(best, layouts):
        name, row = tight
        text = f"Faster, but the upper end of its range does not fit: {name} with recompute {row.label}"
        yield Line(text, hang=2)
        yield Details(2, "override", tuple(pasted(row, first.spec, with_sizes=True)))
    yield GAP
    yield from pasted(best.row, first.spec, with_sizes=True)
    yield from export_lines(best.settled.notes)


def _faster(best: Layout, layouts: Sequence[Layout]) -> tuple[str, Row] | None:
    """Return the fastest setting of any layout that is surely faster than the recommended one but may not fit."""
    assert best.row
    fastest, error = best.plan.seconds_per_token(best.row), ratio_error()
    rows = [(each.plan.seconds_per_token(row), each.name, row) for each in layouts for row in each.plan.rows]
    faster = [
        each
        for each in rows
        if each[2].verdict == "TIGHT" and each[0] < fastest
        if each[2] is best.plan.riskier or not error.hides(each[0], fastest)
    ]
    return min(faster, key=lambda each: each[0])[1:] if faster else None


def news(progress: Counting, known: Searched) -> None:
    """Show how far a search has come, and the best layout so far."""
    best = min((each for each in known.tried.values() if each.row), key=lambda each: each.rank, default=None)
    text = f"best so far: {best.name}" if best else "none fits so far"
    if best and isfinite(best.seconds):  # the time of a CPU is not predicted
        text += f", {format_seconds(best.seconds)} a step"
    progress(sum(known.counts.values()), known.num_layouts, text)


def search_page(found: Searched, request: PlanRequest, *, show_all: bool = False) -> Page:
    """Return the page of a search, finished or interrupted. ``show_all``: every layout that it recommends."""
    best = [(each, each.row) for each in found.best if each.row]
    facts = request_facts(found.base.spec, without=("Parallelism", "Recompute", "Fingerprint"))
    of, fewest = _extent(found, request)
    notes = [*other_notes(found.base.notes), *found.sources, *_counts(found)]
    known = Details(len(facts.rows), "fact", (facts,)), details("note", notes)
    if not best:
        near = f"; closest: {_with_need(found.nearest, found.nearest.smallest)}" if found.nearest else ""
        nothing = Span("Nothing that fits was found so far" if found.interrupted else "Nothing fits", "bad")
        return Page(
            (listing(_counts(found)), _next_step(found), *known),
            answer=answer_line((nothing, f" among {of}"), near, ".", keep=["."]),
        )
    unseen = counted(found.num_layouts - sum(found.counts.values()), "layout")
    early = f"Ended early: {unseen} not seen; `plan` of one of these may show other figures, because it replays steps"
    first = replace(best[0][0], settled=with_stop(best[0][0].settled, request.asked))
    planned, rows = Planned((first, *found.best[1:])), best[: None if show_all else MOST_ROWS]
    commands = [command(*each, request) for each in best]
    return Page(
        (
            *[Line(early, "doubt", hang=2)] * found.interrupted,
            *stop_lines(first.settled.notes),
            *_table([(each.name, each.plan, row) for each, row in rows], planned),
            *limit_lines(replace(best[0][0].plan, spec=best[0][1].candidate.spec), _still_assumed(found)),
            GAP,
            Code(commands[0]),
            *pasted(best[0][1], found.base.spec, with_sizes=True),
            *known,
            Details(len(commands) - 1, "command", (Section("The other layouts", (Code("\n".join(commands[1:])),)),)),
            Details(len(best) - len(rows), "more layout", option="--all"),
            details("note", _about(planned)),
            assumptions(best[0][0].plan),
        ),
        answer=_answer(planned, of, fewest, is_early=found.interrupted),
    )


def _with_need(layout: Layout, row: Row) -> str:
    assert row.prediction
    sizes = (format_bytes(size) for size in (row.prediction.fits[1], layout.plan.limits.budget_bytes or 0))
    return "{} with recompute {}, needs {} of {} usable".format(layout.name, row.label, *sizes)


def _next_step(found: Searched) -> Line:
    """Say what to change so that something may fit."""
    spec = found.base.spec
    graphs = ", or --cuda_graph_impl none" * (spec.cuda_graph.impl != "none")
    more = ",".join(str(spec.num_gpus * times) for times in (2, 4, 8))
    return Line(f"Next: fewer fixed sizes{graphs}, or more GPUs: --search --over ng={more}", hang=2)


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
    gpus = counted(found.base.spec.num_gpus, "GPU")
    few = f" (too few: {', '.join(map(str, found.too_few))})" if found.too_few else ""
    return f"{tried} of {gpus}", f"{gpus}{few}: "


def _counts(found: Searched) -> Iterator[str]:
    ends = ", ".join(f"{how} ({count})" for how, count in found.counts.most_common())
    yield f"{counted(found.num_layouts, 'layout')}: {ends}"
    why = "; ".join(f"{reason} ({count})" for reason, count in found.reasons.most_common(3))
    if why:
        yield f"Not legal: {why}"
