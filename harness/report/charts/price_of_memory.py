"""What a GiB costs: milliseconds per step for each GiB saved, a bar per cell."""

from collections.abc import Sequence

import altair as alt

from harness.analysis.sweep.values import CellVerdict, SweepVerdict
from harness.report.charts import look
from harness.report.charts.cell_labels import labels
from harness.report.charts.picture import Picture
from harness.units import four_figures

_KINDS = ("on the Pareto set", "beaten by another")
_COLOURS = (look.BLUE, look.SKY)


def price_of_memory(verdict: SweepVerdict) -> Picture:
    """Cheapest first, with 95 % intervals where there are enough repeats; cells without a price are named."""
    title, name = "Price of memory", "ms_per_gib"
    priced = [cell for cell in verdict.cells if _price(cell) is not None]
    if not priced:
        return Picture(name, title, "", None, f"No cell saved memory beyond noise against {_against(verdict)}.")
    called = labels(verdict)
    rows: list[look.Row] = []
    for cell in sorted(priced, key=lambda cell: _price(cell) or 0.0):
        assert cell.versus is not None
        low, high = cell.versus.trade.interval or (None, None)
        kind = _KINDS[0] if cell.name in verdict.pareto else _KINDS[1]
        price = _price(cell) or 0.0
        rows.append({"cell": called[cell.name], "price": price, "text": four_figures(price), "kind": kind, "low": low,
                     "high": high, "end": max(price, high or price, 0.0)})  # fmt: skip
    y = alt.Y("cell:N", title=None, sort=[str(row["cell"]) for row in rows])
    x = alt.X("price:Q", title="Milliseconds per step and GiB saved (less is better)", scale=_scale(rows),
              axis=alt.Axis(grid=False, tickCount=6))  # fmt: skip
    legend = alt.Legend(orient="top", values=[kind for kind in _KINDS if any(row["kind"] == kind for row in rows)])
    base = alt.Chart(look.data(rows))
    bars = base.mark_bar(height=14).encode(
        x=x, y=y, tooltip=["cell:N", "price:Q", "low:Q", "high:Q"],
        color=alt.Color("kind:N", title=None, scale=alt.Scale(domain=_KINDS, range=_COLOURS), legend=legend),
    )  # fmt: skip
    whiskers = base.transform_filter("isValid(datum.low)").mark_rule(color=look.BLACK, strokeWidth=1.5).encode(
        x="low:Q", x2="high:Q", y=y
    )  # fmt: skip
    texts = base.mark_text(align="left", dx=5, fontSize=look.LABEL_SIZE).encode(x="end:Q", y=y, text="text:N")
    chart = alt.layer(bars, whiskers, texts).properties(width=look.WIDTH - 200, height=alt.Step(look.BAR_STEP + 4))
    return Picture(name, title, _caption(verdict), look.specification(chart, title, verdict.title))


def _scale(rows: Sequence[look.Row]) -> alt.Scale:
    """From zero, or the lowest interval, to beyond the longest bar, so that its figure stays inside."""
    ends = [value for row in rows for name in ("low", "price", "end") if isinstance(value := row[name], float)]
    low, high = min(0.0, *ends), max(0.0, *ends)
    return alt.Scale(domain=[low, high + 0.12 * (high - low)], nice=False)


def _price(cell: CellVerdict) -> float | None:
    return cell.versus.trade.ms_per_gib_saved if cell.versus else None


def _against(verdict: SweepVerdict) -> str:
    return str(verdict.reference) if verdict.reference_why else "the control"


def _caption(verdict: SweepVerdict) -> str:
    whiskers = any(cell.versus and cell.versus.trade.interval for cell in verdict.cells)
    against = _against(verdict) + (f", because {verdict.reference_why}" if verdict.reference_why else "")
    said = f"Against {against}." + (
        " Lines are 95 % intervals of the time." if whiskers else " Too few repeats for intervals."
    )
    without = [cell.name for cell in verdict.cells if cell.versus and cell.versus.trade.undefined]
    return f"{said} Undefined, see below: {'; '.join(without)}." if without else said
