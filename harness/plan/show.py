"""A plan for people: one row per setting, what the peak consists of, what to do, what is taken for granted."""

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from harness.experiment.recompute import FullRecompute
from harness.planning.advice import advice, module_worths, safe_instead, why_none
from harness.planning.prediction import Prediction
from harness.planning.search import Plan, Row, dominated
from harness.showing.printing import Console, plain_table, print_hanging, print_lines, show
from harness.showing.request_text import request_lines
from harness.units import GIB, MIB, counted, format_bytes, format_percent, format_seconds

_STYLES = {"FITS": "green", "TIGHT": "yellow", "OOM": "red"}
_PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "transient", "overhead")
# Above this many settings those that lie between two others are folded.
_MANY_ROWS = 20
_LEGEND = (
    "*: recommended; asked: the setting of the request; Cost: over the step without recompute; Transient: of the running "
    "pass only; Overhead: buffers that stay and libraries' workspaces"
)
# Below this many bytes freed a price per GiB is a small number over a smaller one.
_WORTH_A_PRICE = GIB // 10
# The breakdown stands beside the figures from this width on, below them on narrower screens.
_WIDE = 160


def print_plan(console: Console, plan: Plan, notes: Sequence[str], *, show_all: bool = False) -> None:
    """Everything about one layout."""
    print_lines(console, [line for line in request_lines(plan.spec) if not line.startswith("Recompute")])
    print_lines(console, [f"Note: {note}" for note in notes])
    console.print()
    rows = _shown(plan, show_all=show_all)
    wide = not console.is_terminal or console.width >= _WIDE
    show(console, _table(plan, rows, with_parts=wide))
    _print_left_out(console, plan, len([row for row in plan.rows if row.prediction]) - len(rows))
    if not wide:
        console.print()
        unit = size_unit(plan.rows)
        console.print(Text(f"What the peak of the worst stage consists of, {unit}", style="bold"))
        show(console, _parts_table(rows, unit))
    console.print()
    _print_ranking(console, plan)
    for number, step in enumerate(advice(plan), 1):
        print_hanging(console, Text(f"{number}. {step.text}"), 3)
    _print_answer(console, plan)
    print_assumptions(console, plan)


def _shown(plan: Plan, *, show_all: bool) -> list[Row]:
    rows = [row for row in plan.rows if row.prediction]
    if show_all:
        return rows
    named = {row.text for row in (plan.recommended, plan.safe, plan.too_dear) if row}
    keep = {"none", plan.spec.recompute.text, *named}
    beaten, many = dominated(tuple(rows)), len(rows) > _MANY_ROWS
    return [row for row in rows if row.text in keep or not (row.text in beaten or (many and _between(row)))]


def _between(row: Row) -> bool:
    """Block recompute of a number of layers that is no power of two: the line between those shown is straight."""
    policy = row.candidate.spec.recompute
    return isinstance(policy, FullRecompute) and policy.method == "block" and policy.num_layers.bit_count() > 1


def _table(plan: Plan, rows: Sequence[Row], *, with_parts: bool) -> Table:
    parts = [name.capitalize() for name in _PARTS] if with_parts else []
    speed = ["TFLOP/s/GPU", "HFU"] if with_parts and any(row.prediction and row.prediction.hfu for row in rows) else []
    unit = size_unit(plan.rows)
    peak, both = f"Peak {unit}", f"Range {unit}"
    right = (peak, both, "Step", "Cost", *speed, *parts)
    columns = ("Recompute", peak, both, "Stage", *(["Peak at"] if with_parts else []), "Step", "Cost", *speed)
    table = plain_table(*columns, *parts, "", right=right)
    table.columns[0].no_wrap = True
    for row in rows:
        assert row.prediction is not None
        worst, time = row.prediction.worst, row.prediction.time
        cells = [
            _name(plan, row), peak_text(row.prediction, unit), range_text(row.prediction, unit), str(worst.pp_rank),
            *([worst.peak] if with_parts else []),
            format_seconds(time.likely_s) if time else "-",
            "-" if row.overhead is None else format_percent(row.overhead),
            *(_speed(row.prediction) if speed else []),
            *([_size(getattr(worst, name), unit) for name in _PARTS] if with_parts else []),
        ]  # fmt: skip
        table.add_row(*(Text(cell) for cell in cells), verdict_text(row))
    return table


def size_unit(rows: Sequence[Row]) -> str:
    """GiB, or MiB where every peak is below one GiB: one unit for a whole table."""
    peaks = [row.prediction.peak_bytes for row in rows if row.prediction]
    return "MiB" if peaks and max(peaks) < GIB else "GiB"


def range_text(prediction: Prediction, unit: str) -> str:
    """Both ends of the range."""
    low, high = prediction.range_bytes
    return f"{_size(low, unit)}-{_size(high, unit)}"


def peak_text(prediction: Prediction, unit: str) -> str:
    """The peak, marked where not everything is modelled."""
    return f"{'' if prediction.is_point_known else '~'}{_size(prediction.peak_bytes, unit)}"


def _speed(prediction: Prediction) -> list[str]:
    tflops, hfu = prediction.tflops_per_gpu, prediction.hfu
    return [f"{tflops:.0f}" if tflops else "-", f"{hfu * 100:.0f} %" if hfu else "-"]


def _parts_table(rows: Sequence[Row], unit: str) -> Table:
    names = {"weights": "weight", "gradients": "grad", "optimizer": "optim", "activations": "activ",
             "transient": "trans", "overhead": "over"}  # fmt: skip
    columns = [names.get(name, name) for name in _PARTS]
    table = plain_table("Recompute", *columns, "peak at", right=columns)
    for row in rows:
        assert row.prediction is not None
        worst = row.prediction.worst
        table.add_row(Text(row.text), *(_size(getattr(worst, name), unit) for name in _PARTS), worst.peak)
    return table


