"""Shows plans: a row per setting, the parts of the peak, and what to do."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import FullRecompute
from harness.foreign.exporting import to_paste
from harness.plan.nearest import Nearest
from harness.predict.advice import (
    advice,
    allocator_note,
    allocator_text,
    asked_text,
    dominated,
    doubt_text,
    eager,
    module_worths,
    riskier_text,
    safe_instead,
    same_time_text,
    unmodelled,
    why_none,
)
from harness.predict.prediction import ExactPeak, Prediction
from harness.predict.search import Plan, Row
from harness.records.trace import Calibration, FittedConstant, RunErrors
from harness.show.page import (
    GAP,
    Column,
    Line,
    Page,
    Section,
    Span,
    Table,
    Words,
    listing,
    style_of,
    table,
    tabled,
)
from harness.show.request_text import paste_lines, request_facts
from harness.units import GIB, MIB, counted, format_bytes, format_percent, format_seconds, grouped

_PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "transient", "overhead")
# Above this many settings those between two others are folded.
_MANY_ROWS = 20
_MOST_NAMED = 8
_LEGEND = (
    "*: recommended; asked: the setting of the request; Reserved: by torch's allocator; Fits: the least that it can do "
    "with; Device: predicted memory in use on the GPU; Cost: compared with the step without recompute; Transient: only "
    "during the running pass; Overhead: buffers that stay, and workspaces of libraries"
)
# Below this many bytes freed a price per GiB is a small number over a smaller one.
_WORTH_A_PRICE = GIB // 10


def plan_page(plan: Plan, notes: Sequence[str], *, show_all: bool = False, whose: str = "the recipe's") -> Page:
    """The page of one layout. ``whose``: ``your`` or ``the recipe's``, by the source of the request's setting."""
    rows = _shown(plan, show_all=show_all)
    num_folded = len([row for row in plan.rows if row.prediction]) - len(rows)
    steps = [Line(f"{number}. {step.text}", hang=3) for number, step in enumerate(advice(plan), 1)]
    return Page(
        (
            request_facts(plan.spec, without=("Recompute",)),
            listing(f"Note: {note}" for note in notes),
            GAP,
            _table(plan, rows),
            listing(_left_out(plan, num_folded), style="dim"),
            GAP,
            *_ranking(plan),
            *_answer(plan, whose),
            *([Line("What helps, cheapest first:")] if steps else []),
            *steps,
            assumptions(plan),
        )
    )


def _shown(plan: Plan, *, show_all: bool) -> list[Row]:
    rows = [row for row in plan.rows if row.prediction]
    if show_all:
        return rows
    named = {row.text for row in (plan.recommended, plan.riskier, plan.too_dear) if row}
    keep = {"none", plan.spec.recompute.text, *named}
    beaten, many = dominated(tuple(rows)), len(rows) > _MANY_ROWS
    return [row for row in rows if row.text in keep or not (row.text in beaten or (many and is_between(row)))]


def is_between(row: Row) -> bool:
    """Block recompute of a number of layers that is no power of two: the line between those shown is straight."""
    policy = row.candidate.spec.recompute
    return isinstance(policy, FullRecompute) and policy.method == "block" and policy.num_layers.bit_count() > 1


def _table(plan: Plan, rows: Sequence[Row]) -> Table:
    """Return the table of settings. On a narrow terminal the parts of the peak get their own table."""
    unit = size_unit(plan.rows)
    parts = f"What the peak of the worst stage consists of, {unit}"
    speed = any(row.prediction and row.prediction.hfu for row in rows)

    def device(found: Prediction) -> int:
        return found.reserved[1] + plan.limits.needs.outside_bytes

    def rate(title: str) -> Column:
        return Column(title, right=True, drop=3, lost=True)

    columns: list[tuple[Column, Callable[[Row], Words]]] = [
        (Column("Recompute"), lambda row: _name(plan, row)),
        (Column(f"Peak {unit}", right=True), _of(lambda found: peak_text(found, unit))),
        (Column(f"Range {unit}", right=True), _of(lambda found: range_text(found, unit))),
        (Column(f"Reserved {unit}", right=True, drop=3, lost=True), _of(lambda found: _held(found, 0, unit))),
        (Column(f"Fits {unit}", right=True, drop=3, lost=True), _of(lambda found: _held(found, 1, unit))),
        (Column(f"Device {unit}", right=True, drop=3, lost=True), _of(lambda found: _size(device(found), unit))),
        (Column("Stage", drop=2, lost=True), _of(lambda found: str(found.worst.pp_rank))),
        (Column("Peak at", drop=4), _of(lambda found: found.worst.peak)),
        (Column("Step", right=True, drop=1), _of(_step)),
        (Column("Cost", right=True), lambda row: "-" if row.overhead is None else format_percent(row.overhead)),
        *([(rate("TFLOP/s/GPU"), _of(tflops)), (rate("HFU"), _of(_hfu))] if speed else []),
        *((Column(name.capitalize(), right=True, drop=4), _part(name, unit)) for name in _PARTS),
        (Column(""), verdict_text),
    ]  # fmt: skip
    return tabled(rows, columns, instead=(Section(parts, (_parts_table(rows, unit),)), GAP))


def _held(found: Prediction, what: int, unit: str) -> str:
    """Return what is reserved (0), or the smallest device (1)."""
    return _size((found.reserved, found.fits)[what][1], unit)


def _step(found: Prediction) -> str:
    return format_seconds(found.time.likely_s) if found.time else "-"


def _of(read: Callable[[Prediction], str]) -> Callable[[Row], str]:
    return lambda row: read(row.prediction) if row.prediction else ""


def _part(name: str, unit: str) -> Callable[[Row], str]:
    return _of(lambda found: _size(getattr(found.worst, name), unit))


def size_unit(rows: Sequence[Row]) -> str:
    """Return GiB, or MiB if every peak is below one GiB: a table has one unit."""
    peaks = [row.prediction.peak_bytes for row in rows if row.prediction]
    return "MiB" if peaks and max(peaks) < GIB else "GiB"


def range_text(prediction: Prediction, unit: str) -> str:
    """Return both ends of the range."""
    low, high = prediction.range_bytes
    return f"{_size(low, unit)}-{_size(high, unit)}{prediction.range_mark}"


def peak_text(prediction: Prediction, unit: str) -> str:
    """Return the peak, with a mark if not everything is modelled."""
    return f"{'' if prediction.is_point_known else '~'}{_size(prediction.peak_bytes, unit)}"


def tflops(found: Prediction) -> str:
    """Return the model TFLOP/s of each GPU."""
    return f"{found.tflops_per_gpu:.0f}" if found.tflops_per_gpu else "-"


def layout_cells(name: str, row: Row, found: Prediction, unit: str) -> list[Words]:
    """Return the cells that every table of layouts begins with: layout, recompute, peak, range, step, TFLOP/s."""
    step = format_seconds(found.time.likely_s) if found.time else "-"
    return [name, row.text, peak_text(found, unit), range_text(found, unit), step, tflops(found)]


def _hfu(found: Prediction) -> str:
    return f"{found.hfu * 100:.0f} %" if found.hfu else "-"


def _parts_table(rows: Sequence[Row], unit: str) -> Table:
    names = {"weights": "weight", "gradients": "grad", "optimizer": "optim", "activations": "activ",
             "transient": "trans", "overhead": "over"}  # fmt: skip
    small = {"transient": 1, "overhead": 1}
    parts = ((Column(names.get(name, name), right=True, drop=small.get(name, 0)), _part(name, unit)) for name in _PARTS)
    where = (Column("peak at", drop=2), _of(lambda found: found.worst.peak))
    return tabled(rows, [(Column("Recompute"), lambda row: row.text), *parts, where])


def _name(plan: Plan, row: Row) -> str:
    marks = [mark for mark, holds in (("*", row is plan.recommended), ("asked", row.text == plan.spec.recompute.text))
             if holds]  # fmt: skip
    return f"{row.text} {' '.join(marks)}".rstrip()


def verdict_text(row: Row) -> Span:
    """Return the verdict, with a question mark for OOM if the lower end of the range fits."""
    word = row.verdict or ""
    return Span(f"{word}{'?' if word == 'OOM' and not row.is_certain else ''}", style_of(word))


def _size(value: float, unit: str) -> str:
    size = value / (MIB if unit == "MiB" else GIB)
    return f"{size:.1f}" if size >= 0.1 or not value else f"{size:.2g}"


def _left_out(plan: Plan, num_folded: int) -> Iterator[str]:
    """Explain the marks, and list the settings that are not in the table, each reason once."""
    predicted = [row.prediction for row in plan.rows if row.prediction]
    yield _LEGEND
    yield from dict.fromkeys(found.range_basis for found in predicted)
    if plan.limits.needs.outside_bytes:
        yield allocator_note(plan)
        yield f"Outside torch's allocator the device holds {plan.limits.needs.text}"
    if not all(found.is_point_known for found in predicted):
        yield "~: the prediction does not model everything; rely on the range"
    if any(verdict_text(row).text == "OOM?" for row in plan.rows):
        yield "?: the predicted peak does not fit, the lower end of its range does"
    if num_folded:
        yield f"Not shown: {counted(num_folded, 'setting')} that others beat, or between two better ones (--all)"
    yield from _not_predicted(plan)
    inert = ((why, name) for name, why in plan.inert.items() if "no such module" not in why)
    yield from (f"No effect here: {', '.join(names)} ({why})" for why, names in grouped(inert).items())
    yield from (f"Not tried: {text}" for text in plan.skipped)


def _not_predicted(plan: Plan) -> Iterator[str]:
    declined = {row.text: row.reason for row in plan.rows if row.prediction is None}
    # The answer says why the setting of the request is missing.
    in_answer = plan.spec.recompute.text if plan.recommended else ""
    for why, names in grouped((why, name) for name, why in declined.items() if name != in_answer).items():
        yield f"Not predicted: {_listed(names)} ({why})"
    if any("CUDA graph" in why or "captured" in why for why in declined.values()):
        yield "Use --cuda_graph_impl none to plan the settings that only CUDA graphs forbid"


def _listed(names: Sequence[str]) -> str:
    if len(names) <= _MOST_NAMED:
        return " ".join(names)
    return f"{' '.join(names[: _MOST_NAMED - 1])} ... {names[-1]} ({counted(len(names), 'setting')})"


def _ranking(plan: Plan) -> list[Line]:
    """Modules, ordered by the cost of each byte that they free."""
    worths = module_worths(plan)
    if not worths:
        return []
    prices = []
    for worth in worths:
        if worth.saved_bytes <= 0:
            more = f", needs {format_bytes(-worth.saved_bytes)} more" if worth.saved_bytes < 0 else ""
            prices.append(f"{worth.text} frees nothing{more}")
        elif worth.extra_s is None or worth.saved_bytes < _WORTH_A_PRICE:
            prices.append(f"{worth.text} {format_bytes(worth.saved_bytes)} freed")
        else:
            price = worth.price * GIB * 1000
            prices.append(f"{worth.text} {price:.1f} ms per GiB ({format_bytes(worth.saved_bytes)} freed)")
    if any(worth.text == "core_attn" and worth.saved_bytes <= 0 for worth in worths):
        prices[-1] += " (core_attn: flash attention keeps no scores to free, and recompute also keeps its inputs)"
    return [Line(f"Price of modules: {'; '.join(prices)}", hang=2)]


def _answer(plan: Plan, whose: str) -> Iterator[Line]:
    best = plan.recommended
    if plan.limits.capacity_bytes is None:
        yield Line("mbr-perf does not know what fits: the memory of this GPU is unknown (set it with --fit_into GIB)")
        return
    if best is None or best.prediction is None:
        why = why_none(plan)
        yield Line(why[0].upper() + why[1:], "worse", hang=2)
        yield from pasted(eager(plan), plan.spec)
        return
    what = "step time" if best.prediction.time else "FLOPs"
    cost = "" if best.overhead is None else f", {format_percent(best.overhead)} {what}"
    doubt = "" if best.verdict == "FITS" else f", TIGHT: {doubt_text(plan, best.prediction)}"
    used = f"{plan.limits.use_text(best.prediction)}{cost}{doubt}{allocator_text(best)}"
    yield Line((Span("Use ", "strong"), Span(option(best), "chosen"), f"  ({used})"), hang=4)
    yield from pasted(best, plan.spec)
    others = ((safe_instead(plan), eager(plan)), (riskier_text(plan), plan.riskier))
    for text, row in ((asked_text(plan, whose), None), (same_time_text(plan), None), *others):
        if text:
            yield Line(text[0].upper() + text[1:], hang=4)
            yield from pasted(row, plan.spec)


def pasted(row: Row | None, base: ExperimentSpec, *, with_sizes: bool = False, indent: int = 4) -> Iterator[Line]:
    """Yield the setting in words of other programs; as `to_paste`."""
    if row is not None:
        yield from paste_lines(to_paste(row.candidate.spec, base, with_sizes=with_sizes), indent)


def option(row: Row) -> str:
    """Return the option that asks for the setting."""
    return f"--recompute {row.text}"


def assumptions(plan: Plan) -> Section:
    """Return the assumptions of the figures."""
    time = plan.control.prediction.time if plan.control and plan.control.prediction else None
    bounds = unmodelled(plan)
    texts = [f"{text} (not modelled: {bounds[text]})" if text in bounds else text for text in plan.assumptions]
    if time:
        rows = f" ({time.range_rows} measured steps of this class)" if time.range_rows else ""
        texts.append(f"a step without recompute: {' to '.join(map(format_seconds, time.range_s))}{rows}")
        if time.host_bound:
            texts.append(
                "host-bound: the host launches operations more slowly than the GPU runs them; recompute therefore "
                "costs time for each operation that runs again"
            )
    return Section("Assumptions", (listing(f"- {text}" for text in texts),))


def calibration_page(calibration: Calibration, path: Path) -> Page:
    """Constants, errors, ignored runs, and the file of the calibration."""
    built_in = ("Built in", "Fitted")
    constants = table(
        ("Constant", *built_in, Column("", long=True)),
        [
            (constant.name, *(_value(constant, value) for value in (constant.built_in, constant.value)),
             Span(constant.reason, "dim"))
            for constant in calibration.constants
        ],
        right=built_in,
    )  # fmt: skip
    return Page((
        constants,
        GAP,
        _errors(calibration.runs),
        Line("Error: predicted / measured - 1. Left out: predicted with a fit to the other runs", "dim", hang=2),
        listing((f"Ignored: {run}: {why}" for run, why in calibration.refused.items()), style="doubt"),
        GAP,
        Line(f"Kept in {path}; `plan` and `run` use results/calibration/{calibration.gpu}.json", hang=2),
    ))  # fmt: skip


def _errors(runs: Sequence[RunErrors]) -> Table:
    """Return both errors of each run. On a narrow terminal the errors of the time get their own table."""

    def read(name: str) -> Callable[[RunErrors], Words]:
        return lambda run: "-" if getattr(run, name) is None else f"{getattr(run, name) * 100:+.2f} %"

    def columns(what: str, drop: int = 0) -> list[tuple[Column, Callable[[RunErrors], Words]]]:
        titles = {"before": f"{what.capitalize()} before", "after": "after", "left_out": "left out"}
        return [(Column(title, right=True, drop=drop), read(f"{what}_{when}")) for when, title in titles.items()]

    run: list[tuple[Column, Callable[[RunErrors], Words]]] = [(Column("Run", whole=True), lambda run: run.run_id)]
    named = [*run, (Column("Recompute"), lambda run: run.recompute)]
    return tabled(
        runs, [*named, *columns("peak"), *columns("time", 1)], instead=(GAP, tabled(runs, [*run, *columns("time")]))
    )


def _value(constant: FittedConstant, value: float | None) -> str:
    if value is None:
        return "-"
    return format_bytes(value) if constant.name.endswith("_bytes") else f"{value:.3g}"


def nearest_line(nearest: Nearest) -> Line:
    """Return the nearest golden or published figure, and how far the prediction of its setting is from it."""
    errors = (("peak", nearest.peak_error), ("TFLOP/s/GPU", nearest.throughput_error))
    texts = [f"predicted {what} {format_percent(error)}" for what, error in errors if error is not None]
    apart = f"; it differs: {'; '.join(nearest.differences)}" if nearest.differences else ""
    what = (
        f"Nearest published figure: {nearest.name} ({nearest.source})"
        if nearest.source
        else f"Nearest golden: {nearest.name}"
    )
    return Line(f"{what}: {', '.join(texts) or 'no peak, no throughput'}{apart}", hang=4)


def nearest_lines(golden: Nearest | None, published: Nearest | None) -> list[Line]:
    """Return a line for the nearest golden, or that there is none, and one for the nearest published figure."""
    lines = [nearest_line(each) for each in (golden, published) if each]
    missing = Line("Nearest golden: none with this recipe, task, GPU, precision, layout and batch", hang=4)
    return lines if golden else [missing, *lines]


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
    stages = {
        problem: ", ".join(str(peak.pp_rank) for peak in peaks if peak.problem == problem)
        for problem in dict.fromkeys(peak.problem for peak in peaks if peak.problem)
    }
    problems = listing((f"Stage {stage}: {problem}" for problem, stage in stages.items()), style="doubt")
    return Section(f"Whole step traced: {text}", (table(columns, rows, right=columns), problems))
