"""A sweep as a page, judged or planned, and the picture of its cells by memory and throughput."""

from collections.abc import Callable, Iterator, Sequence
from operator import gt

from harness.measure.prediction import limits_for, limits_of
from harness.predict.limits import Limits
from harness.predict.search import judged
from harness.records.metrics import BY_NAME
from harness.records.prediction import PredictionRecord
from harness.records.sweep import Cell, SweepData, SweepPlan
from harness.show import chart as look
from harness.show.chart import Axis, Plane, Point, front, memory_limit, memory_unit
from harness.show.figures import ABSENT, figure, format_rate
from harness.show.page import (
    GAP,
    Block,
    Code,
    Column,
    Line,
    Listing,
    Only,
    Page,
    Picture,
    Section,
    Span,
    Table,
    Words,
    answer_line,
    details,
    listing,
    style_of,
    tabled,
)
from harness.show.provenance import command_text, machine_facts
from harness.show.request_text import paste_lines, request_rows
from harness.sweep.remarks import answer, closing_lines, headline, interval_text, remarks
from harness.sweep.values import CellVerdict, SweepVerdict
from harness.units import counted, format_bytes, format_percent, format_seconds, four_figures


def origin_of(data: SweepData) -> tuple[Block, ...]:
    """Return settings of the control, machine and software, and the command."""
    control = data.control.planned.spec
    varied = ", ".join(f"{axis.name} ({counted(len(axis.values), 'value')})" for axis in data.plan.axes)
    settings = [row for row in request_rows(control) if row[0] in _SETTINGS] if control else []
    runs = (run.provenance for cell in data.cells for run in cell.runs)
    machine = machine_facts(runs, [*settings, ("Varied", varied)])
    return (Only("pages", (machine, Code(command_text(data.plan.command)))),)


_SETTINGS = ("Recipe", "Parallelism", "Batch")


def sweep_page(verdict: SweepVerdict, pictures: Sequence[Picture] = (), origin: Sequence[Block] = ()) -> Page:
    """Return the judged sweep, finished or not: the picture of the choice, and the cells."""
    started = verdict.plan.started_at[:16].replace("T", " ")
    shown, others = remarks(verdict)
    return Page(
        title=verdict.plan.title,
        headline=headline(verdict),
        about=f"Recipe {verdict.plan.recipe} on {verdict.plan.gpu}, {started} UTC.",
        notes=verdict.notes,
        answer=answer(verdict),
        blocks=(
            *pictures,
            cell_table(verdict),
            listing(_compared(verdict)),
            listing([_memory(verdict.limits)], style="dim"),
            GAP,
            Listing(tuple(Line(line, "bad", 2) for line in shown)),
            *(
                [Section("The recommended cell (*), to paste into another program", paste_lines(pasted, 2))]
                if (pasted := verdict.to_paste)
                else []
            ),
            details("remark", [*closing_lines(verdict), *others]),
            *origin,
        ),
        footer=f"{verdict.plan.sweep_id}, written by mbr-perf",
    )


def _compared(verdict: SweepVerdict) -> list[str]:
    said = f"Compared with {verdict.reference}, the fastest cell that ran: {verdict.reference_why}."
    return [said] if verdict.reference else []


def cell_table(verdict: SweepVerdict) -> Table:
    """Return a row per cell in the plan's order, with every column that has a value in some cell."""
    use = verdict.recommendation.cell
    return tabled(
        verdict.cells,
        [
            (Column("#", right=True, detail=True), lambda cell: f"{cell.index}"),
            (
                Column("Cell"),
                lambda cell: (
                    f"{cell.name}{' *' * (cell.name == use)}{' (control)' * cell.is_control}"
                    f"{' (reference)' * (cell.name == verdict.reference)}"
                ),
            ),
            (Column("Status", drop=3), lambda cell: Span(cell.state, style_of(cell.state))),
            (Column("Step", right=True, optional=True), _metric("step_time_s")),
            (Column("Time change", right=True, optional=True), _time_change),
            (Column("95 % interval", right=True, drop=2, optional=True), _interval),
            (Column("Peak", right=True, optional=True), _peak),
            (Column("Peak change", right=True, drop=1, optional=True), _peak_change),
            (Column("Pareto", drop=5, detail=True), lambda cell: "yes" if cell.name in verdict.pareto else ABSENT),
            (Column("ms per GiB saved", right=True, drop=4, optional=True, detail=True), _trade),
            (Column("Reserved", right=True, drop=7, optional=True, detail=True), _metric("peak_reserved_bytes")),
            (Column("Device used", right=True, drop=7, optional=True, detail=True), _metric("peak_device_bytes")),
            (Column("TFLOP/s/GPU", right=True, drop=5, optional=True, detail=True), _metric("tflops_per_gpu")),
            (Column("Predicted", right=True, drop=6, optional=True, detail=True), _predicted),
            (Column("Pred. error", right=True, drop=6, optional=True, detail=True), _error),
        ],
    )


