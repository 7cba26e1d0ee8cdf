"""Step times of every run: what warms up, what counts, and hiccups."""

from collections.abc import Sequence

import altair as alt

from harness.judging.window import window_of
from harness.records.run import RunRecord
from harness.records.sweeps import SweepData
from harness.showing.charts import drawing as look
from harness.showing.charts.drawing import Picture, time_unit
from harness.sweep.pictures.memory_throughput import chosen, left_out
from harness.sweep.pictures.scene import labels
from harness.sweep.values import SweepVerdict

_COLUMNS = 3
_MAX_POINTS = 3000  # over all lines; each is 60 bytes of the page


def step_times(data: SweepData, verdict: SweepVerdict) -> Picture:
    """One small picture per cell on common axes, a line per repeat; steps outside of the window lie on grey."""
    title, name = "Step times", "step_times"
    called = labels(verdict)
    found = [
        (called[cell.planned.name], number, run, _seconds(run))
        for cell in chosen(data, verdict)
        for number, run in enumerate(cell.runs, start=1)
        if _seconds(run)
    ]
    if not found:
        return Picture(name, title, "", None, "No run left a step time.")
    unit, scale = time_unit([value for *_, seconds in found for value in seconds.values()])
    steps: list[look.Row] = [
        {"cell": cell, "run": f"run {number}", "step": step, "time": value / scale}
        for cell, number, _, seconds in found
        for step, value in _thinned(seconds, len(found))
    ]
    last = max(step for *_, seconds in found for step in seconds)
    shades, edges = _shades(found)
    cells = list(dict.fromkeys(cell for cell, *_ in found))
    # One facet per cell needs one data set for all layers; rows say which layer they are for.
    base = alt.Chart(look.data([*steps, *shades, *edges]))
    shade = base.transform_filter("isValid(datum.from)").mark_rect(color="#D9D9D9", opacity=0.7).encode(
        x=alt.X("from:Q", title="Step"), x2="to:Q"
    )  # fmt: skip
    edge = base.transform_filter("isValid(datum.edge)").mark_rule(color=look.GREY, strokeDash=[4, 3]).encode(x="edge:Q")
    line = base.transform_filter("isValid(datum.time)").mark_line(strokeWidth=1.3, opacity=0.85).encode(
        x=alt.X("step:Q", title="Step", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(domain=[-0.5, last + 0.5], nice=False)),
        y=alt.Y("time:Q", title=f"Step time ({unit})", scale=_scale(steps)),
        color=alt.Color("run:N", title=None, scale=_runs(steps), legend=_legend(steps)),
        strokeDash=alt.StrokeDash("run:N", title=None, scale=_dashes(steps), legend=_legend(steps)),
        tooltip=["cell:N", "run:N", "step:Q", alt.Tooltip("time:Q", title=unit, format=".4g")],
    )  # fmt: skip
    chart = (
        alt.layer(shade, edge, line)
        .properties(width=225, height=120)
        .facet(facet=alt.Facet("cell:N", title=None, sort=cells), columns=_COLUMNS)
        .resolve_axis(x="independent")  # a shared axis would also stand below an empty place
    )
    caption = (
        "Slowest rank of each step, because the others wait for it. Only steps of the window, right of the grey and "
        "between dashed lines, count. The axis does not begin at zero." + left_out(data)
    )
    return Picture(name, title, caption, look.specification(chart, title, verdict.title))


def _seconds(run: RunRecord) -> dict[int, float]:
    """Seconds of the steps that every rank recorded."""
    spec = run.spec
    found = {}
    for step in range(spec.measure.max_steps):
        seconds = window_of(run.ranks, spec.num_gpus, step, step + 1).seconds
        if seconds:
            found[step] = seconds[0]
    return found


def _thinned(seconds: dict[int, float], num_runs: int) -> list[tuple[int, float]]:
    """Of long runs the slowest step of each few, so that the page stays small and no hiccup is lost."""
    every = 1 + len(seconds) * num_runs // _MAX_POINTS
    items = list(seconds.items())
    return [max(items[at : at + every], key=lambda item: item[1]) for at in range(0, len(items), every)]


def _shades(
    found: Sequence[tuple[str, int, RunRecord, dict[int, float]]],
) -> tuple[list[look.Row], list[look.Row]]:
    """Grey before and after the window of each cell, and the window's edges."""
    windows = {cell: (run.spec.measure.window, run.spec.measure.max_steps) for cell, _, run, _ in found}
    shades: list[look.Row] = []
    edges: list[look.Row] = []
    for cell, ((start, end), max_steps) in windows.items():
        shades.append({"cell": cell, "from": -0.5, "to": start - 0.5})
        if end < max_steps:
            shades.append({"cell": cell, "from": end - 0.5, "to": max_steps - 0.5})
        edges += [{"cell": cell, "edge": start - 0.5}, {"cell": cell, "edge": end - 0.5}]
    return shades, edges


def _scale(steps: Sequence[look.Row]) -> alt.Scale:
    values = [value for row in steps if isinstance(value := row["time"], float)]
    return alt.Scale(domain=[min(values) * 0.95, max(values) * 1.03], nice=False)


def _runs(steps: Sequence[look.Row]) -> alt.Scale:
    names = list(dict.fromkeys(str(row["run"]) for row in steps))
    colours = (look.BLUE, look.VERMILION, look.BLACK, look.GREEN, look.PURPLE, look.ORANGE)
    return alt.Scale(domain=names, range=[colours[place % len(colours)] for place in range(len(names))])


def _dashes(steps: Sequence[look.Row]) -> alt.Scale:
    """In grey the repeats still differ."""
    names = list(dict.fromkeys(str(row["run"]) for row in steps))
    dashes = ([1, 0], [6, 2], [2, 2], [8, 2, 2, 2], [4, 4], [10, 3])
    return alt.Scale(domain=names, range=[dashes[place % len(dashes)] for place in range(len(names))])


def _legend(steps: Sequence[look.Row]) -> alt.Legend | None:
    return alt.Legend(orient="top") if len({row["run"] for row in steps}) > 1 else None
