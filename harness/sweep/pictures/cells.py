"""Draws the runs of single cells: the memory of every rank, and memory over time."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import altair as alt

from harness.judge import readings
from harness.judge.readings import bare_uuid
from harness.judge.saving import highest_per_rank
from harness.records.rank import MemorySeries
from harness.records.run import RunRecord
from harness.records.sweep import CellData, SweepData
from harness.show.charts import drawing as look
from harness.show.charts.drawing import memory_unit, time_unit
from harness.show.page import Picture
from harness.sweep.pictures.plane import labels
from harness.sweep.values import SweepVerdict
from harness.units import counted

MAX_CELLS = 12


def chosen(data: SweepData, verdict: SweepVerdict) -> tuple[CellData, ...]:
    """Choose the cells with a run that ended well, in the plan's order.

    Of more than :data:`MAX_CELLS` the control, the recommended cell, the Pareto set, then the first others.
    """
    first = [verdict.plan.control, verdict.recommendation.cell, *verdict.pareto]
    able = _able(data)
    by_interest = sorted(able, key=lambda c: first.index(c.planned.name) if c.planned.name in first else len(first))
    names = {cell.planned.name for cell in by_interest[:MAX_CELLS]}
    return tuple(cell for cell in able if cell.planned.name in names)


def left_out(data: SweepData) -> str:
    """Return a sentence about the cells that are not drawn; empty where all are."""
    missing = len(_able(data)) - MAX_CELLS
    if missing <= 0:
        return ""
    return f" Not drawn: {counted(missing, 'more cell')} that ran. The table and report.json have them."


def _able(data: SweepData) -> list[CellData]:
    return [cell for cell in data.cells if _good(cell)]


def _good(cell: CellData) -> list[RunRecord]:
    return [run for run in cell.runs if run.status == "ok"]


def _per_cell(layers: Sequence[alt.Chart], cells: Iterable[str], columns: int, **size: object) -> alt.FacetChart:
    """Return one small picture per cell. All layers share one set of rows, which say which layer they are for."""
    facet = alt.Facet("cell:N", title=None, sort=list(cells))
    chart = alt.layer(*layers).properties(**size).facet(facet=facet, columns=columns)
    drawn: alt.FacetChart = chart.resolve_axis(x="independent")  # a shared axis would also stand below an empty place
    return drawn


_PARTS = {"allocated (tensors)": look.BLUE, "reserved beyond allocated": look.ORANGE, "in use outside torch": look.GREY}
_TENSORS, _, _OUTSIDE = _PARTS
_MAX_RANKS = 16


def rank_memory(data: SweepData, verdict: SweepVerdict) -> Picture:
    """Return a small picture per cell, one bar per rank; of many ranks the fullest of each pipeline stage."""
    title, name = "Memory of every rank", "rank_memory"
    called = labels(verdict)
    unit, scale = memory_unit([verdict.plan.capacity_bytes or 0, *(cell.peak_bytes or 0 for cell in verdict.cells)])
    shown = {called[cell.planned.name]: _good(cell) for cell in chosen(data, verdict)}
    rows = [row for cell, runs in shown.items() for row in _rows(cell, runs, scale)]
    if not rows:
        return look.no_picture(name, title, "No rank recorded its memory.")
    base, y = look.frame(rows), alt.Y("rank:N", title=None, sort=alt.EncodingSortField("order", op="min"))
    bars = look.having(base, "size").mark_bar(stroke="white", strokeWidth=0.5)
    bars = bars.encode(
        y=y,
        x=alt.X("size:Q", title=f"{unit}, highest over repeats", stack="zero"),
        color=look.kinds(alt.Color, "part", _PARTS, legend=look.legend(rows, "part", _PARTS, orient="top", columns=3)),
        order=alt.Order("part_order:Q"),
        tooltip=["cell:N", "rank:N", "part:N", alt.Tooltip("size:Q", title=unit, format=".2f")],
    )
    spans = look.having(base, "low").mark_rule(color=look.BLACK, strokeWidth=1.5).encode(y=y, x="low:Q", x2="high:Q")
    chart = _per_cell((bars, spans), shown, 2, width=330, height=alt.Step(18)).resolve_scale(y="independent")
    return look.picture(name, title, verdict.plan.title, chart, _caption(rows, shown.values()) + left_out(data))


def _rows(label: str, runs: Sequence[RunRecord], scale: float) -> Iterable[look.Row]:
    """Yield the parts of each rank's highest memory, and the range of its allocated peaks over the repeats."""
    allocated = highest_per_rank(runs, readings.allocated)
    reserved = highest_per_rank(runs, readings.reserved)
    used: dict[int, int] = {}
    for run in runs:
        for rank, value in highest_per_rank([run], readings.device_used(run.nodes)).items():
            used[rank] = max(value, used.get(rank, 0))
    each = [highest_per_rank([run], readings.allocated) for run in runs]
    stages = {rank.rank: rank.coordinates.pp for rank in runs[0].ranks}
    for order, rank in enumerate(_ranks(allocated, stages)):
        where: look.Row = {"cell": label, "rank": f"rank {rank} (stage {stages.get(rank, 0)})", "order": order}
        bounds = (0, allocated[rank], reserved.get(rank), used.get(rank))
        for number, part in enumerate(_PARTS):
            start, end = bounds[number : number + 2]
            if start is not None and end is not None:
                yield {**where, "part": part, "part_order": number, "size": max(0, end - start) / scale}
        peaks = [highest[rank] for highest in each if rank in highest]
        if min(peaks) < max(peaks):
            yield {**where, "low": min(peaks) / scale, "high": max(peaks) / scale}