def _time_change(cell: CellVerdict) -> str:
    return ABSENT if cell.versus.time_change is None else format_percent(cell.versus.time_change)


def _interval(cell: CellVerdict) -> str:
    interval = cell.versus.time_change_interval
    return ABSENT if interval is None else interval_text(interval)


def _trade(cell: CellVerdict) -> str:
    price = cell.versus.ms_per_gib_saved
    return ABSENT if price is None else four_figures(price)


def _metric(name: str) -> Callable[[CellVerdict], str]:
    return lambda cell: figure(BY_NAME[name], cell.figure(BY_NAME[name])) if cell.metrics else ABSENT


def _peak(cell: CellVerdict) -> str:
    """Return the peak; marked where it is the peak until the cell ran out of memory."""
    if cell.oom_peak_bytes is not None and not cell.metrics:
        return f"{format_bytes(cell.oom_peak_bytes)} (OOM)"
    return _metric("peak_allocated_bytes")(cell)


def _peak_change(cell: CellVerdict) -> str:
    saved = cell.versus.memory_saved_bytes
    return ABSENT if saved is None else f"{'-' if saved > 0 else '+'}{format_bytes(abs(saved))}"


def _predicted(cell: CellVerdict) -> str:
    return format_bytes(cell.predicted.whole_run_peak_bytes) if cell.predicted else ABSENT


def _size(num_bytes: int | None) -> str:
    return ABSENT if num_bytes is None else format_bytes(num_bytes)


def _error(cell: CellVerdict) -> str:
    error = cell.predicted.peak_error if cell.predicted else None
    return ABSENT if error is None else format_percent(error)


_DECISIONS = {"run": "run", "pruned": "pruned", "skipped_inert": "skipped, inert", "illegal": "illegal"}


def plan_page(plan: SweepPlan) -> Page:
    """The page of `sweep --dryrun`: every cell with its prediction, what mbr-perf decided, and why cells do not run."""
    cells = tabled(
        plan.cells,
        [
            (Column("#", right=True), lambda cell: f"{cell.index}"),
            (Column("Cell"), lambda cell: f"{cell.name} (control)" if cell.name == plan.control else cell.name),
            (Column("Decision"), lambda cell: _DECISIONS[cell.fate]),
            (Column("Verdict", optional=True), lambda cell: _verdict(cell, plan.margin)),
            *(
                (Column(title, right=True, detail=title in _DETAILS), _predicted_column(read))
                for title, read in _PREDICTED.items()
            ),
        ],
    )
    why = [cell.no_prediction for cell in plan.cells if cell.fate == "run" and cell.prediction is None]
    unpredicted = [f"Not predicted: {reason}" for reason in dict.fromkeys(why)]
    memory = _memory(limits_of((cell.spec for cell in plan.cells), plan.margin))
    lines = [*_reasons(plan), *unpredicted, memory]
    return Page(
        title=plan.title, notes=plan.notes, answer=answer_line(_planned_runs(plan)), blocks=(cells, GAP, listing(lines))
    )


_PREDICTED: dict[str, Callable[[PredictionRecord], str]] = {
    "Predicted peak": lambda own: format_bytes(own.peak_bytes),
    "Range": lambda own: " to ".join(map(format_bytes, own.range_bytes)),
    "Reserved": lambda own: _size(own.reserved_bytes),
    "Needs": lambda own: _size(own.fits_bytes),
    "Step": lambda own: ABSENT if own.step_time_s is None else format_seconds(own.step_time_s),
    "Recompute FLOPs": lambda own: format_percent(own.recompute_flops / own.model_flops),
}


