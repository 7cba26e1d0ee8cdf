"""Draws a chart with Altair and saves it; says what is missing where it cannot."""

import json
import re
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import altair as alt
import vl_convert

from harness.units import GIB, MIB


@dataclass(frozen=True)
class Picture:
    """``name`` is the stem of its file; ``caption`` says what to see. ``vega_lite``: the picture's specification as JSON.

    ``vega_lite`` is None where there is no picture, and ``missing`` says why.
    """

    name: str
    title: str
    caption: str
    vega_lite: str | None
    missing: str = ""


_NOT_INSTALLED = (
    "No pictures: mbr-perf[report] is not installed (pip install 'mbr-perf[report]': altair, vl-convert-python)."
)
# The V8 engine inside vl-convert reserves 67.4 GB of addresses (not memory) and ends the whole process without them.
_ADDRESSES_BYTES = 80_000_000_000


def obstacle() -> str:
    """Why there are no pictures, in one sentence; empty where they can be drawn. Imports nothing of what draws."""
    if any(find_spec(name) is None for name in ("altair", "vl_convert")):
        return _NOT_INSTALLED
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < _ADDRESSES_BYTES:
        return (
            f"No pictures: drawing needs {_ADDRESSES_BYTES / 1e9:g} GB of address space, and ulimit -v allows "
            f"{limit / 1e9:.3g} GB (mbr-perf report draws them in a shell without that limit)."
        )
    return ""


def can_draw() -> bool:
    """Whether nothing stands in the way."""
    return not obstacle()


_SCALE = 2.0


def png(vega_lite: str) -> bytes:
    """The picture at twice its size in points, sharp on dense screens."""
    return vl_convert.vegalite_to_png(vega_lite, scale=_SCALE)


def svg(vega_lite: str) -> str:
    """The picture as one SVG document."""
    return vl_convert.vegalite_to_svg(vega_lite)


def library() -> str:
    """Vega, Vega-Lite and vega-embed as one script that fetches nothing; ``window.vegaEmbed`` is its only name."""
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    # Code may hold `</` in a regular expression; only what ends or hides a script is spelled otherwise.
    harmless = re.sub(r"<(?=/script|!--)", r"\\x3c", bundle, flags=re.IGNORECASE)
    return f"(function () {{\n{harmless}\n}})();"


def embedding(pictures: Sequence[Picture]) -> str:
    """The script that draws each picture into the element of its name, whatever cells are called."""
    drawn = {picture.name: json.loads(picture.vega_lite) for picture in pictures if picture.vega_lite}
    options = {"actions": False, "renderer": "svg"}
    values = json.dumps(drawn, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f"const pictures = {values};\n"
        f"for (const [name, spec] of Object.entries(pictures)) vegaEmbed('#' + name, spec, {json.dumps(options)});"
    )


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


def memory_unit(values: Sequence[float]) -> tuple[str, float]:
    """Name and bytes of the unit in which the largest value has a digit before the point."""
    return ("GiB", float(GIB)) if max(values, default=0) >= GIB else ("MiB", float(MIB))


def time_unit(values: Sequence[float]) -> tuple[str, float]:
    """Name and seconds of the unit."""
    return ("s", 1.0) if max(values, default=0) >= 1 else ("ms", 0.001)
