"""Charts: whether they can be drawn, their common look, and their files. Altair is imported only to draw."""

import json
import re
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from harness.errors import BadRequestError, os_errors_reported
from harness.records.store import write_atomically
from harness.show.page import Picture, visible
from harness.units import GIB, MIB

if TYPE_CHECKING:
    import altair as alt

    Chart = alt.LayerChart | alt.Chart | alt.VConcatChart | alt.HConcatChart | alt.FacetChart


_NOT_INSTALLED = (
    "No pictures: mbr-perf[report] is not installed (pip install 'mbr-perf[report]': altair, vl-convert-python)."
)
# The V8 engine inside vl-convert reserves 67.4 GB of addresses (not memory) and ends the whole process without them.
_ADDRESSES_BYTES = 80_000_000_000


def obstacle() -> str:
    """Say why there are no pictures, in one sentence; empty where they can be drawn. Imports nothing of what draws."""
    if any(find_spec(name) is None for name in ("altair", "vl_convert")):
        return _NOT_INSTALLED
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < _ADDRESSES_BYTES:
        return (
            f"No pictures: drawing needs {_ADDRESSES_BYTES / 1e9:g} GB of address space, and ulimit -v allows "
            f"{limit / 1e9:.3g} GB (mbr-perf report draws them in a shell without that limit)."
        )
    return ""


_SCALE = 2.0


def png(vega_lite: str) -> bytes:
    """Return the picture at twice its size in points, sharp on dense screens."""
    import vl_convert

    return vl_convert.vegalite_to_png(vega_lite, scale=_SCALE)


def svg(vega_lite: str) -> str:
    """Return the picture as one SVG document."""
    import vl_convert

    return vl_convert.vegalite_to_svg(vega_lite)


_SVG = "http://www.w3.org/2000/svg"
_XLINK = "{http://www.w3.org/1999/xlink}"
_NAMES_OF_OTHERS = ("role", "class", "aria-", "pointer-events", _XLINK)
_LONG_FRACTION = re.compile(r"\d+\.\d{3,}")


def inline_svg(drawn: Picture) -> tuple[str, float]:
    """Return the picture without its title as an element for a page, and its width in pixels.

    It is one image with one description. What it names for itself begins with the picture's name, as ids hold for the
    whole page. Coordinates have two digits after the point.
    """
    import xml.etree.ElementTree as ET

    root = ET.fromstring(svg(json.dumps(_untitled(drawn))))  # noqa: S314 (vl-convert wrote it)
    for element in root.iter():
        for name, value in list(element.attrib.items()):
            if name.startswith(_NAMES_OF_OTHERS):
                del element.attrib[name]
            elif name == "id":
                element.set(name, f"{drawn.name}-{value}")
            elif "url(#" in value:
                element.set(name, value.replace("url(#", f"url(#{drawn.name}-"))
            else:
                element.set(name, _LONG_FRACTION.sub(lambda found: f"{float(found[0]):.2f}", value))
    root.set("role", "img")
    root.set("aria-label", f"{drawn.title}. {drawn.caption}")
    ET.register_namespace("", _SVG)
    return ET.tostring(root, encoding="unicode"), float(root.get("width", WIDTH))


def _untitled(drawn: Picture) -> dict[str, object]:
    spec: dict[str, object] = json.loads(drawn.vega_lite or "{}")
    spec.pop("title", None)
    return spec | {"description": f"{drawn.title}. {drawn.caption}"}


