"""All pictures of a sweep, and that of its predictions."""

from collections.abc import Sequence

import altair as alt

from harness.records.sweep import SweepData
from harness.show.charts import drawing as look
from harness.show.charts.drawing import memory_unit
from harness.show.page import Picture
from harness.sweep.pictures.cells import rank_memory, timeline
from harness.sweep.pictures.plane import labels, memory_throughput
from harness.sweep.values import CellVerdict, SweepVerdict

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


def pictures(data: SweepData, verdict: SweepVerdict) -> tuple[Picture, ...]:
    """Return every picture, also those that cannot be drawn. Needs altair."""
    return (
        memory_throughput(verdict),
        rank_memory(data, verdict),
        timeline(data, verdict),
        predicted_and_measured(verdict),
    )
