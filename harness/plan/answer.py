"""Line 1 of a plan: the setting to use and its figures."""

from collections.abc import Sequence
from math import floor, log10

from harness.experiment.recompute import NoRecompute
from harness.predict.advice import allocator_text, cheapest_saving, cure_text, doubt_text, why_none
from harness.predict.prediction import Prediction
from harness.predict.search import Plan, Row, cost_of
from harness.predict.time_model import StepTime
from harness.show.page import Line, Span, answer_line
from harness.units import GIB, MIB, counted, format_percent, format_seconds, sentence

_WIDE = 0.25


def answer_of(plan: Plan, use: str = "", more: Sequence[str] = (), keep: Sequence[str] = ()) -> Line:
    """Return line 1. ``use``: what to use if not the recommended setting, then ``more``; ``keep`` is never left out."""
    unit, best, control = size_unit(plan.rows), plan.cure or plan.recommended, plan.control
    without = _saving_text(plan, unit) if best is control else _without_text(control, unit)
    if best is None or best.prediction is None:
        known = plan.limits.capacity_bytes is not None
        search = "; --search tries other layouts" * (bool(plan.predicted) and known)
        why = Span(sentence(why_none(plan)), "bad" if known else "doubt")
        return answer_line(why, without, search, *keep, ".", keep=[*keep, "."])
    is_tight, rows = best.verdict != "FITS", [] if more or plan.cure else plan.same_time
    odds = "; " + doubt_text(plan, best.prediction).partition("; ")[2] if is_tight else ""
    step, *speed = speed_texts(best, is_control=best.text == NoRecompute().text) or ("",)
    need, ends = need_text(plan, best, unit)
    same = f"; as fast: {rows[0].label if len(rows) == 1 else counted(len(rows), 'setting')}" * bool(rows)
    return answer_line(
        ("Use ", Span(use or best.label, "chosen"), Span(" (TIGHT)" * is_tight, "doubt"), need),
        ends,
        step,
        *speed,
        allocator_text(plan, best),
        cure_text(plan),
        odds,
        *dict.fromkeys((*(more or [without]), same, *keep)),
        ".",
        keep=(step, cure_text(plan) * (not keep), same, *keep, "."),
    )


def need_text(plan: Plan, best: Row, unit: str) -> tuple[str, str]:
    """Return what a setting needs of the usable memory, and the range of it."""
    found, usable = best.prediction, max(0, plan.limits.budget_bytes or 0)
    assert found
    low, _, high = (size_in(size, unit) for size in found.fits)
    return f": needs {_likely_text(found, unit)} of {size_in(usable, unit)} usable", f" ({low}-{high})"


def _likely_text(found: Prediction, unit: str) -> str:
    """Return what torch's allocator needs, with the peak where that is visibly less."""
    peak = f" (peak {peak_text(found, unit)})" if found.needs_more else ""
    return f"{'' if found.is_point_known else '~'}{size_in(found.fits[1], unit)} {unit}{peak}"


def speed_texts(row: Row, *, is_control: bool) -> list[str]:
    """Return the seconds of a step, what it costs against no recompute unless that ``is_control``, and its rate."""
    if (found := row.prediction) is None:
        return []
    texts = [f", {_step_text(found.time)}"] if found.time else []
    if row.overhead is not None and not is_control:
        texts.append(f", {format_percent(row.overhead)} {'time' if found.time else 'FLOPs'}")
    return [*texts, f", {found.tflops_per_gpu:.0f} TFLOP/s/GPU"] if found.tflops_per_gpu else texts


def _step_text(time: StepTime) -> str:
    """Return the seconds of a step; with their range where an end is further than ``_WIDE`` from the figure."""
    if max(1 - time.low, time.high - 1) <= _WIDE:
        return f"{format_seconds(time.likely_s)} a step"
    likely, ends, unit = seconds_in_unit(time)
    return f"~{likely} {unit} a step ({ends})"


def seconds_in_unit(time: StepTime) -> tuple[str, str, str]:
    """Return the seconds of a step with three digits, both ends of their range, and their unit."""
    unit, scale = ("ms", 1000) if time.likely_s < 1 else ("s", 1)
    digits = max(0, 2 - floor(log10(time.likely_s * scale)))
    likely, low, high = (f"{seconds * scale:.{digits}f}" for seconds in (time.likely_s, *time.range_s))
    return likely, f"{low}-{high}", unit


def _without_text(control: Row | None, unit: str) -> str:
    found = control.prediction if control else None
    return f"; recompute none needs {_likely_text(found, unit)}" if found else ""


def _saving_text(plan: Plan, unit: str) -> str:
    """Say what saves memory for the least time, where nothing has to be saved."""
    if (row := cheapest_saving(plan)) is None or plan.recommended is None or plan.cure:
        return ""
    saved = f"-{size_in(cost_of(plan.recommended)[1] - cost_of(row)[1], unit)} {unit}"
    price = "" if row.overhead is None else f" for {format_percent(row.overhead)}"
    return f". Cheapest saving: {row.label}, {saved}{price}"


def size_unit(rows: Sequence[Row]) -> str:
    """Return GiB, or MiB if every peak is below one GiB: a table has one unit."""
    peaks = [row.prediction.peak_bytes for row in rows if row.prediction]
    return "MiB" if peaks and max(peaks) < GIB else "GiB"


def peak_text(prediction: Prediction, unit: str) -> str:
    """Return the peak, with a mark if not everything is modelled."""
    return f"{'' if prediction.is_point_known else '~'}{size_in(prediction.peak_bytes, unit)}"


def size_in(value: float, unit: str) -> str:
    """Return bytes as a number of MiB or GiB, without the unit."""
    size = value / (MIB if unit == "MiB" else GIB)
    return f"{size:.1f}" if size >= 0.1 or not value else f"{size:.2g}"
