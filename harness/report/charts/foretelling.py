"""Predicted against measured: peak memory, and time against the control."""

from collections.abc import Sequence

import altair as alt

from harness.analysis.sweep.values import SweepVerdict
from harness.report.charts import look
from harness.report.charts.cell_labels import labels
from harness.report.charts.picture import Picture
from harness.report.charts.units import memory_unit

_KINDS = ("predicted", "measured")
_SIDE = 430


def foretelling(verdict: SweepVerdict) -> Picture:
    """A row per cell: the predicted range and figure, the measured one; beside it the change of time, both ways."""
    title, name = "Predicted and measured", "predicted_measured"
    told = [cell for cell in verdict.cells if cell.foretold]
    if not told:
        return Picture(name, title, "", None, "No cell has a prediction.")
    called = labels(verdict)
    unit, scale = memory_unit([cell.foretold.prediction.range_bytes[1] for cell in told if cell.foretold])
    peaks: list[look.Row] = []
    times: list[look.Row] = []
    for cell in told:
        assert cell.foretold is not None
        prediction, label = cell.foretold.prediction, called[cell.name]
        low, high = prediction.range_bytes
        peaks.append({"cell": label, "kind": _KINDS[0], "value": prediction.peak_bytes / scale, "low": low / scale,
                      "high": high / scale})  # fmt: skip
        if cell.peak_bytes is not None:
            peaks.append({"cell": label, "kind": _KINDS[1], "value": cell.peak_bytes / scale})
        if cell.foretold.overhead is not None:
            times.append({"cell": label, "kind": _KINDS[0], "value": cell.foretold.overhead * 100})
        if cell.foretold.measured_overhead is not None:
            times.append({"cell": label, "kind": _KINDS[1], "value": cell.foretold.measured_overhead * 100})
    order = [called[cell.name] for cell in told]
    left = _panel(peaks, order, f"Peak of the worst rank ({unit})", names=True)
    right = _panel(times, order, "Step time against the control (%)", names=False)
    chart = alt.hconcat(left, right) if times else left
    caption = (
        "Lines are the predicted ranges. A cell without a measured mark did not run to its end. Changes of time are "
        "predicted from the GPU's speed or, on a processor, from FLOPs alone."
    )
    return Picture(name, title, caption, look.specification(chart, title, verdict.title))


def _panel(
    rows: Sequence[look.Row], order: Sequence[str], title: str, *, names: bool
) -> alt.LayerChart | alt.FacetChart:
    base = alt.Chart(look.data(rows))
    axis = alt.Axis(grid=True) if names else alt.Axis(labels=False, ticks=False, grid=True)
    y = alt.Y("cell:N", title=None, sort=list(order), scale=alt.Scale(domain=list(order)), axis=axis)
    ranges = base.transform_filter("isValid(datum.low)").mark_rule(color=look.ORANGE, strokeWidth=5, opacity=0.45).encode(
        x="low:Q", x2="high:Q", y=y
    )  # fmt: skip
    points = base.mark_point(size=75, strokeWidth=1.8).encode(
        x=alt.X("value:Q", title=title, scale=alt.Scale(zero=False)),
        y=y,
        color=alt.Color("kind:N", title=None, scale=alt.Scale(domain=_KINDS, range=[look.VERMILION, look.BLUE]), legend=alt.Legend(orient="top")),
        shape=alt.Shape("kind:N", title=None, scale=alt.Scale(domain=_KINDS, range=["cross", "circle"])),
        tooltip=["cell:N", "kind:N", alt.Tooltip("value:Q", format=".4g")],
    )  # fmt: skip
    width = _SIDE if names else 250
    layers = [ranges, points] if any("low" in row for row in rows) else [points]
    return alt.layer(*layers, width=width, height=alt.Step(look.BAR_STEP))