def _ranks(allocated: dict[int, int], stages: dict[int, int]) -> list[int]:
    """Return the ranks to draw: of more than 16 the fullest of each pipeline stage."""
    if len(allocated) <= _MAX_RANKS:
        return sorted(allocated)
    by_stage = {stages.get(rank, 0): rank for rank in sorted(allocated, key=lambda rank: (allocated[rank], -rank))}
    return sorted(by_stage.values())


def _caption(rows: Sequence[look.Row], shown: Iterable[Sequence[RunRecord]]) -> str:
    parts = {row["part"] for row in rows if "part" in row}
    sentences = []
    if any("low" in row for row in rows):
        sentences.append("Thin lines reach from the lowest to the highest allocated peak of the repeats.")
    if parts == {_TENSORS}:
        sentences.append("Only allocated bytes exist: a CPU has no caching allocator and no device memory.")
    elif _OUTSIDE not in parts:
        sentences.append("Memory in use outside torch is not known: no NVML samples.")
    if any(len(runs[0].ranks) > _MAX_RANKS for runs in shown):
        sentences.append("The picture shows the fullest rank of each pipeline stage.")
    return " ".join(sentences)


_PAIR_COLOURS, _PAIR_DASHES = (look.BLACK, look.VERMILION), ([1, 0], [6, 3])


class _Recorded(NamedTuple):
    """The memory over time of a cell's worst rank in its first good run."""

    rank: int
    memory: MemorySeries
    of_step: bool
    """Whether it covers one step, and not the device over the whole run."""


def timeline(data: SweepData, verdict: SweepVerdict) -> Picture:
    """Draw the control (else the fullest cell) and the recommended cell (else the smallest), at their worst ranks."""
    title, name = "Memory over time", "timeline"
    recorded = _recorded(data, verdict)
    pair = _pair(verdict, recorded)
    if not pair:
        return look.no_picture(name, title, "No two cells recorded their memory over time.")
    called, drawn = labels(verdict), [recorded[cell] for cell in pair]
    names = [f"{called[cell]}, rank {recorded[cell].rank}" for cell in pair]
    unit, scale = memory_unit([max(own.memory.max_bytes) for own in drawn])
    clock, seconds = time_unit([len(own.memory.max_bytes) * own.memory.interval_s for own in drawn])
    of_step = all(own.of_step for own in drawn)
    rows = list[look.Row]()
    for cell, own in zip(names, drawn, strict=True):
        width = 100 / len(own.memory.max_bytes) if of_step else own.memory.interval_s / seconds
        rows += _over_time(cell, own.memory.max_bytes, width, scale)
    across = "Share of the step (%)" if of_step else f"Time since the recording began ({clock})"
    legend = alt.Legend(orient="top", labelLimit=400)
    lines = look.frame(rows).mark_line(interpolate="step-after", strokeWidth=1.8)
    lines = lines.encode(
        x=alt.X("time:Q", title=across),
        y=alt.Y("memory:Q", title=f"Memory ({unit})", scale=alt.Scale(zero=True)),
        color=look.kinds(alt.Color, "cell", dict(zip(names, _PAIR_COLOURS, strict=True)), legend=legend),
        strokeDash=look.kinds(alt.StrokeDash, "cell", dict(zip(names, _PAIR_DASHES, strict=True))),
        tooltip=["cell:N", *(alt.Tooltip(f"{field}:Q", format=".4g") for field in ("time", "memory"))],
    )
    chart = alt.layer(lines).properties(width=look.WIDTH, height=280)
    others = [cell.name for cell in verdict.cells if cell.metrics and cell.name not in pair]
    gone = f" Not drawn: {'; '.join(others)}." if others else ""
    caption = f"Highest reading of each interval: {drawn[0].memory.what}.{gone}"
    return look.picture(name, title, verdict.plan.title, chart, caption)


def _over_time(cell: str, values: Iterable[int], width: float, scale: float) -> Iterable[look.Row]:
    return ({"cell": cell, "time": place * width, "memory": value / scale} for place, value in enumerate(values))


def _recorded(data: SweepData, verdict: SweepVerdict) -> dict[str, _Recorded]:
    found = {}
    for cell, judged in zip(data.cells, verdict.cells, strict=True):
        peak, good = judged.metrics and judged.metrics.peak_allocated_bytes, _good(cell)
        if peak and good and (series := _series(good[0], peak.rank)):
            found[cell.planned.name] = series
    return found


def _series(run: RunRecord, rank: int) -> _Recorded | None:
    """Return the rank's own series of one step, else that of its device over the whole run."""
    record = next(found for found in run.ranks if found.rank == rank)
    if record.memory and record.memory.timeline:
        return _Recorded(rank, record.memory.timeline, of_step=True)
    uuid = bare_uuid(record.device.uuid) if record.device and record.device.uuid else None
    devices = {bare_uuid(device.uuid): device.timeline for node in run.nodes for device in node.devices}
    series = devices.get(uuid) if uuid else None
    return _Recorded(rank, series, of_step=False) if series else None


def _pair(verdict: SweepVerdict, recorded: dict[str, _Recorded]) -> list[str]:
    """Return the two cells to draw; empty where fewer recorded their memory."""
    able = sorted((cell for cell in verdict.cells if cell.name in recorded), key=lambda cell: cell.peak_bytes or 0)
    if len(able) < 2:
        return []
    smallest, fullest = able[0].name, able[-1].name
    first = verdict.plan.control if verdict.plan.control in recorded else fullest
    wanted = dict.fromkeys((first, verdict.recommendation.cell, smallest, fullest))
    return [name for name in wanted if name in recorded][:2]
