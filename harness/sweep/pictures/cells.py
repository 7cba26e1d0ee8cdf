"""Draws the runs of single cells: the memory of every rank, memory over time, and step times."""

from collections.abc import Sequence
from itertools import cycle

import altair as alt

from harness.judge import readings
from harness.judge.readings import bare_uuid, window_of
from harness.judge.saving import highest_per_rank
from harness.records.rank import MemorySeries
from harness.records.run import RunRecord
from harness.records.sweep import CellData, SweepData
from harness.show.charts import drawing as look
from harness.show.charts.drawing import memory_unit, time_unit
from harness.show.page import Picture
from harness.sweep.pictures.plane import labels
from harness.sweep.values import CellVerdict, SweepVerdict
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
    return (
        f" Not drawn: {counted(missing, 'more cell')} that ran. The table and report.json have them."
        if missing > 0
        else ""
    )


def _able(data: SweepData) -> list[CellData]:
    return [cell for cell in data.cells if any(run.status == "ok" for run in cell.runs)]


_PARTS = {"allocated (tensors)": look.BLUE, "reserved beyond allocated": look.ORANGE, "in use outside torch": look.GREY}
_TENSORS, _, _OUTSIDE = _PARTS
_MAX_RANKS = 16


def rank_memory(data: SweepData, verdict: SweepVerdict) -> Picture:
    """Return a small picture per cell, one bar per rank; of many ranks the fullest of each pipeline stage."""
    title, name = "Memory of every rank", "rank_memory"
    shown = [(cell.planned.name, [run for run in cell.runs if run.status == "ok"]) for cell in chosen(data, verdict)]
    if not any(readings.allocated(rank) for _, runs in shown for run in runs for rank in run.ranks):
        return look.no_picture(name, title, "No rank recorded its memory.")
    called = labels(verdict)
    unit, scale = memory_unit([verdict.plan.capacity_bytes or 0, *(cell.peak_bytes or 0 for cell in verdict.cells)])
    rows = [row for cell, runs in shown for row in _rows(called[cell], runs, scale)]
    parts = [part for part in _PARTS if any(row.get("part") == part for row in rows)]
    base, y = look.frame(rows), alt.Y("rank:N", title=None, sort=alt.SortField("order"))
    bars = (
        look.having(base, "size")
        .mark_bar(stroke="white", strokeWidth=0.5)
        .encode(
            y=y,
            x=alt.X("size:Q", title=f"{unit}, highest over repeats", stack="zero"),
            color=look.kinds(alt.Color, "part", _PARTS, legend=alt.Legend(orient="top", columns=3, values=parts)),
            order=alt.Order("part_order:Q"),
            tooltip=["cell:N", "rank:N", "part:N", alt.Tooltip("size:Q", title=unit, format=".2f")],
        )
    )
    spans = look.having(base, "low").mark_rule(color=look.BLACK, strokeWidth=1.5).encode(y=y, x="low:Q", x2="high:Q")
    height = alt.Step(20 if len({row["rank"] for row in rows}) <= 4 else 15)
    chart = (
        alt.layer(bars, spans)
        .properties(width=330, height=height)
        .facet(facet=alt.Facet("cell:N", title=None, sort=[called[cell] for cell, _ in shown]), columns=2)
        .resolve_scale(y="independent")
        .resolve_axis(x="independent")
    )  # a shared axis would also stand below an empty place
    return look.picture(name, title, verdict.plan.title, chart, _caption(data, verdict, rows, shown))


