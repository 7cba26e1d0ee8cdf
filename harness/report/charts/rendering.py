"""Specifications as PNG and as scripts in a page; needs vl-convert."""

import json
import re
from collections.abc import Sequence

import vl_convert

from harness.report.charts.picture import Picture

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