@cache
def library() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script that fetches nothing, made once.

    ``window.vegaEmbed`` is its only name.
    """
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    # Code may hold `</` in a regular expression; only what ends or hides a script is spelled otherwise.
    harmless = re.sub(r"<(?=/script|!--)", r"\\x3c", bundle, flags=re.IGNORECASE)
    return f"(function () {{\n{harmless}\n}})();"


def embedding(pictures: Sequence[Picture]) -> str:
    """Return the script that draws each picture beside the page and, once it is whole, replaces the SVG by it."""
    drawn = {picture.name: _untitled(picture) for picture in pictures if picture.vega_lite}
    options = {"actions": False, "renderer": "svg"}
    values = json.dumps(drawn, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f"const pictures = {values};\n"
        "for (const [name, spec] of Object.entries(pictures)) {\n"
        " const made = document.createElement('div');\n"
        f" vegaEmbed(made, spec, {json.dumps(options)}).then(() => {{\n"
        "  const svg = made.querySelector('svg');\n"
        "  // One image with one description: Vega also gives roles to parts that have no name.\n"
        "  for (const part of [made, ...made.querySelectorAll('*')])\n"
        "   for (const name of ['role', 'aria-label', 'aria-roledescription']) part.removeAttribute(name);\n"
        "  svg.setAttribute('role', 'img');\n"
        "  svg.setAttribute('aria-label', spec.description);\n"
        "  document.getElementById(name).replaceChildren(made);\n"
        " });\n"
        "}"
    )


_FORMATS = (".html", ".png", ".svg")


def require_chart(option: str, path: Path, formats: Sequence[str] = _FORMATS) -> None:
    """Raise BadRequestError as :func:`require_file`, and if nothing can be drawn."""
    require_file(option, path, formats)
    if why := obstacle():
        raise BadRequestError(f"{option} {path}: {why}")


def require_file(option: str, path: Path, formats: Sequence[str]) -> None:
    """Raise BadRequestError for a file of another format or in no folder."""
    if path.suffix not in formats:
        raise BadRequestError(f"{option} {path}: of no known format", remedy=f"name a file *{', *'.join(formats)}")
    if not path.parent.is_dir():
        raise BadRequestError(f"{option} {path}: there is no folder {path.parent}", remedy="make the folder first")


def write_chart(option: str, path: Path, drawn: Picture, page: Callable[[], str], *, remedy: str = "") -> Path:
    """Write it, replacing what is there: alone, or as HTML inside the text of ``page``.

    BadRequestError as :func:`require_chart`, where the file cannot be written, and where there is no picture.
    """
    require_chart(option, path)
    if drawn.vega_lite is None:
        raise BadRequestError(f"{option} {path}: {drawn.caption}", remedy=remedy)
    with os_errors_reported(f"{option} {path}: cannot be written"):
        write_atomically(path, _content(path.suffix, drawn.vega_lite, page))
    return path


def _content(suffix: str, vega_lite: str, page: Callable[[], str]) -> bytes:
    match suffix:
        case ".html":
            return page().encode()
        case ".png":
            return png(vega_lite)
        case _:
            return svg(vega_lite).encode()


# Okabe and Ito's palette, "Color Universal Design" (2008); luminances differ, so that grey prints keep the order.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE = "#666666", "#BBBBBB"
FONT, LABEL_SIZE = "Arial, Liberation Sans, Helvetica, sans-serif", 11
WIDTH = 760
BAR_STEP = 22

_LONGEST_NAME = 34

Row = dict[str, str | float | int | bool | None]


def shortened(name: str) -> str:
    """Return a name that fits beside a picture; the report's table has it whole."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def frame(rows: Sequence[Row]) -> "alt.Chart":
    """Return a chart whose rows are inside the specification itself."""
    import altair as alt

    return alt.Chart(alt.InlineData(values=list(rows)))


def having(chart: "alt.Chart", field: str) -> "alt.Chart":
    """Return the chart of those rows that have this field."""
    return chart.transform_filter(f"isValid(datum.{field})")


Channel = TypeVar("Channel")


def kinds(channel: type[Channel], field: str, looks: Mapping[str, object], **more: object) -> Channel:
    """``channel`` (colour, shape, dash) of the kinds that ``field`` names, each with its look."""
    import altair as alt

    scale = alt.Scale(domain=list(looks), range=list(looks.values()))  # type: ignore[arg-type]
    return channel(f"{field}:N", title=None, scale=scale, **more)  # type: ignore[call-arg]


def legend(rows: Sequence[Row], field: str, looks: Iterable[str], **more: Any) -> "alt.Legend":
    """Return the legend of those kinds in ``looks`` that ``rows`` have."""
    import altair as alt

    shown = {row.get(field) for row in rows}
    return alt.Legend(values=[kind for kind in looks if kind in shown], **more)


def picture(name: str, title: str, subtitle: str | Sequence[str], chart: "Chart", caption: str) -> Picture:
    """Return the chart under its title, with the common look."""
    import altair as alt

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
    return Picture(name, title, caption, json.dumps(_legible(json.loads(text))))


def _legible(value: object) -> object:
    """With every text as :func:`visible`: control characters are no XML."""
    match value:
        case str():
            return visible(value)
        case list():
            return [_legible(item) for item in value]
        case dict():
            return {visible(name): _legible(item) for name, item in value.items()}
        case _:
            return value


def no_picture(name: str, title: str, missing: str) -> Picture:
    """Return what replaces a picture that cannot be drawn."""
    return Picture(name, title, missing, None)


def memory_unit(values: Sequence[float]) -> tuple[str, float]:
    """Name and bytes of the unit in which the largest value has a digit before the point."""
    return ("GiB", float(GIB)) if max(values, default=0) >= GIB else ("MiB", float(MIB))


def time_unit(values: Sequence[float]) -> tuple[str, float]:
    """Name and seconds of the unit."""
    return ("s", 1.0) if max(values, default=0) >= 1 else ("ms", 0.001)
