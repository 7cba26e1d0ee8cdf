"""Names beside the points of the plane of memory against throughput."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import altair as alt

from harness.report.charts import look
from harness.report.charts.cell_labels import labels
from harness.report.charts.placing import Box, Placed, Spot, place, text_width
from harness.report.charts.scene import HEIGHT, WIDTH, Scene


def label_layers(scene: Scene) -> list[alt.Chart]:
    """One layer for the lines to far labels, one for either side of a point, one for cells at the edge."""
    called = labels(scene.verdict)
    names = [called[cell.name] for cell in scene.at_edge]
    if scene.num_beyond:
        names.append(f"and {scene.num_beyond} more")
    edge = [scene.pixels(*scene.edge(number)) for number in range(len(names))]
    at_edge = [_edge_box(x, y, name) for (x, y), name in zip(edge, names, strict=True)]
    placed = place(_spots(scene, called), WIDTH, HEIGHT, [*at_edge, *_limit_boxes(scene), *_front_boxes(scene)])
    edge_rows = [_row(scene, (x - 10, y), name) for (x, y), name in zip(edge, names, strict=True)]
    leads = alt.Chart(look.data([_lead(scene, label) for label in placed if label.is_far and label.text]))
    return [
        leads.mark_rule(color=look.PALE, strokeWidth=0.8).encode(x="x:Q", y="y:Q", x2="to_x:Q", y2="to_y:Q"),
        _texts([_row(scene, (label.x, label.y), label.text) for label in placed if not label.is_left], "left"),
        _texts([_row(scene, (label.x, label.y), label.text) for label in placed if label.is_left], "right"),
        _texts(edge_rows, "right", look.VERMILION),
    ]


def _spots(scene: Scene, called: dict[str, str]) -> list[Spot]:
    """In order of interest, the recommended cell first: the first find the best places."""
    verdict = scene.verdict
    best, rank = verdict.recommendation.cell, {name: number for number, name in enumerate(verdict.pareto)}
    ordered = sorted(scene.ran, key=lambda c: (c.name != best, not c.is_control, rank.get(c.name, len(rank)), c.index))
    spots = []
    for cell in ordered:
        use = " (use this)" if cell.name == best else ""
        x, y = scene.pixels(*scene.point(cell))
        spots.append(Spot(x, y, called[cell.name] + use, f"{cell.index}{use}"))
    return spots


def _row(scene: Scene, pixels: tuple[float, float], text: str) -> look.Row:
    x, y = scene.values(*pixels)
    return {"x": x, "y": y, "text": text}


def _lead(scene: Scene, label: Placed) -> look.Row:
    to_x, to_y = scene.values(label.spot.x, label.spot.y)
    return _row(scene, (label.x, label.y), label.text) | {"to_x": to_x, "to_y": to_y}


def _texts(rows: Sequence[look.Row], align: Literal["left", "right"], colour: str = look.BLACK) -> alt.Chart:
    """Labels that begin or end where their rows say."""
    chart: alt.Chart = (
        alt.Chart(look.data(rows))
        .mark_text(align=align, baseline="middle", fontSize=look.LABEL_SIZE, color=colour)
        .encode(x="x:Q", y="y:Q", text="text:N")
    )
    return chart


def _edge_box(x: float, y: float, text: str) -> Box:
    return (x - 12 - text_width(text), y - 8, x + 12, y + 8)


def _front_boxes(scene: Scene) -> list[Box]:
    """The line itself, so that no label is crossed out by it."""
    boxes = []
    for (x, y), (next_x, next_y) in pairwise(scene.pixels(*corner) for corner in scene.corners()):
        boxes.append((x, y - 1, next_x, y + 1))
        boxes.append((next_x - 1, min(y, next_y), next_x + 1, max(y, next_y)))
    return boxes


def _limit_boxes(scene: Scene) -> list[Box]:
    """Where the limit's own text stands."""
    at = [limit * share for limit in scene.limits() for share in (1, 1 - scene.verdict.margin)]
    xs = [scene.pixels(x, scene.bottom)[0] for x in at]
    return [(x - 14, HEIGHT - 130, x + 2, float(HEIGHT)) for x in xs]
