"""All pictures of a sweep, with those of predictions and of the price of memory."""

from collections.abc import Sequence

import altair as alt

from harness.records.sweep import SweepData
from harness.show.charts import drawing as look
from harness.show.charts.drawing import memory_unit
from harness.show.page import Picture
from harness.sweep.pictures.cells import rank_memory, step_times, timeline
from harness.sweep.pictures.plane import labels, memory_throughput
from harness.sweep.values import CellVerdict, SweepVerdict
from harness.units import four_figures

_COLOUR = {"predicted": look.VERMILION, "measured": look.BLUE}
_SHAPE = {"predicted": "cross", "measured": "circle"}
_SIDE = 430


def predicted_and_measured(verdict: SweepVerdict) -> Picture:
    """Draw a row per cell: predicted range and figure, the measured figure, and both changes of time."""
    title, name = "Predicted and measured", "predicted_measured"
    predicted = [cell for cell in verdict.cells if cell.predicted]
    if not predicted:
        return look.no_picture(name, title, "No cell has a prediction.")
    called = labels(verdict)
    unit, scale = memory_unit([cell.predicted.prediction.range_bytes[1] for cell in predicted if cell.predicted])
    peaks: list[look.Row] = []
    times: list[look.Row] = []
    for cell in predicted:
        assert cell.predicted is not None
        prediction, label = cell.predicted.prediction, called[cell.name]
        low, high = prediction.range_bytes
        peak, span = prediction.measurable_peak_bytes / scale, {"low": low / scale, "high": high / scale}
        peaks.append({"cell": label, "kind": "predicted", "value": peak, **span})
        if cell.peak_bytes is not None:
            peaks.append({"cell": label, "kind": "measured", "value": cell.peak_bytes / scale})
        times += _changes(cell, label)
    order = [called[cell.name] for cell in predicted]
    left = _panel(peaks, order, f"Peak of the worst rank ({unit})", names=True)
    right = _panel(times, order, "Change of step time from the control (%)", names=False)
    chart = alt.hconcat(left, right) if times else left
    caption = (
        "Wide lines show predicted ranges. Thin lines show 95 % intervals of the measured change, where there are "
        "enough repeats. A cell without a measured mark did not finish. Changes of time are predicted from the "
        "GPU's speed, on a CPU from FLOPs alone."
    )
    return look.picture(name, title, verdict.plan.title, chart, caption)


def _changes(cell: CellVerdict, label: str) -> list[look.Row]:
    assert cell.predicted is not None
    own = zip(_COLOUR, (cell.predicted.overhead, cell.predicted.measured_overhead), strict=True)
    rows: list[look.Row] = [
        {"cell": label, "kind": kind, "value": value * 100} for kind, value in own if value is not None
    ]
    if (time := cell.vs_control and cell.vs_control.time) and time.interval:
        for row in rows[-1:] if cell.predicted.measured_overhead is not None else ():
            row |= {"least": time.interval[0] * 100, "most": time.interval[1] * 100}
    return rows


def _panel(
    rows: Sequence[look.Row], order: Sequence[str], title: str, *, names: bool
) -> alt.LayerChart | alt.FacetChart:
    base = look.frame(rows)
    axis = alt.Axis(grid=True) if names else alt.Axis(labels=False, ticks=False, grid=True)
    y = alt.Y("cell:N", title=None, sort=list(order), scale=alt.Scale(domain=list(order)), axis=axis)
    ranges = look.having(base, "low").mark_rule(color=look.ORANGE, strokeWidth=5, opacity=0.45)
    ranges = ranges.encode(x="low:Q", x2="high:Q", y=y)
    points = base.mark_point(size=75, strokeWidth=1.8).encode(
        x=alt.X("value:Q", title=title, scale=alt.Scale(zero=not names)),  # a change has the control at zero
        y=y,
        color=look.kinds(alt.Color, "kind", _COLOUR, legend=alt.Legend(orient="top")),
        shape=look.kinds(alt.Shape, "kind", _SHAPE),
        tooltip=["cell:N", "kind:N", alt.Tooltip("value:Q", format=".4g")],
    )
    width = _SIDE if names else 250
    whiskers = (
        look.having(base, "least").mark_rule(color=look.BLUE, strokeWidth=1.5).encode(x="least:Q", x2="most:Q", y=y)
    )
    layers = [mark for mark, field in ((ranges, "low"), (whiskers, "least")) if any(field in row for row in rows)]
    layers.append(points)
    return alt.layer(*layers, width=width, height=alt.Step(look.BAR_STEP))


