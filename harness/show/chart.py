"""Charts as values: what is drawn where, in which colour."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.predict.limits import Limits
from harness.units import GIB, MIB

# Okabe and Ito's palette, "Color Universal Design" (2008), on white and on black paper.
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE, BROWN = "var(--blue)", "#D55E00", "#CC79A7", "#A6761D"
# Beside these, for areas of which many lie on each other: neighbours differ for every kind of colour vision.
PLUM, WINE, LIME = "#7A5195", "#882255", "#B3DE69"
MORE = ("#8C510A", "#80BA5A", "#A63603", "#5E4FA2", "#A6CEE3", "#666633", "#4477AA", "#E5C494")
GREY, PALE, INK = "#8A8A8A", "#BBBBBB", "var(--ink)"
TINT = "color-mix(in srgb, #009E73 25%, var(--paper))"

Look = tuple[str, str]
"""Colour and shape of a kind of points; an empty shape is a bar or an area."""

Place = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """``ticks``: the labels of places, where plain figures do not say it (time, logarithms)."""

    title: str
    ticks: Mapping[float, str] | None = None
    from_zero: bool = False


@dataclass(frozen=True)
class Limit:
    """A dashed line across the chart, named above it or, if level, in the legend."""

    at: float
    text: str


@dataclass(frozen=True)
class Point:
    """``number`` stands beside it, ``name`` and ``text`` in the key, ``note`` is its tooltip; ``across``: its range."""

    x: float
    y: float
    kind: str
    number: str = ""
    name: str = ""
    text: str = ""
    note: str = ""
    across: Place | None = None
    upwards: Place | None = None


@dataclass(frozen=True)
class Curve:
    """A line through ``places``, from left to right; ``below``: the lower edge of an area, place by place."""

    kind: str
    places: tuple[Place, ...]
    below: tuple[float, ...] | None = None
    is_step: bool = False
    colour: str = INK


@dataclass(frozen=True)
class Plane:
    """Points and curves over two axes; ``across`` are limits of x, ``upwards`` of y. ``looks``: by kind."""

    x: Axis
    y: Axis
    looks: Mapping[str, Look]
    points: tuple[Point, ...] = ()
    curves: tuple[Curve, ...] = ()
    across: tuple[Limit, ...] = ()
    upwards: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class Bar:
    """A row: ``name`` and ``text`` above parts, which lie behind each other from zero; ``span``: a range as a line."""

    name: str
    text: str
    parts: tuple[tuple[str, float], ...]
    span: Place | None = None


@dataclass(frozen=True)
class Bars:
    """Rows over one axis, which holds zero. ``looks``: by the kind of a part."""

    axis: Axis
    looks: Mapping[str, Look]
    rows: tuple[Bar, ...]
    limits: tuple[Limit, ...] = ()


Chart = Plane | Bars


_FAR = 2.5  # a limit that is this many times the highest peak would press all bars and points together


def memory_limit(limits: Iterable[Limits], scale: float, most: float) -> tuple[tuple[Limit, ...], str]:
    """Return the line of the least usable memory, or none and why; ``most``: the highest peak in ``scale`` bytes."""
    known = sorted({(each.budget_bytes, each.usable_text) for each in limits if each.budget_bytes})
    if not known:
        return (), " The usable memory is not known."
    least, text = known[0]
    if least / scale > _FAR * most:
        return (), f" The usable memory, {text}, is beyond the axis."
    return (Limit(least / scale, f"usable {text}"),), ""


def front(kind: str, points: Iterable[Point], is_better: Callable[[float, float], bool]) -> tuple[Curve, ...]:
    """Return steps from left to right through those places whose y is better than that of all places before."""
    corners = list[Place]()
    for x, y in sorted((point.x, point.y) for point in points):
        if not corners or is_better(y, corners[-1][1]):
            corners.append((x, y))
    return (Curve(kind, tuple(corners), is_step=True, colour=BLUE),) if len(corners) > 1 else ()


def memory_unit(values: Sequence[float]) -> tuple[str, float]:
    """Name and bytes of the unit in which the largest value has a digit before the point."""
    return ("GiB", float(GIB)) if max(values, default=0) >= GIB else ("MiB", float(MIB))