_DETAILS = ("Range", "Reserved")


def _verdict(cell: Cell, margin: float) -> str:
    return judged(cell.prediction, limits_for(cell.spec, margin))[0] or ABSENT if cell.spec else ABSENT


def _predicted_column(read: Callable[[PredictionRecord], str]) -> Callable[[Cell], Words]:
    return lambda cell: read(cell.prediction) if cell.prediction else ABSENT


def summary_lines(plan: SweepPlan) -> list[str]:
    """Return how many cells run, and why others do not."""
    return [_planned_runs(plan), *_reasons(plan)]


def _reasons(plan: SweepPlan) -> list[str]:
    return [f"{cell.name}: {_DECISIONS[cell.fate]}: {cell.reason}" for cell in plan.cells if cell.fate != "run"]


def _memory(limits: Sequence[Limits]) -> str:
    usable = "; ".join(each.text for each in limits)
    return f"Usable per rank: {usable or 'no known limit, so every cell fits. Set one with --memory_limit'}"


def _planned_runs(plan: SweepPlan) -> str:
    running = sum(cell.fate == "run" for cell in plan.cells)
    repeats = f", {plan.repeats} times each, interleaved" if plan.repeats > 1 else ""
    return f"{running} of {len(plan.cells)} cells run{repeats}; the control is {plan.control}"


_BEST, _CONTROL, _FRONT = "use this", "control", "Pareto set"
_BEATEN, _DOUBTFUL = "beaten by another", "no margin or in doubt"
_LOOKS = {_BEST: (look.VERMILION, "diamond"), _CONTROL: (look.INK, "triangle"), _FRONT: (look.BLUE, "circle"),
          _BEATEN: (look.SKY, "square"), _DOUBTFUL: (look.ORANGE, "cross")}  # fmt: skip


def pictures(verdict: SweepVerdict) -> Iterator[Picture]:
    """Yield a point per cell with its number: the worst rank's peak, and tokens at the step time of the Pareto set."""
    known = [(cell, *figures) for cell in verdict.cells for figures in _figures(cell)]
    if not known:
        return
    unit, scale = memory_unit([size for _, size, _ in known])
    limits, off = memory_limit(verdict.limits, scale, max(size for _, size, _ in known) / scale)
    points = [_point(cell, verdict, size / scale, rate) for cell, size, rate in known]
    line = front(_FRONT, (point for point in points if point.name in verdict.pareto), gt)
    x, y = Axis(f"Peak allocated at the worst rank ({unit})"), Axis("Throughput (tokens/s/GPU)")
    chart = Plane(x, y, _LOOKS, tuple(points), line, limits)
    caption = (
        "Up and to the left is better. The numbers are those of the table. Vertical lines: from the slowest to the "
        "fastest repeat. Cells without figures are not shown."
    )
    yield Picture("memory_throughput", "Which setting: memory against throughput", caption + off, chart)


def _figures(cell: CellVerdict) -> list[tuple[int, float]]:
    rate = cell.speed.tokens_per_s_per_gpu if cell.speed and cell.status == "ok" else None
    return [] if rate is None or cell.peak_bytes is None else [(cell.peak_bytes, rate)]


def _point(cell: CellVerdict, verdict: SweepVerdict, x: float, rate: float) -> Point:
    rates = sorted(rate * (cell.cost_s or 0) / cost for cost in cell.costs_s)
    text = f"{format_bytes(cell.peak_bytes or 0)}, {format_rate(rate)} tok/s"
    return Point(
        x,
        rate,
        _kind(cell, verdict),
        f"{cell.index}",
        cell.name,
        text,
        f"{cell.name}: {text}",
        upwards=(rates[0], rates[-1]) if rates else None,
    )


def _kind(cell: CellVerdict, verdict: SweepVerdict) -> str:
    if cell.name == verdict.recommendation.cell:
        return _BEST
    if cell.is_control:
        return _CONTROL
    if cell.doubts or cell.fits is False:
        return _DOUBTFUL
    return _FRONT if cell.name in verdict.pareto else _BEATEN