def _rows(label: str, runs: Sequence[RunRecord], scale: float) -> list[look.Row]:
    allocated = highest_per_rank(runs, readings.allocated)
    reserved = highest_per_rank(runs, readings.reserved)
    used: dict[int, int] = {}
    for run in runs:
        for rank, value in highest_per_rank([run], readings.device_used(run.nodes)).items():
            used[rank] = max(value, used.get(rank, 0))
    rows: list[look.Row] = []
    stages = {rank.rank: rank.coordinates.pp for rank in runs[0].ranks}
    for order, rank in enumerate(_ranks(allocated, stages)):
        inside, held = allocated[rank], reserved.get(rank)
        outside = used[rank] - held if rank in used and held is not None else None
        parts = (inside, None if held is None else held - inside, outside)
        where: look.Row = {"cell": label, "rank": f"rank {rank} (stage {stages.get(rank, 0)})", "order": order}
        for number, (part, size) in enumerate(zip(_PARTS, parts, strict=True)):
            if size is not None:
                rows.append({**where, "part": part, "part_order": number, "size": max(0, size) / scale})
        each = [highest[rank] for run in runs if rank in (highest := highest_per_rank([run], readings.allocated))]
        if min(each) < max(each):
            rows.append({**where, "low": min(each) / scale, "high": max(each) / scale})
    return rows


def _ranks(allocated: dict[int, int], stages: dict[int, int]) -> list[int]:
    if len(allocated) <= _MAX_RANKS:
        return sorted(allocated)
    fullest: dict[int, int] = {}
    for rank in sorted(allocated):
        best = fullest.get(stages.get(rank, 0))
        if best is None or allocated[rank] > allocated[best]:
            fullest[stages.get(rank, 0)] = rank
    return sorted(fullest.values())


def _caption(
    data: SweepData, verdict: SweepVerdict, rows: Sequence[look.Row], shown: Sequence[tuple[str, Sequence[RunRecord]]]
) -> str:
    parts = {row["part"] for row in rows if "part" in row}
    sentences = []
    if any("low" in row for row in rows):
        sentences.append("Thin lines reach from the lowest to the highest allocated peak of the repeats.")
    if parts == {_TENSORS}:
        sentences.append("Only allocated bytes exist: a CPU has no caching allocator and no device memory.")
    elif _OUTSIDE not in parts:
        sentences.append("Memory in use outside torch is not known: no NVML samples.")
    if any(len(run.ranks) > _MAX_RANKS for _, runs in shown for run in runs[:1]):
        sentences.append("The picture shows the fullest rank of each pipeline stage.")
    sentences.append(left_out(data).strip())
    without = [cell.name for cell in verdict.cells if cell.status == "oom"]
    if without:
        sentences.append(f"No bars, because they ran out of memory: {'; '.join(without)}.")
    return (
        " ".join(sentences)
        or "Tensors, other memory that torch's allocator holds, and other memory in use on the device."
    )


_ROOM = 60  # characters
_PAIR_COLOURS, _PAIR_DASHES = (look.BLACK, look.VERMILION), ([1, 0], [6, 3])


def timeline(data: SweepData, verdict: SweepVerdict) -> Picture:
    """Draw the control (else the fullest cell) and the recommended cell (else the smallest), at their worst ranks."""
    title, name = "Memory over time", "timeline"
    recorded = _recorded(data, verdict)
    pair = _pair(verdict, set(recorded))
    if not pair:
        return look.no_picture(name, title, "No two cells recorded their memory over time.")
    called = labels(verdict)
    series = [(f"{called[cell]}, rank {recorded[cell][0]}", recorded[cell][1]) for cell in pair]
    unit, scale = memory_unit([value for _, memory in series for value in memory.max_bytes])
    clock, seconds = time_unit([len(memory.max_bytes) * memory.interval_s for _, memory in series])
    of_step = all(recorded[cell][2] for cell in pair)
    rows: list[look.Row] = [
        {
            "cell": cell,
            "time": 100 * place / len(memory.max_bytes) if of_step else place * memory.interval_s / seconds,
            "memory": value / scale,
        }
        for cell, memory in series
        for place, value in enumerate(memory.max_bytes)
    ]
    names = [cell for cell, _ in series]
    across = "Share of the step (%)" if of_step else f"Time since the recording began ({clock})"
    legend = alt.Legend(orient="top", labelLimit=400)
    base = look.frame(rows)
    lines = base.mark_line(interpolate="step-after", strokeWidth=1.8).encode(
        x=alt.X("time:Q", title=across),
        y=alt.Y("memory:Q", title=f"Memory ({unit})", scale=alt.Scale(zero=True)),
        color=look.kinds(alt.Color, "cell", dict(zip(names, _PAIR_COLOURS, strict=True)), legend=legend),
        strokeDash=look.kinds(alt.StrokeDash, "cell", dict(zip(names, _PAIR_DASHES, strict=True))),
        tooltip=[
            "cell:N",
            alt.Tooltip("time:Q", title=across, format=".4g"),
            alt.Tooltip("memory:Q", title=unit, format=".4g"),
        ],
    )
    chart = alt.layer(lines).properties(width=look.WIDTH, height=280)
    others = [cell.name for cell in verdict.cells if cell.metrics and cell.name not in pair]
    caption = f"Highest reading of each interval: {series[0][1].what}."
    if others:
        caption += f" Only these two cells are drawn. Not drawn: {'; '.join(others)}."
    return look.picture(name, title, _subtitle(verdict.plan.title, others), chart, caption)


