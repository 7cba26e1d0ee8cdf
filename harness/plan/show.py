"""Shows plans below line 1: a row per setting, and what to copy."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from harness.experiment.experiment import ExperimentSpec
from harness.foreign.exporting import to_paste
from harness.plan.answer import answer_of, peak_text, seconds_in_unit, size_in, size_unit
from harness.predict.advice import (
    advice,
    allocator_note,
    allocator_text,
    asked_text,
    cheapest_saving,
    drawn_text,
    module_worths,
    recommendations,
    riskier_text,
    safe_instead,
    same_time_text,
    unmodelled,
)
from harness.predict.exact import ExactPeak
from harness.predict.limits import Limits
from harness.predict.prediction import Prediction
from harness.predict.search import Plan, Row, cost_of
from harness.show.page import (
    GAP,
    Block,
    Column,
    Details,
    Line,
    Page,
    Section,
    Span,
    Table,
    Words,
    bar,
    details,
    listing,
    style_of,
    table,
    tabled,
)
from harness.show.request_text import (
    assumed_lines,
    export_lines,
    other_notes,
    paste_lines,
    request_facts,
    request_words,
    stop_words,
)
from harness.units import GIB, format_bytes, format_percent, format_seconds, grouped, sentence

COLUMNS = ("peak", "usable", "step", "cost", "range", "tflops", "fits", "reserved", "device", "hfu", "stage")
"""What `--columns` takes: the columns of a table of settings, behind those that name its rows."""
_PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "transient", "overhead")
MOST_ROWS, _ROWS_APART = 6, 10 * GIB
SAME = "="
_HOST_BOUND = "Host-bound: the host is slower than the GPU; a larger micro-batch (-mb) helps, or CUDA graphs"


def plan_page(
    plan: Plan, notes: Sequence[str], *, own: str = "", show_all: bool = False, is_beaten: bool = False
) -> Page:
    """The page of one layout. ``own``: the recipe's setting.

    ``is_beaten``: by a plan by layer, so none of the settings is recommended.
    """
    predicted = plan.predicted
    rows = predicted if show_all else sorted(chief(plan, predicted, own), key=lambda row: cost_of(row)[0])
    unit = size_unit(plan.rows)
    facts = request_facts(plan.spec, without=("Recompute",))
    best = None if is_beaten else plan.cure or plan.recommended
    same = set() if is_beaten or plan.cure else {row.text for row in plan.same_time}
    whose = {plan.spec.recompute.text: " (yours)", own: " (recipe's)"}
    shown = [Shown(_name(row, best, whose, same), row, plan.limits, row.overhead) for row in rows]
    if best and best is plan.cure:
        shown.insert(0, Shown(f"{best.text}, expandable *", best, plan.limits, best.overhead))
    return Page(
        (
            setting_table(shown, unit, show_all=show_all),
            *limit_lines(plan, notes),
            *([GAP] if is_beaten else _advised(plan)),
            *export_lines(notes),
            Details(len(predicted) - len(rows), "more setting", option="--all"),
            Details(len(facts.rows), "fact", (facts,)),
            details("note", [*other_notes(notes), *_marks(plan), *_left_out(plan)]),
            Details(1, "table", (_parts(rows, unit),)),
            details("price", _prices(plan), title="Price of modules"),
            assumptions(plan),
        ),
        answer=answer_of(plan, keep=stop_words(notes)),
    )


def _advised(plan: Plan) -> Iterator[Block]:
    """Yield what helps where nothing fits, what to know of other settings, and what to copy."""
    changes = [Line(f"{at}. {step.text}", hang=3) for at, step in enumerate((s for s in advice(plan) if s.helps), 1)]
    if changes:
        ladder = Line("Changes, the cheapest first:"), *changes
        yield from [Details(len(changes), "step", ladder)] if plan.recommended else ladder
    own = next((row for row in plan.predicted if row.text == plan.spec.recompute.text), None)
    in_table = own is not None and _is_told_by_table(own, plan)
    riskier = "" if own is plan.riskier and not in_table else riskier_text(plan)
    for text in ("" if in_table else asked_text(plan), safe_instead(plan), riskier):
        if text:
            yield Line(sentence(text), hang=2)
    yield GAP
    yield from pasted(next(iter(recommendations(plan)), None), plan.spec)
    if plan.riskier:
        yield details("override", pasted(plan.riskier, plan.spec), title=f"{plan.riskier.label}, which may not fit")


def _is_told_by_table(own: Row, plan: Plan) -> bool:
    return not allocator_text(plan, own) and (own is plan.riskier or own.verdict != "TIGHT")


def chief(plan: Plan, rows: Sequence[Row], own: str = "") -> list[Row]:
    """Return at most six rows: those that people ask for, then the best of each further 10 GiB."""
    front = list[Row]()
    for row in sorted(rows, key=lambda row: round(cost_of(row)[0], 3)):
        if not front or cost_of(row)[1] < 0.999 * cost_of(front[-1])[1]:
            front.append(row)
    least = front[-1] if front else None
    named = (plan.control, plan.recommended, plan.cure, least, plan.riskier, plan.too_dear, cheapest_saving(plan))
    texts = (
        plan.spec.recompute.text,
        own,
        *(row.text for row in named if row),
        *(w.text for w in module_worths(plan)[:1]),
    )
    keep = [row for text in dict.fromkeys(texts) for row in rows if row.text == text]
    most = MOST_ROWS - (plan.cure is not None)  # which has a row of its own
    return [row for row in rows if row in _far_apart(keep, front)[:most]]


def _far_apart(keep: list[Row], more: Iterable[Row]) -> list[Row]:
    """Add those of ``more`` whose memory differs enough from all of ``keep``."""
    sizes = [cost_of(row)[1] for row in keep]
    span = max(sizes, default=0) - min(sizes, default=0)
    apart = max(span / MOST_ROWS, min(_ROWS_APART, span / 4))
    for row in more:
        if all(abs(cost_of(row)[1] - cost_of(other)[1]) >= apart for other in keep):
            keep.append(row)
    return keep


class Shown(NamedTuple):
    """A row of a table: what its first cell says, the setting, what it has to fit into, and its cost as a share."""

    name: Words
    row: Row
    limits: Limits
    cost: float | None


def setting_table(rows: Sequence[Shown], unit: str, *, layouts: bool = False, show_all: bool = False) -> Table:
    """Return the table of settings, or of ``layouts`` with a setting each."""

    def right(title: str, read: Callable[[Prediction, Limits], str], drop: int = 0, *, detail: bool = False) -> _Cells:
        column = Column(title, right=True, drop=drop, optional=True, detail=detail)
        return column, lambda each: read(each.row.prediction, each.limits) if each.row.prediction else "-"

    more: dict[str, Callable[[Prediction, Limits], str]] = {
        f"Range {unit}": lambda found, _: "-".join(size_in(size, unit) for size in found.range_bytes),
        "TFLOP/s/GPU": lambda found, _: f"{found.tflops_per_gpu:.0f}" if found.tflops_per_gpu else "-",
        f"Fits {unit}": lambda found, _: size_in(found.fits[1], unit),
        f"Reserved {unit}": lambda found, _: size_in(found.reserved_bytes, unit),
        f"Device {unit}": lambda found, limits: size_in(limits.device_bytes(found), unit),
        "HFU": lambda found, _: f"{found.hfu * 100:.0f} %" if found.hfu else "-",
        "Stage": lambda found, _: str(found.fullest.pp_rank),
    }
    setting: list[_Cells] = [(Column("Recompute"), lambda each: each.row.label)] if layouts else []
    return tabled(
        rows,
        [
            (Column("Layout" if layouts else "Recompute"), lambda each: each.name),
            *setting,
            right(f"Peak {unit}", lambda found, _: peak_text(found, unit)),
            (Column("Usable", optional=True, whole=True), lambda each: usable_cell(each.row, each.limits)),
            right("Step", lambda found, _: format_seconds(found.time.likely_s) if found.time else "-", 1),
            (Column("Cost", right=True), lambda each: "-" if each.cost is None else format_percent(each.cost)),
            *(right(title, read, at, detail=not show_all) for at, (title, read) in enumerate(more.items(), 2)),
        ],
    )


_Cells = tuple[Column, Callable[[Shown], Words]]


def with_columns(page: Page, names: Sequence[str]) -> Page:
    """Return the page whose table of settings has these of ``COLUMNS``, in this order."""

    def cut(block: Block) -> Block:
        if not isinstance(block, Table) or len(block.columns) < len(COLUMNS):
            return block
        first = len(block.columns) - len(COLUMNS)
        chosen = block.only([*range(first), *(first + COLUMNS.index(name) for name in names)])
        return replace(chosen, columns=tuple(replace(column, detail=False, drop=0) for column in chosen.columns))

    return replace(page, blocks=tuple(map(cut, page.blocks)))


def usable_cell(row: Row, limits: Limits) -> Words:
    """Return what the allocator needs as a share of what it may use, as a bar and a figure, and the verdict."""
    budget = limits.budget_bytes
    if row.prediction is None or budget is None or row.verdict is None:
        return "-"
    share = row.prediction.fits[1] / budget if budget > 0 else inf
    doubt = "?" if row.verdict == "OOM" and not row.is_certain else ""
    return Span(f"{bar(share)} {min(share, 9.99) * 100:3.0f} % {row.verdict}{doubt}", style_of(row.verdict))


def _parts(rows: Sequence[Row], unit: str) -> Section:
    def part(name: str) -> Callable[[Row], Words]:
        return lambda row: size_in(getattr(row.prediction and row.prediction.worst, name, 0), unit)

    columns = [(Column(name.capitalize(), right=True, drop=at // 5), part(name)) for at, name in enumerate(_PARTS)]
    where = (Column("Peak at", drop=2), lambda row: row.prediction.worst.peak if row.prediction else "-")
    title = f"What the peak of the fullest stage consists of, {unit}"
    return Section(title, (tabled(rows, [(Column("Recompute"), lambda row: row.label), *columns, where]),), folded=True)


def _name(row: Row, best: Row | None, whose: Mapping[str, str], same: Collection[str]) -> str:
    return row.label + " *" * (row is best) + f" {SAME}" * (row.text in same) + whose.get(row.text, "")


def limit_lines(plan: Plan, notes: Sequence[str]) -> list[Line]:
    """Return what may be used, the job that is planned, and those of ``notes`` that name assumed values."""
    limits = [Line(text, "dim", hang=2) for text in (*plan.limit_texts, *drawn_text(plan), *_seconds(plan))]
    return [*limits, Line(f"Job: {request_words(plan.spec)}", "dim", hang=2), *assumed_lines(notes)]


def _seconds(plan: Plan) -> Iterator[str]:
    """Yield the range of a step with the recommended setting, or without recompute, and what its seconds are from."""
    row = plan.cure or plan.recommended or plan.control
    if row and row.prediction and (time := row.prediction.time):
        _, ends, unit = seconds_in_unit(time)
        yield f"Step: {ends} {unit}" + (f"; {time.source.text}" if time.source else "")
        if time.host_bound:
            yield _HOST_BOUND


def _marks(plan: Plan) -> Iterator[str]:
    if same := same_time_text(plan):
        yield f"{SAME}: {same}"
    yield from dict.fromkeys(row.prediction.range_basis for row in plan.rows if row.prediction)
    if plan.limits.needs.outside_bytes:
        yield allocator_note(plan)
        yield f"Outside torch's allocator the device holds {plan.limits.needs.text}"


def _left_out(plan: Plan) -> Iterator[str]:
    refused = grouped(
        (row.reason.replace(f"recompute {row.text}", "it"), row.text) for row in plan.rows if row.prediction is None
    )
    yield from (f"Not predicted: {' '.join(names)} ({why})" for why, names in refused.items())
    inert = grouped((why, name) for name, why in plan.inert.items() if "no such module" not in why)
    yield from (f"No effect here: {', '.join(names)} ({why})" for why, names in inert.items())
    yield from (f"Not tried: {text}" for text in plan.skipped)


def _prices(plan: Plan) -> Iterator[str]:
    """Yield the modules, ordered by the cost of each byte that they free."""
    for worth in module_worths(plan):
        if worth.saved_bytes <= 0:
            yield f"{worth.text} frees nothing"
        else:
            price = "" if worth.extra_s is None else f" {worth.price * GIB * 1000:.1f} ms per GiB"
            yield f"{worth.text}{price} ({format_bytes(worth.saved_bytes)} freed)"


def pasted(row: Row | None, base: ExperimentSpec, *, with_sizes: bool = False) -> Iterator[Line]:
    """Yield the setting in words of other programs; as `to_paste`."""
    if row is not None:
        yield from paste_lines(to_paste(row.candidate.spec, base, with_sizes=with_sizes))


def assumptions(plan: Plan) -> Details:
    """Return the assumptions of the figures."""
    bounds = unmodelled(plan)
    texts = [f"{text} (not modelled: {bounds[text]})" if text in bounds else text for text in plan.assumptions]
    return details("assumption", texts, title="Assumptions")


def exact_section(text: str, peaks: tuple[ExactPeak, ...]) -> Section:
    """One setting: a row per pipeline stage, and why some have no exact peak."""
    columns = ("Stage", "Composed", "Exact", "Composed vs. exact", "Optimizer step")
    rows = [
        (
            str(peak.pp_rank),
            format_bytes(peak.composed_bytes),
            "-" if peak.exact_bytes is None else format_bytes(peak.exact_bytes),
            "-" if peak.error is None else f"{peak.error * 100:+.3f} %",
            format_bytes(peak.optimizer_step_bytes),
        )
        for peak in peaks
    ]
    problems = listing((f"Stage {peak.pp_rank}: {peak.problem}" for peak in peaks if peak.problem), style="doubt")
    return Section(f"Whole step traced: {text}", (table(columns, rows, right=columns), problems))
