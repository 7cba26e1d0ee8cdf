"""Memory against speed: points by their state, the line through the best ones, and lines at the memory's limits."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import altair as alt

from harness.show.charts import drawing as look
from harness.units import format_bytes

_FAR = 2.5  # a limit that is this many times the highest peak would press all bars and points together
_DASHES: dict[str, object] = {"memory": [1, 0], "margin": [5, 4]}


def points(
    rows: Sequence[look.Row], looks: Mapping[str, tuple[str, str]], titles: tuple[str, str], tooltip: Sequence[object]
) -> list[alt.Chart]:
    """Draw rows at ``x`` and ``y`` with their ``text``. ``looks``: colour and shape by ``state``, the first on top."""
    ordered = sorted(rows, key=lambda row: -list(looks).index(str(row["state"])))
    legend = look.legend(rows, "state", looks, orient="bottom", columns=len(looks))
    across, upwards = (alt.Scale(zero=False, nice=False, padding=30) for _ in titles)
    base = look.frame(ordered)
    marks = base.mark_point(filled=True, size=100, opacity=1, stroke="white", strokeWidth=0.8).encode(
        x=alt.X("x:Q", title=titles[0], scale=across),
        y=alt.Y("y:Q", title=titles[1], scale=upwards),
        color=look.kinds(alt.Color, "state", {state: colour for state, (colour, _) in looks.items()}, legend=legend),
        shape=look.kinds(alt.Shape, "state", {state: shape for state, (_, shape) in looks.items()}, legend=legend),
        tooltip=list(tooltip),
    )
    texts = look.having(base, "text").mark_text(align="left", dx=9, dy=-9, fontSize=look.LABEL_SIZE)
    return [marks, texts.encode(x="x:Q", y="y:Q", text="text:N")]


def front(places: Iterable[tuple[float, float]], is_better: Callable[[float, float], bool]) -> alt.Chart:
    """Draw steps through the Pareto set, from left to right; a place that is not better than those before is none."""
    corners = list[tuple[float, float]]()
    for x, y in sorted(places):
        if not corners or is_better(y, corners[-1][1]):
            corners.append((x, y))
    line = look.frame([{"x": x, "y": y} for x, y in corners])
    line = line.mark_line(color=look.BLUE, interpolate="step-after", strokeWidth=1.4, opacity=0.7)
    drawn: alt.Chart = line.encode(x="x:Q", y="y:Q")
    return drawn


def limits(sizes: Iterable[tuple[float, float, str]], scale: float, most: float) -> tuple[list[look.Row], str]:
    """Return lines for ``sizes`` (memory, what of it may be used, and why), and a sentence on those that are far off.

    ``most``: the highest peak, in units of ``scale`` bytes.
    """
    lines, far = list[look.Row](), list[str]()
    for size, budget, why in sizes:
        if size / scale > _FAR * most:
            far.append(f" The memory, {format_bytes(size)}, is beyond the axis.")
        else:
            lines.append({"at": size / scale, "text": f"memory {format_bytes(size)}", "kind": "memory"})
            lines.append({"at": budget / scale, "text": why, "kind": "margin"})
    return lines, "".join(far)


def limit_lines(rows: Sequence[look.Row], axis: str, *, words: bool = True) -> list[alt.Chart]:
    """Draw the lines of `limits` across the picture (``axis`` y) or up it (x), with their words."""
    if not rows:
        return []
    base, at = look.frame(rows), {axis: "at:Q"}
    dash = look.kinds(alt.StrokeDash, "kind", _DASHES, legend=None)
    edge, angle = ({"x": alt.value("width")}, 0) if axis == "y" else ({"y": alt.value(0)}, 270)
    texts = base.mark_text(align="right", baseline="bottom", angle=angle, dx=-4, dy=-2, color=look.GREY, fontSize=10)
    rules = base.mark_rule(color=look.GREY, strokeWidth=1.3).encode(**at, strokeDash=dash)
    return [rules, *([texts.encode(**at, **edge, text="text:N")] if words else [])]