def _recorded(data: SweepData, verdict: SweepVerdict) -> dict[str, tuple[int, MemorySeries, bool]]:
    """Return by cell: its worst rank, that rank's series in the first good run, and whether it covers one step."""
    found = {}
    for cell, judged in zip(data.cells, verdict.cells, strict=True):
        peak = judged.metrics.peak_allocated_bytes if judged.metrics else None
        run = next((run for run in cell.runs if run.status == "ok"), None)
        series, of_step = _series(run, peak.rank) if run and peak else (None, False)
        if peak and series:
            found[cell.planned.name] = (peak.rank, series, of_step)
    return found


def _series(run: RunRecord, rank: int) -> tuple[MemorySeries | None, bool]:
    """Return the rank's own series of one step, else that of its device over the whole run."""
    record = next((found for found in run.ranks if found.rank == rank), None)
    if record is None:
        return None, False
    if record.memory and record.memory.timeline:
        return record.memory.timeline, True
    uuid = bare_uuid(record.device.uuid) if record.device and record.device.uuid else None
    devices = (device for node in run.nodes for device in node.devices)
    return next((device.timeline for device in devices if uuid and bare_uuid(device.uuid) == uuid), None), False


def _subtitle(title: str, others: list[str]) -> str:
    """Return the title with the cells that are not drawn: their names where there is room, else their number."""
    named = "; ".join(others)
    text = named if len(named) <= _ROOM else counted(len(others), "other cell")
    return f"{title} (not drawn: {text})" if others else title


def _pair(verdict: SweepVerdict, recorded: set[str]) -> tuple[str, str] | None:
    able: list[CellVerdict] = sorted(
        (cell for cell in verdict.cells if cell.name in recorded), key=lambda cell: cell.peak_bytes or 0
    )
    if len(able) < 2:
        return None
    first = verdict.plan.control if verdict.plan.control in recorded else able[-1].name
    wanted = (verdict.recommendation.cell, able[0].name, able[-1].name)
    second = next(name for name in wanted if name in recorded and name != first)
    return first, second or first


_COLUMNS = 3
_RUN_COLOURS = (look.BLUE, look.VERMILION, look.BLACK, look.GREEN, look.PURPLE, look.ORANGE)
_RUN_DASHES = ([1, 0], [6, 2], [2, 2], [8, 2, 2, 2], [4, 4], [10, 3])  # in grey the repeats still differ
_MAX_POINTS = 3000  # over all lines; each is 60 bytes of the page


