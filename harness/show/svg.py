"""Writes a chart as SVG: places across are shares of the width, heights are pixels, so it fits a phone."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate, pairwise
from math import floor, log10
from pathlib import Path
from textwrap import wrap

from harness.errors import BadRequestError, os_errors_reported
from harness.experiment.frozen import Frozen
from harness.records.store import write_atomically
from harness.show.chart import Axis, Bar, Bars, Curve, Limit, Look, Place, Plane, Point
from harness.show.page import Picture, visible

_SHAPES = {
    "circle": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z", "diamond": "M0-7L6 0L0 7L-6 0z", "square": "M-5-5H5V5H-5z",
    "triangle": "M0-6L6 5H-6z", "cross": "M-5-3L-3-5L0-2L3-5L5-3L2 0L5 3L3 5L0 2L-3 5L-5 3L-2 0z", "": "M-6-6H6V6H-6z",
    "line": "M-7-1.5H7V1.5H-7z", "dashed": "M-7-1.5h6v3h-6zM1-1.5h6v3h-6z",
}  # fmt: skip
_LINE, _HEIGHT, _ROW, _THICK = 18, 300, 40, 13
_WIDTH = 720
"""Of a file; a page gives a chart the width that it has."""
_BELOW, _LABELS = 56, 0.12
_NEAR, _NEAR_PX, _RIGHT = 0.04, 13, 0.75
_LONGEST_LINE, _LONGEST_OF_TWO = 49, 26


def svg(picture: Picture) -> str:
    """Return the picture as an element of a page, which has its title."""
    return _drawn(picture, 'width="100%"')[0]


def svg_file(picture: Picture) -> str:
    """Return the picture as a document of its own, with its title, on light or dark paper."""
    drawn, height = _drawn(picture, f'x="16" y="12" width="{_WIDTH - 32}"', picture.title)
    style = Path(__file__).with_name("colours.css").read_text()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height + 24:g}"><style>\n{style}</style>'
        f'<rect width="100%" height="100%" style="fill:var(--paper)"/>{drawn}</svg>\n'
    )


def _drawn(picture: Picture, size: str, head: str = "") -> tuple[str, float]:
    chart, top = picture.chart, 26.0 * bool(head)
    parts, height = _plane(chart, top) if isinstance(chart, Plane) else _bars(chart, top)
    drawn = "".join([_text(head, 0, 14, "strong")] * bool(head) + parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" {size} height="{height:g}" role="img" '
        f'aria-label="{_safe(f"{picture.title}. {picture.caption}")}">{drawn}</svg>'
    ), height


def _safe(text: str) -> str:
    return escape(visible(" ".join(text.split())))


def _text(text: str, x: float, y: float, kind: str = "", *, anchor: str = "start", dx: float = 0) -> str:
    more = (f' class="{kind}"' if kind else "") + (f' dx="{dx:g}"' if dx else "")
    return f'<text x="{_share(x)}" y="{y:.5g}" text-anchor="{anchor}"{more}>{_safe(text)}</text>'


def _share(x: float) -> str:
    return f"{x * 100:.5g}%"


def _line(start: Place, end: Place, kind: str = "") -> str:
    places = f'x1="{_share(start[0])}" y1="{start[1]:.5g}" x2="{_share(end[0])}" y2="{end[1]:.5g}"'
    return f'<line class="{kind}" {places}/>'


def _entry(look: Look, x: float, y: float, markup: str) -> str:
    return _mark(look, x, y, dx=7, beside=f'<text x="20" y="4">{markup}</text>')


def _mark(look: Look, x: float, y: float, *, dx: float = 0, beside: str = "") -> str:
    path = f'<path class="mark" transform="translate({dx:g})" d="{_SHAPES[look[1]]}" style="fill:{look[0]}"/>'
    return f'<svg x="{_share(x)}" y="{y:.5g}" overflow="visible">{path}{beside}</svg>'


class _Scale:
    """Where a value lies between the ends of an axis, from 0 to 1, and the labels of the axis."""

    def __init__(self, axis: Axis, values: Iterable[float], margins: Place = (0, 0)) -> None:
        known = [*values, *([0.0] if axis.from_zero else [])]
        low, high = min(known, default=0.0), max(known, default=1.0)
        if low == high:
            low, high = low - abs(low or 1) / 10, high + abs(high or 1) / 10
        below, above = (share * (high - low) for share in margins)
        self._low, self._high = low if axis.from_zero and low == 0 else low - below, high + above
        shown = axis.ticks if axis.ticks is not None else {at: f"{at:,.6g}" for at in _ticks(self._low, self._high)}
        self.ticks = {self(at): text for at, text in shown.items() if 0 <= self(at) <= 1}

    def __call__(self, value: float) -> float:
        return (value - self._low) / (self._high - self._low)


def _ticks(low: float, high: float) -> Iterator[float]:
    rough = (high - low) / 5
    ten = 10 ** floor(log10(rough))
    step = next(step * ten for step in (1, 2, 2.5, 5, 10) if step * ten >= rough * 0.999)
    yield from (round(at * step, 12) for at in range(-int(-low // step), floor(high / step) + 1))


def _axis(scale: _Scale, title: str, bottom: float) -> Iterator[str]:
    for at, text in scale.ticks.items():
        anchor = "start" if at < 0.05 else "end" if at > 0.95 else "middle"
        yield _text(text, at, bottom + 17, "soft", anchor=anchor)
    yield _text(title, 1, bottom + 36, "soft", anchor="end")


def _limits(limits: Sequence[Limit], scale: _Scale, bottom: float) -> Iterator[str]:
    for number, limit in enumerate(limits):
        x, y = scale(limit.at), 12 - _LINE * (len(limits) - number)
        yield _line((x, y + 3), (x, bottom), "limit")
        yield _text(limit.text, x, y, "soft", anchor="end" if x > 0.5 else "start")


def _legend(looks: Mapping[str, Look], shown: Iterable[str], y: float) -> tuple[list[str], float]:
    kinds = [kind for kind in looks if kind and kind in {*shown}]
    return [_entry(looks[kind], 0, y + _LINE * at, _safe(kind)) for at, kind in enumerate(kinds)], y + _LINE * len(
        kinds
    )


def _inner(y: float, height: float, parts: Iterable[str]) -> str:
    return f'<svg y="{y:g}" height="{height:g}" overflow="visible">{"".join(parts)}</svg>'


def _plane(chart: Plane, top: float) -> tuple[list[str], float]:
    x = _Scale(
        chart.x, [*_values(chart, 0), *(limit.at for limit in chart.across)], (_LABELS, 0.1 if chart.points else 0)
    )
    y = _Scale(chart.y, [*_values(chart, 1), *(limit.at for limit in chart.upwards)], (0.08, 0.08))

    def down(value: float) -> float:
        return _HEIGHT * (1 - y(value))

    body: list[str] = []
    body += (_line((0, _HEIGHT * (1 - at)), (1, _HEIGHT * (1 - at)), "grid") for at in y.ticks)
    body += _curves(chart.curves, x, down)
    body += (_line((0, down(limit.at)), (1, down(limit.at)), "limit") for limit in chart.upwards)
    body += (_text(text, 0, _HEIGHT * (1 - at) - 4, "soft") for at, text in y.ticks.items() if at < 0.97)
    body += [*_limits(chart.across, x, _HEIGHT), *_points(chart, x, down), *_axis(x, chart.x.title, _HEIGHT)]
    above = top + 22 + _LINE * len(chart.across)
    levels = {limit.text: ("var(--soft)", "dashed") for limit in chart.upwards}
    shown = [*(point.kind for point in chart.points), *(curve.kind for curve in chart.curves), *levels]
    legend, below = _legend({**chart.looks, **levels}, shown, above + _HEIGHT + _BELOW)
    key = [point for point in chart.points if point.name]
    below += 6 * bool(key)
    parts = [_text(chart.y.title, 0, top + 12, "soft"), _inner(above, _HEIGHT, body), *legend]
    for point in key:
        names = _lines(point.name, 3 + len(point.number + point.text))
        parts += _keyed(point, names, chart.looks, below)
        below += _LINE * len(names)
    return parts, below


def _values(chart: Plane, at: int) -> Iterator[float]:
    for point in chart.points:
        yield from ((point.x, point.y)[at], *((point.across, point.upwards)[at] or ()))
    for curve in chart.curves:
        yield from (place[at] for place in curve.places)
        yield from (curve.below or ()) if at else ()


def _curves(curves: Iterable[Curve], x: _Scale, down: Callable[[float], float]) -> Iterator[str]:
    drawn = "".join(_curve(curve, x, down) for curve in curves)
    if drawn:
        box = f'viewBox="0 0 1000 {_HEIGHT}" preserveAspectRatio="none"'
        yield f'<svg width="100%" height="{_HEIGHT}" {box}>{drawn}</svg>'


def _curve(curve: Curve, x: _Scale, down: Callable[[float], float]) -> str:
    places = _corners(curve.places, is_step=curve.is_step)
    if curve.below is not None:
        floor_ = [(at, low) for (at, _), low in zip(curve.places, curve.below, strict=True)]
        places += _corners(floor_, is_step=curve.is_step)[::-1]
    drawn = " ".join(f"{x(at) * 1000:.5g},{down(value):.5g}" for at, value in places)
    if curve.below is not None:
        note = f"<title>{_safe(curve.kind)}</title>"
        return f'<polygon class="fill" points="{drawn}" style="fill:{curve.colour}">{note}</polygon>'
    return f'<polyline points="{drawn}" style="stroke:{curve.colour}"/>'


def _corners(places: Sequence[Place], *, is_step: bool) -> list[Place]:
    if not is_step:
        return list(places)
    return [*(each for one, two in pairwise(places) for each in (one, (two[0], one[1]))), *places[-1:]]


def _points(chart: Plane, x: _Scale, down: Callable[[float], float]) -> Iterator[str]:
    places = [(point, x(point.x), down(point.y)) for point in chart.points]
    for point, at, y in places:
        if point.across:
            yield _line((x(point.across[0]), y), (x(point.across[1]), y), "range")
        if point.upwards:
            yield _line((at, down(point.upwards[0])), (at, down(point.upwards[1])), "range")
    for point, at, y in reversed(places):
        note = f"<title>{_safe(point.note or point.name)}</title>"
        yield f"<g>{note}{_mark(chart.looks[point.kind], at, y)}</g>"
    yield from _numbers(places)


def _numbers(places: Sequence[tuple[Point, float, float]]) -> Iterator[str]:
    labels: list[tuple[float, float, list[str]]] = []
    for point, at, y in places:
        near = (each for each in labels if abs(each[0] - at) < _NEAR and abs(each[1] - y) < _NEAR_PX)
        if point.number and (label := next(near, None)):
            label[2].append(point.number)
        elif point.number:
            labels.append((at, y, [point.number]))
    for at, y, numbers in labels:
        anchor, dx = ("start", 8) if at < _RIGHT else ("end", -8)
        yield _text(", ".join(numbers), at, y - 7, "strong", anchor=anchor, dx=dx)


def _lines(name: str, taken: int) -> list[str]:
    return wrap(name, max(_LONGEST_OF_TWO, _LONGEST_LINE - taken)) or [""]


def _keyed(point: Point, names: Sequence[str], looks: Mapping[str, Look], y: float) -> Iterator[str]:
    number = f'<tspan class="strong">{_safe(point.number)}</tspan>'
    name = f'<tspan x="20" dy="{_LINE}">'.join((_safe(names[0]), *(f"{_safe(each)}</tspan>" for each in names[1:])))
    yield _entry(looks[point.kind], 0, y, f"{number}&#160; {name}")
    yield _text(point.text, 1, y + 4, "soft", anchor="end")


def _bars(chart: Bars, top: float) -> tuple[list[str], float]:
    ends = (end for bar in chart.rows for end in (*(bar.span or ()), *_ends(bar)))
    x = _Scale(chart.axis, [*ends, *(limit.at for limit in chart.limits)], (0, 0.12 if chart.limits else 0.03))
    names = [_lines(bar.name, len(bar.text)) for bar in chart.rows]
    *tops, end = accumulate((_ROW + _LINE * (len(lines) - 1) for lines in names), initial=0)
    above, height = top + _LINE * len(chart.limits), end + 6
    body = [
        *(_line((at, 0), (at, height), "grid") for at in x.ticks),
        *_limits(chart.limits, x, height),
        *(part for each in zip(chart.rows, names, tops, strict=True) for part in _bar(*each, chart.looks, x)),
        *_axis(x, chart.axis.title, height),
    ]
    shown = [kind for bar in chart.rows for kind, size in bar.parts if size]
    legend, below = _legend(chart.looks, shown, above + height + _BELOW)
    return [_inner(above, height, body), *legend], below


def _ends(bar: Bar) -> list[float]:
    return [*accumulate((size for _, size in bar.parts), initial=0.0)]


def _bar(bar: Bar, names: Sequence[str], y: float, looks: Mapping[str, Look], x: _Scale) -> Iterator[str]:
    yield _text(bar.text, 1, y + 16, anchor="end")
    yield from (_text(line, 0, y + 16 + _LINE * at) for at, line in enumerate(names))
    y += _LINE * (len(names) - 1)
    for (kind, size), two in zip(bar.parts, pairwise(_ends(bar)), strict=True):
        low, high = sorted(map(x, two))
        note = f"<title>{_safe(f'{bar.name}, {kind}: {size:,.4g}')}</title>"
        place = f'x="{_share(low)}" y="{y + 22:g}" width="{_share(high - low)}" height="{_THICK}"'
        yield f'<rect class="mark" {place} style="fill:{looks[kind][0]}">{note}</rect>'
    if bar.span:
        middle = y + 22 + _THICK / 2
        low, high = map(x, bar.span)
        yield _line((low, middle), (high, middle))
        yield from (_line((end, middle - 4), (end, middle + 4)) for end in (low, high))


def require_file(option: str, path: Path, formats: Sequence[str]) -> None:
    """Raise BadRequestError for a file of another format or in no folder."""
    if path.suffix not in formats:
        raise BadRequestError(f"{option} {path}: of no known format", remedy=f"name a file *{', *'.join(formats)}")
    if not path.parent.is_dir():
        raise BadRequestError(f"{option} {path}: there is no folder {path.parent}", remedy="make the folder first")


def write_file(option: str, path: Path, content: str | Frozen) -> None:
    """Write a page, a picture or a model over an existing file. BadRequestError if it cannot be written."""
    with os_errors_reported(f"{option} {path}: cannot be written"):
        write_atomically(path, content)
