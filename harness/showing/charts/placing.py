"""Where labels go beside the points of a picture so that none covers another label or a point."""

from collections.abc import Sequence
from dataclasses import dataclass

_GLYPH, _HEIGHT = 6.2, 13.0  # pixels of an average glyph and of a line, at 11 pixels
_GAP, _POINT = 9.0, 7.0


@dataclass(frozen=True)
class Spot:
    """A point in pixels, its label, and what it is called where the label finds no room."""

    x: float
    y: float
    text: str
    short: str


@dataclass(frozen=True)
class Placed:
    """Where a label begins and its middle, in pixels; it ends there where ``is_left``, being left of its spot.

    ``text`` is the spot's, its short form, or empty. ``is_far``: a line has to lead to it.
    """

    spot: Spot
    x: float
    y: float
    text: str
    is_far: bool = False
    is_left: bool = False


Box = tuple[float, float, float, float]


def place(spots: Sequence[Spot], width: float, height: float, taken: Sequence[Box] = ()) -> tuple[Placed, ...]:
    """A place for every label, the first spots first. Boxes are left, top, right, bottom; ``taken`` are kept free.

    Near places are tried before far ones, whole texts before short forms; what fits nowhere gets no text.
    """
    boxes = [*taken, *((s.x - _POINT, s.y - _POINT, s.x + _POINT, s.y + _POINT) for s in spots)]
    placed = []
    for spot in spots:
        found = _find(spot, spot.text, boxes, width, height) or _find(spot, spot.short, boxes, width, height)
        placed.append(found[0] if found else Placed(spot, spot.x, spot.y, ""))
        if found:
            boxes.append(found[1])
    return tuple(placed)


def text_width(text: str) -> float:
    """Pixels of a text, a little more than it takes."""
    return len(text) * _GLYPH + 2


def _find(spot: Spot, text: str, boxes: Sequence[Box], width: float, height: float) -> tuple[Placed, Box] | None:
    wide = text_width(text)
    for dx, dy, is_far in _offsets(wide):
        left, middle = spot.x + dx, spot.y + dy
        box = (left, middle - _HEIGHT / 2, left + wide, middle + _HEIGHT / 2)
        inside = box[0] >= 2 and box[1] >= 2 and box[2] <= width - 2 and box[3] <= height - 2
        if inside and not any(_overlap(box, other) for other in boxes):
            is_left = dx < -wide
            return Placed(spot, box[2] if is_left else left, middle, text, is_far, is_left), box
    return None


def _offsets(wide: float) -> list[tuple[float, float, bool]]:
    """From the spot to the label's left end: right, left, above, below, then the diagonals further and further out."""
    near = [(_GAP, 0.0), (-_GAP - wide, 0.0), (-wide / 2, -15.0), (-wide / 2, 15.0), (_GAP, -11.0), (_GAP, 11.0),
            (-_GAP - wide, -11.0), (-_GAP - wide, 11.0)]  # fmt: skip
    far = [
        (dx, dy)
        for reach in (24.0, 36.0, 50.0, 66.0)
        for dy in (-reach, reach)
        for dx in (_GAP, -_GAP - wide, -wide / 2)
    ]
    return [(dx, dy, False) for dx, dy in near] + [(dx, dy, True) for dx, dy in far]


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