def step_times(data: SweepData, verdict: SweepVerdict) -> Picture:
    """Draw one small picture per cell on common axes, a line per repeat; steps outside the window are on grey."""
    title, name = "Step times", "step_times"
    called = labels(verdict)
    found = [
        (called[cell.planned.name], number, run, _seconds(run))
        for cell in chosen(data, verdict)
        for number, run in enumerate(cell.runs, start=1)
        if _seconds(run)
    ]
    if not found:
        return look.no_picture(name, title, "No run recorded a step time.")
    unit, scale = time_unit([value for *_, seconds in found for value in seconds.values()])
    steps: list[look.Row] = [
        {"cell": cell, "run": f"run {number}", "step": step, "time": value / scale}
        for cell, number, _, seconds in found
        for step, value in _thinned(seconds, len(found))
    ]
    times = [value for row in steps if isinstance(value := row["time"], float)]
    last = max(step for *_, seconds in found for step in seconds)
    shades, edges = _shades(found)
    runs = list(dict.fromkeys(str(row["run"]) for row in steps))
    legend = alt.Legend(orient="top") if len(runs) > 1 else None
    cells = list(dict.fromkeys(cell for cell, *_ in found))
    # One facet per cell needs one data set for all layers; rows say which layer they are for.
    base = look.frame([*steps, *shades, *edges])
    shade = look.having(base, "from").mark_rect(color="#D9D9D9", opacity=0.7)
    shade = shade.encode(x=alt.X("from:Q", title="Step"), x2="to:Q")
    edge = look.having(base, "edge").mark_rule(color=look.GREY, strokeDash=[4, 3]).encode(x="edge:Q")
    whole = alt.Axis(tickMinStep=1)
    across = alt.Scale(domain=[-0.5, last + 0.5], nice=False)
    upwards = alt.Scale(domain=[min(times) * 0.95, max(times) * 1.03], nice=False)
    colours = dict(zip(runs, cycle(_RUN_COLOURS), strict=False))
    dashes = dict(zip(runs, cycle(_RUN_DASHES), strict=False))
    line = look.having(base, "time").mark_line(strokeWidth=1.3, opacity=0.85)
    line = line.encode(
        x=alt.X("step:Q", title="Step", axis=whole, scale=across),
        y=alt.Y("time:Q", title=f"Step time ({unit})", scale=upwards),
        color=look.kinds(alt.Color, "run", colours, legend=legend),
        strokeDash=look.kinds(alt.StrokeDash, "run", dashes, legend=legend),
        tooltip=["cell:N", "run:N", "step:Q", alt.Tooltip("time:Q", title=unit, format=".4g")],
    )
    chart = (
        alt.layer(shade, edge, line)
        .properties(width=225, height=120)
        .facet(facet=alt.Facet("cell:N", title=None, sort=cells), columns=_COLUMNS)
        .resolve_axis(x="independent")  # a shared axis would also stand below an empty place
    )
    caption = (
        "Each step shows its slowest rank, because the others wait for it. Only the steps between the dashed lines "
        "count, not those on grey. The time axis does not begin at zero." + left_out(data)
    )
    return look.picture(name, title, verdict.plan.title, chart, caption)


def _seconds(run: RunRecord) -> dict[int, float]:
    """Return the seconds of the steps that every rank recorded."""
    spec = run.spec
    found = {}
    for step in range(spec.measure.max_steps):
        seconds = window_of(run.ranks, spec.num_gpus, step, step + 1).seconds
        if seconds:
            found[step] = seconds[0]
    return found


def _thinned(seconds: dict[int, float], num_runs: int) -> list[tuple[int, float]]:
    """Keep the slowest of every few steps of a long run: the page stays small and shows each slow step."""
    every = 1 + len(seconds) * num_runs // _MAX_POINTS
    items = list(seconds.items())
    return [max(items[at : at + every], key=lambda item: item[1]) for at in range(0, len(items), every)]


def _shades(
    found: Sequence[tuple[str, int, RunRecord, dict[int, float]]],
) -> tuple[list[look.Row], list[look.Row]]:
    """Return the grey areas before and after the window of each cell, and the window's edges."""
    windows = {cell: (run.spec.measure.window, run.spec.measure.max_steps) for cell, _, run, _ in found}
    shades: list[look.Row] = []
    edges: list[look.Row] = []
    for cell, ((start, end), max_steps) in windows.items():
        shades.append({"cell": cell, "from": -0.5, "to": start - 0.5})
        if end < max_steps:
            shades.append({"cell": cell, "from": end - 0.5, "to": max_steps - 0.5})
        edges += [{"cell": cell, "edge": start - 0.5}, {"cell": cell, "edge": end - 0.5}]
    return shades, edges