_ON_FRONT, _BEATEN = "on the Pareto set", "beaten by another"
_PRICES = {_ON_FRONT: look.BLUE, _BEATEN: look.SKY}


def price_of_memory(verdict: SweepVerdict) -> Picture:
    """Draw the price of memory, cheapest first, with 95 % intervals if repeats allow; name cells without a price."""
    title, name = "Price of memory", "ms_per_gib"
    called = labels(verdict)
    rows: list[look.Row] = []
    for cell in verdict.cells:
        if cell.versus and (price := cell.versus.trade.ms_per_gib_saved) is not None:
            low, high = cell.versus.trade.interval or (None, None)
            kind = _ON_FRONT if cell.name in verdict.pareto else _BEATEN
            label = f"{called[cell.name]}, {four_figures(price)} ms/GiB"
            rows.append({"cell": label, "kind": kind, "price": price, "low": low, "high": high})
    if not rows:
        return look.no_picture(
            name, title, f"No cell saved more memory than the noise, compared with {_against(verdict)}."
        )
    y = alt.Y("cell:N", title=None, sort=alt.EncodingSortField("price", op="min"), axis=alt.Axis(labelLimit=400))
    across, axis = "Milliseconds per step and GiB saved (less is better)", alt.Axis(grid=False, tickCount=6)
    base = look.frame(rows)
    bars = base.mark_bar(height=14).encode(
        x=alt.X("price:Q", title=across, axis=axis),
        y=y,
        tooltip=["cell:N", "price:Q", "low:Q", "high:Q"],
        color=look.kinds(alt.Color, "kind", _PRICES, legend=look.legend(rows, "kind", _PRICES, orient="top")),
    )
    whiskers = look.having(base, "low").mark_rule(color=look.BLACK, strokeWidth=1.5)
    zero = look.frame([{"zero": 0}]).mark_rule(color=look.BLACK, strokeWidth=1).encode(x="zero:Q")
    chart = alt.layer(bars, zero, whiskers.encode(x="low:Q", x2="high:Q", y=y))
    chart = chart.properties(width=look.WIDTH - 200, height=alt.Step(look.BAR_STEP + 4))
    return look.picture(name, title, verdict.plan.title, chart, _caption(verdict))


def _against(verdict: SweepVerdict) -> str:
    return str(verdict.reference) if verdict.reference_why else "the control"


def _caption(verdict: SweepVerdict) -> str:
    whiskers = any(cell.versus and cell.versus.trade.interval for cell in verdict.cells)
    against = _against(verdict) + (f", because {verdict.reference_why}" if verdict.reference_why else "")
    text = f"Compared with {against}." + (
        " Lines are 95 % intervals of the time." if whiskers else " Too few repeats for intervals."
    )
    without = [cell.name for cell in verdict.cells if cell.versus and cell.versus.trade.undefined]
    return f"{text} Undefined, with the reason below: {'; '.join(without)}." if without else text


def pictures(data: SweepData, verdict: SweepVerdict) -> tuple[Picture, ...]:
    """Return every picture, also those that cannot be drawn. Needs altair."""
    return (
        memory_throughput(verdict),
        price_of_memory(verdict),
        rank_memory(data, verdict),
        timeline(data, verdict),
        predicted_and_measured(verdict),
        step_times(data, verdict),
    )
