"""Specifications as PNG and as scripts in a page; needs vl-convert."""

import json
from collections.abc import Sequence

import vl_convert

from harness.report.charts.picture import Picture

_SCALE = 2.0


def png(vega_lite: str) -> bytes:
    """The picture at twice its size in points, sharp on dense screens."""
    return vl_convert.vegalite_to_png(vega_lite, scale=_SCALE)


def library() -> str:
    """Vega, Vega-Lite and vega-embed as one script that fetches nothing; it offers ``window.vegaEmbed``."""
    return in_script(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def embedding(pictures: Sequence[Picture]) -> str:
    """The script that draws each picture into the element of its name."""
    drawn = {picture.name: json.loads(picture.vega_lite) for picture in pictures if picture.vega_lite}
    options = {"actions": False, "renderer": "svg"}
    return in_script(
        f"const pictures = {json.dumps(drawn)};\n"
        f"for (const [name, spec] of Object.entries(pictures)) vegaEmbed('#' + name, spec, {json.dumps(options)});"
    )


def in_script(text: str) -> str:
    """A script that no text inside it can end, whatever cells are called."""
    return text.replace("</", "<\\/").replace("<!--", "<\\!--")
