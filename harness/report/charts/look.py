"""How every picture looks: colours that colour-blind readers tell apart, shapes that survive grey, plain type."""

from collections.abc import Sequence

import altair as alt

# Okabe and Ito's palette, "Color Universal Design" (2008); luminances differ, so that grey prints keep the order.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY, PALE = "#666666", "#BBBBBB"
FONT, LABEL_SIZE = "Arial, Liberation Sans, Helvetica, sans-serif", 11
WIDTH = 760
BAR_STEP = 22

_LONGEST_NAME = 34

Row = dict[str, str | float | int | bool | None]


def shortened(name: str) -> str:
    """A name that fits beside a picture; the report's table has it whole."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def data(rows: Sequence[Row]) -> alt.InlineData:
    """Rows inside the specification itself."""
    return alt.InlineData(values=list(rows))


Chart = alt.LayerChart | alt.Chart | alt.VConcatChart | alt.HConcatChart | alt.FacetChart


def specification(chart: Chart, title: str, subtitle: str) -> str:
    """The chart under its title, with the common look, as Vega-Lite JSON."""
    heading = alt.TitleParams(title, subtitle=subtitle, anchor="start", fontSize=15, subtitleColor=GREY, offset=12)
    text: str = (
        chart.properties(title=heading)
        .configure(font=FONT, background="white")
        .configure_axis(labelFontSize=LABEL_SIZE, titleFontSize=12, gridColor="#E8E8E8", labelLimit=260, titlePadding=8)
        .configure_legend(labelFontSize=LABEL_SIZE, titleFontSize=LABEL_SIZE, labelLimit=260, symbolSize=90)
        .configure_view(stroke="#999999")
        .configure_header(labelFontSize=12, titleFontSize=12)
        .to_json(indent=None)
    )
    return text
