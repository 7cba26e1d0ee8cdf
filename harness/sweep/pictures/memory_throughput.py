"""Draws memory against throughput, the chosen cell marked."""

import altair as alt

from harness.records.sweeps import CellData, SweepData
from harness.showing.charts import drawing as look
from harness.showing.charts.drawing import Picture
from harness.showing.figures import BY_NAME, figure
from harness.sweep.pictures.scene import HEIGHT, WIDTH, Scene, label_layers, scene_of
from harness.sweep.values import CellVerdict, SweepVerdict
from harness.units import counted, format_bytes

_STATES = ("control", "Pareto set", "beaten by another", "no margin or in doubt", "out of memory (at the edge)")
_COLOURS = (look.BLACK, look.BLUE, look.SKY, look.ORANGE, look.VERMILION)
_SHAPES = ("diamond", "circle", "square", "triangle-up", "cross")


def memory_throughput(verdict: SweepVerdict) -> Picture:
    """Peak allocated bytes of the worst rank against throughput per GPU; cells that ran out of memory at the right edge."""
    title, name = "Memory against throughput", "memory_throughput"
    scene = scene_of(verdict)
    if scene is None:
        return Picture(name, title, "", None, "No cell has both a peak and a throughput.")
    layers = [*_limit_layers(scene), _front(scene), *label_layers(scene), _points(scene)]
    chart = alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)
    caption = (
        "Up and to the left is better; no cell beats one of the Pareto set (on the line) in both. A label that found no "
        "room is the cell's number in the table." + _not_shown(scene)
    )
    return Picture(name, title, caption, look.specification(chart, title, verdict.title))


def _not_shown(scene: Scene) -> str:
    shown = {cell.name for cell in (*scene.ran, *scene.oom)}
    missing = [cell.name for cell in scene.verdict.cells if cell.name not in shown]
    return f" Not measured, so not shown: {'; '.join(missing)}." if missing else ""


def _points(scene: Scene) -> alt.Chart:
    rows = _marks(scene)
    present = [state for state in _STATES if any(row["state"] == state for row in rows)]
    legend = alt.Legend(orient="bottom", columns=5, values=present)
    wide = alt.Scale(domain=[scene.left, scene.right], nice=False, zero=False)
    high = alt.Scale(domain=[scene.bottom, scene.top], nice=False, zero=False)
    points: alt.Chart = (
        alt.Chart(look.data(rows))
        .mark_point(filled=True, size=110, opacity=1, stroke="white", strokeWidth=0.8)
        .encode(
            x=alt.X("x:Q", title=f"Peak allocated at the worst rank ({scene.unit})", scale=wide),
            y=alt.Y("y:Q", title="Throughput (tokens/s/GPU)", scale=high),
            color=alt.Color("state:N", title=None, scale=alt.Scale(domain=_STATES, range=_COLOURS), legend=legend),
            shape=alt.Shape("state:N", title=None, scale=alt.Scale(domain=_STATES, range=_SHAPES), legend=legend),
            tooltip=[
                "cell:N",
                "state:N",
                "memory:N",
                alt.Tooltip("y:Q", title="tokens/s/GPU", format=".5g"),
                "TFLOP/s/GPU:N",
            ],
        )
    )
    return points


def _marks(scene: Scene) -> list[look.Row]:
    rows = [
        _mark(cell, scene.point(cell), _state(cell, scene.verdict), format_bytes(cell.peak_bytes or 0))
        for cell in scene.ran
    ]
    edge = [_mark(cell, scene.edge(number), _STATES[4], "did not fit") for number, cell in enumerate(scene.at_edge)]
    return rows + edge


def _mark(cell: CellVerdict, at: tuple[float, float], state: str, memory: str) -> look.Row:
    flops = figure(BY_NAME["tflops_per_gpu"], cell.figure(BY_NAME["tflops_per_gpu"]))
    return {"x": at[0], "y": at[1], "state": state, "cell": cell.name, "memory": memory, "TFLOP/s/GPU": flops}


def _state(cell: CellVerdict, verdict: SweepVerdict) -> str:
    if cell.is_control:
        return _STATES[0]
    if cell.doubts or cell.fits is False:
        return _STATES[3]
    return _STATES[1] if cell.name in verdict.pareto else _STATES[2]


def _front(scene: Scene) -> alt.Chart:
    """Steps through the Pareto set: between two of its cells the smaller one's throughput is what can be had."""
    rows: list[look.Row] = [{"x": x, "y": y} for x, y in scene.corners()]
    line: alt.Chart = (
        alt.Chart(look.data(rows))
        .mark_line(color=look.BLUE, interpolate="step-after", strokeWidth=1.4, opacity=0.7, clip=True)
        .encode(x="x:Q", y="y:Q")
    )
    return line


def _limit_layers(scene: Scene) -> list[alt.Chart]:
    """A line where the memory ends and a dashed one where the margin begins; where none is in sight, words at the edge."""
    margin = scene.verdict.margin
    lines = [
        line
        for limit in scene.limits()
        for line in (
            (limit, f"memory {format_bytes(limit * scene.scale)}", [1, 0]),
            (limit * (1 - margin), f"less {margin * 100:g} %", [5, 4]),
        )
    ]
    layers = []
    for x, text, dash in lines:
        if scene.left < x < scene.right:
            row: look.Row = {"x": x, "y": scene.bottom, "text": text}
            base = alt.Chart(look.data([row]))
            layers.append(base.mark_rule(color=look.GREY, strokeDash=dash, strokeWidth=1.3).encode(x="x:Q"))
            words = base.mark_text(angle=270, align="left", dx=6, dy=-6, color=look.GREY, fontSize=10)
            layers.append(words.encode(x="x:Q", y="y:Q", text="text:N"))
    return layers if layers or not lines else [_beyond(scene, lines[0][1])]


def _beyond(scene: Scene, memory: str) -> alt.Chart:
    row: look.Row = {"x": scene.right, "y": scene.bottom, "text": f"{memory}, beyond this edge →"}
    words: alt.Chart = (
        alt.Chart(look.data([row]))
        .mark_text(align="right", dx=-6, dy=-8, color=look.GREY, fontSize=10)
        .encode(x="x:Q", y="y:Q", text="text:N")
    )
    return words


MAX_CELLS = 12


def chosen(data: SweepData, verdict: SweepVerdict) -> tuple[CellData, ...]:
    """Cells with a run that ended well, in the plan's order.

    Of more than :data:`MAX_CELLS` the control, the recommended cell, the Pareto set, then the first others.
    """
    first = [verdict.control, verdict.recommendation.cell, *verdict.pareto]
    able = _able(data)
    by_interest = sorted(able, key=lambda c: first.index(c.planned.name) if c.planned.name in first else len(first))
    names = {cell.planned.name for cell in by_interest[:MAX_CELLS]}
    return tuple(cell for cell in able if cell.planned.name in names)


def left_out(data: SweepData) -> str:
    """What is to be said of cells that were not chosen; empty where all were."""
    missing = len(_able(data)) - MAX_CELLS
    return (
        f" Left out here: {counted(missing, 'further cell')} that ran; the table and report.json have them."
        if missing > 0
        else ""
    )


def _able(data: SweepData) -> list[CellData]:
    return [cell for cell in data.cells if any(run.status == "ok" for run in cell.runs)]
