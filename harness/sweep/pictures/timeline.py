"""Memory over time of two cells, one upon the other: where a setting takes its savings from."""

import altair as alt

from harness.judging.peaks import bare_uuid
from harness.records.rank import MemorySeries
from harness.records.run import RunRecord
from harness.records.sweeps import SweepData
from harness.showing.charts import drawing as look
from harness.showing.charts.drawing import Picture, memory_unit, time_unit
from harness.sweep.pictures.scene import labels
from harness.sweep.values import CellVerdict, SweepVerdict
from harness.units import counted

_ROOM = 60  # characters
_STYLES = ((look.BLACK, [1, 0]), (look.VERMILION, [6, 3]))


def timeline(data: SweepData, verdict: SweepVerdict) -> Picture:
    """The control, or else the fullest cell, and the recommended one, or else the leanest; each at its worst rank."""
    title, name = "Memory over time", "timeline"
    recorded = _recorded(data, verdict)
    pair = _pair(verdict, set(recorded))
    if not pair:
        return Picture(name, title, "", None, "No two cells recorded their memory over time.")
    called = labels(verdict)
    series = [(f"{called[cell]}, rank {recorded[cell][0]}", recorded[cell][1]) for cell in pair]
    unit, scale = memory_unit([value for _, one in series for value in one.max_bytes])
    clock, seconds = time_unit([len(one.max_bytes) * one.interval_s for _, one in series])
    of_step = all(recorded[cell][2] for cell in pair)
    rows: list[look.Row] = [
        {
            "cell": cell,
            "time": 100 * place / len(one.max_bytes) if of_step else place * one.interval_s / seconds,
            "memory": value / scale,
        }
        for cell, one in series
        for place, value in enumerate(one.max_bytes)
    ]
    names = [cell for cell, _ in series]
    across = "Share of the step (%)" if of_step else f"Time since the recording began ({clock})"
    base = alt.Chart(look.data(rows))
    lines = base.mark_line(interpolate="step-after", strokeWidth=1.8).encode(
        x=alt.X("time:Q", title=across),
        y=alt.Y("memory:Q", title=f"Memory ({unit})", scale=alt.Scale(zero=True)),
        color=alt.Color("cell:N", title=None, scale=alt.Scale(domain=names, range=[c for c, _ in _STYLES]), legend=alt.Legend(orient="top", labelLimit=400)),
        strokeDash=alt.StrokeDash("cell:N", title=None, scale=alt.Scale(domain=names, range=[d for _, d in _STYLES])),
        tooltip=["cell:N", alt.Tooltip("time:Q", title=across, format=".4g"), alt.Tooltip("memory:Q", title=unit, format=".4g")],
    )  # fmt: skip
    chart = alt.layer(lines).properties(width=look.WIDTH, height=280)
    others = [cell.name for cell in verdict.cells if cell.metrics and cell.name not in pair]
    caption = f"Highest reading of each interval: {series[0][1].what}."
    if others:
        caption += f" Only these two are drawn; left out: {'; '.join(others)}."
    return Picture(name, title, caption, look.specification(chart, title, _subtitle(verdict.title, others)))


def _recorded(data: SweepData, verdict: SweepVerdict) -> dict[str, tuple[int, MemorySeries, bool]]:
    """By name of the cell: its worst rank, that rank's series in the first good run, and whether it is of one step."""
    found = {}
    for cell, judged in zip(data.cells, verdict.cells, strict=True):
        peak = judged.metrics.peak_allocated_bytes if judged.metrics else None
        run = next((run for run in cell.runs if run.status == "ok"), None)
        series, of_step = _series(run, peak.rank) if run and peak else (None, False)
        if peak and series:
            found[cell.planned.name] = (peak.rank, series, of_step)
    return found


def _series(run: RunRecord, rank: int) -> tuple[MemorySeries | None, bool]:
    """The rank's own series of one step, else that of its device over the whole run."""
    record = next((one for one in run.ranks if one.rank == rank), None)
    if record is None:
        return None, False
    if record.memory and record.memory.timeline:
        return record.memory.timeline, True
    uuid = bare_uuid(record.device.uuid) if record.device and record.device.uuid else None
    devices = (device for node in run.nodes for device in node.devices)
    return next((device.timeline for device in devices if uuid and bare_uuid(device.uuid) == uuid), None), False


def _subtitle(title: str, others: list[str]) -> str:
    """The picture alone says what it leaves out, too: by name as long as there is room."""
    named = "; ".join(others)
    told = named if len(named) <= _ROOM else counted(len(others), "other cell")
    return f"{title} (not drawn: {told})" if others else title


def _pair(verdict: SweepVerdict, recorded: set[str]) -> tuple[str, str] | None:
    able: list[CellVerdict] = sorted(
        (cell for cell in verdict.cells if cell.name in recorded), key=lambda cell: cell.peak_bytes or 0
    )
    if len(able) < 2:
        return None
    first = verdict.control if verdict.control in recorded else able[-1].name
    wanted = (verdict.recommendation.cell, able[0].name, able[-1].name)
    second = next(name for name in wanted if name in recorded and name != first)
    return first, second or first