def _name(plan: Plan, row: Row) -> str:
    marks = [mark for mark, holds in (("*", row is plan.recommended), ("asked", row.text == plan.spec.recompute.text))
             if holds]  # fmt: skip
    return f"{row.text} {' '.join(marks)}".rstrip()


def verdict_text(row: Row) -> Text:
    """With a question mark where the limit lies within the range."""
    mark = "" if row.is_certain else "?"
    return Text(f"{row.verdict}{mark}" if row.verdict else "", style=_STYLES.get(row.verdict or "", ""))


def _size(value: float, unit: str) -> str:
    """Without the unit, which stands in the heading."""
    size = value / (MIB if unit == "MiB" else GIB)
    return f"{size:.1f}" if size >= 0.1 or not value else f"{size:.2g}"


def _print_left_out(console: Console, plan: Plan, num_folded: int) -> None:
    print_hanging(console, Text(_LEGEND, style="dim"), 2)
    if any(row.prediction and not row.prediction.is_point_known for row in plan.rows):
        print_hanging(console, Text("~: not everything is modelled or known; the range is what counts", style="dim"), 2)
    if any(row.verdict and not row.is_certain for row in plan.rows):
        print_hanging(console, Text("?: the limit lies within the range", style="dim"), 2)
    if num_folded:
        text = f"Not shown: {counted(num_folded, 'setting')}, beaten by another or between two (--all shows all)"
        print_hanging(console, Text(text, style="dim"), 2)
    declined = {row.text: row.reason for row in plan.rows if row.prediction is None}
    for why, names in _by_reason(declined).items():
        print_hanging(console, Text(f"Left out: {' '.join(names)} ({why})", style="dim"), 2)
    if any("CUDA graph" in why or "captured" in why for why in declined.values()):
        print_hanging(console, Text("--cuda_graph_impl none plans those that only CUDA graphs forbid", style="dim"), 2)
    inert = {name: why for name, why in plan.inert.items() if "no such module" not in why}
    for why, names in _by_reason(inert).items():
        print_hanging(console, Text(f"No effect here: {', '.join(names)} ({why})", style="dim"), 2)
    for text in plan.skipped:
        print_hanging(console, Text(f"Not tried: {text}", style="dim"), 2)


def _by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Names that share a reason, each reason once."""
    grouped: dict[str, list[str]] = {}
    for name, why in reasons.items():
        grouped.setdefault(why, []).append(name)
    return grouped


def _print_ranking(console: Console, plan: Plan) -> None:
    """Modules by what each byte costs."""
    worths = module_worths(plan)
    if not worths:
        return
    said = []
    for worth in worths:
        if worth.saved_bytes <= 0:
            more = f", needs {format_bytes(-worth.saved_bytes)} more" if worth.saved_bytes < 0 else ""
            said.append(f"{worth.text} frees nothing{more}")
        elif worth.extra_s is None or worth.saved_bytes < _WORTH_A_PRICE:
            said.append(f"{worth.text} {format_bytes(worth.saved_bytes)} freed")
        else:
            price = worth.price * GIB * 1000
            said.append(f"{worth.text} {price:.1f} ms per GiB ({format_bytes(worth.saved_bytes)} freed)")
    if any(worth.text == "core_attn" and worth.saved_bytes <= 0 for worth in worths):
        said[-1] += " (core_attn: flash attention keeps no scores that could be freed, and its inputs are kept as well)"
    print_hanging(console, Text(f"Price of modules: {'; '.join(said)}"), 2)


def _print_answer(console: Console, plan: Plan) -> None:
    best = plan.recommended
    if plan.limits.capacity_bytes is None:
        print_lines(console, ["Nothing is judged: the memory is not known (--fit_into GIB says what to fit into)"])
        return
    if best is None or best.prediction is None:
        why = why_none(plan)
        print_hanging(console, Text(why[0].upper() + why[1:], style="bold red"), 2)
        return
    what = "step time" if best.prediction.time else "FLOPs"
    cost = "" if best.overhead is None else f", {format_percent(best.overhead)} {what}"
    doubt = "" if best.verdict == "FITS" else ", TIGHT: within the margin"
    high, budget = best.prediction.range_bytes[1], plan.limits.budget_bytes or 0
    if best.verdict == "FITS" and high > budget:
        doubt = f", but the upper end of its range, {format_bytes(high)}, does not fit"
    about = "" if best.prediction.is_point_known else "~"
    used = f"{about}{format_bytes(best.prediction.peak_bytes)} of {plan.limits.said}{cost}{doubt}"
    print_hanging(console, Text.assemble(("Use ", "bold"), (_option(best), "bold green"), f"  ({used})"), 4)
    instead = safe_instead(plan)
    if instead:
        print_hanging(console, Text(instead[0].upper() + instead[1:]), 4)


def _option(row: Row) -> str:
    return f"--recompute {row.text}"


def print_assumptions(console: Console, plan: Plan) -> None:
    """What the figures rest on."""
    time = plan.control.prediction.time if plan.control and plan.control.prediction else None
    texts = list(plan.assumptions)
    if time:
        texts.append(f"a step without recompute: {format_seconds(time.low_s)} to {format_seconds(time.high_s)}")
        if time.host_bound:
            texts.append("host-bound: kernels may finish faster than the host launches them, which hides recompute")
    console.print()
    console.print(Text("Assumptions", style="bold"))
    for text in texts:
        print_hanging(console, Text(f"- {text}"), 2)
