"""Memory of every rank as stacked bars: tensors, what the allocator holds beside them, what others hold."""

from collections.abc import Sequence

import altair as alt

from harness.judging import peaks
from harness.judging.saving import highest_per_rank
from harness.records.run import RunRecord
from harness.records.sweeps import SweepData
from harness.showing.charts import drawing as look
from harness.showing.charts.drawing import Picture, memory_unit
from harness.sweep.pictures.memory_throughput import chosen, left_out
from harness.sweep.pictures.scene import labels
from harness.sweep.values import SweepVerdict

_PARTS = ("allocated (tensors)", "reserved beyond allocated", "in use outside torch")
_COLOURS = (look.BLUE, look.ORANGE, look.GREY)
_MAX_RANKS = 16


def rank_memory(data: SweepData, verdict: SweepVerdict) -> Picture:
    """A small picture per cell, one bar per rank; of many ranks the fullest of each pipeline stage."""
    title, name = "Memory of every rank", "rank_memory"
    shown = [(cell.planned.name, [run for run in cell.runs if run.status == "ok"]) for cell in chosen(data, verdict)]
    if not any(peaks.allocated(rank) for _, runs in shown for run in runs for rank in run.ranks):
        return Picture(name, title, "", None, "No rank left a memory reading.")
    called = labels(verdict)
    unit, scale = memory_unit([verdict.capacity_bytes or 0, *(cell.peak_bytes or 0 for cell in verdict.cells)])
    rows = [row for cell, runs in shown for row in _rows(called[cell], runs, scale)]
    parts = [part for part in _PARTS if any(row["part"] == part for row in rows)]
    bars = (
        alt.Chart(look.data(rows))
        .mark_bar(stroke="white", strokeWidth=0.5)
        .encode(
            y=alt.Y("rank:N", title=None, sort=alt.SortField("order")),
            x=alt.X("size:Q", title=f"{unit}, highest over repeats", stack="zero"),
            color=alt.Color("part:N", title=None, scale=alt.Scale(domain=_PARTS, range=_COLOURS),
                            legend=alt.Legend(orient="top", columns=3, values=parts)),
            order=alt.Order("part_order:Q"),
            tooltip=["cell:N", "rank:N", "part:N", alt.Tooltip("size:Q", title=unit, format=".2f")],
        )
        .properties(width=330, height=alt.Step(_step(rows)))
    )  # fmt: skip
    chart = (
        bars.facet(facet=alt.Facet("cell:N", title=None, sort=[called[cell] for cell, _ in shown]), columns=2)
        .resolve_scale(y="independent")
        .resolve_axis(x="independent")
    )  # a shared axis would also stand below an empty place
    return Picture(name, title, _caption(data, verdict, rows, shown), look.specification(chart, title, verdict.title))


def _rows(label: str, runs: Sequence[RunRecord], scale: float) -> list[look.Row]:
    allocated = highest_per_rank(runs, peaks.allocated)
    reserved = highest_per_rank(runs, peaks.reserved)
    used: dict[int, int] = {}
    for run in runs:
        for rank, value in highest_per_rank([run], peaks.device_used(run.nodes)).items():
            used[rank] = max(value, used.get(rank, 0))
    rows: list[look.Row] = []
    stages = {rank.rank: rank.coordinates.pp for rank in runs[0].ranks}
    for order, rank in enumerate(_ranks(allocated, stages)):
        inside, held = allocated[rank], reserved.get(rank)
        parts = (inside, None if held is None else held - inside, _outside(used.get(rank), held))
        for number, (part, size) in enumerate(zip(_PARTS, parts, strict=True)):
            if size is not None:
                place = f"rank {rank} (stage {stages.get(rank, 0)})"
                rows.append({"cell": label, "rank": place, "order": order, "part": part, "part_order": number,
                             "size": max(0, size) / scale})  # fmt: skip
    return rows


def _outside(used: int | None, reserved: int | None) -> int | None:
    return None if used is None or reserved is None else used - reserved


def _ranks(allocated: dict[int, int], stages: dict[int, int]) -> list[int]:
    if len(allocated) <= _MAX_RANKS:
        return sorted(allocated)
    fullest: dict[int, int] = {}
    for rank in sorted(allocated):
        best = fullest.get(stages.get(rank, 0))
        if best is None or allocated[rank] > allocated[best]:
            fullest[stages.get(rank, 0)] = rank
    return sorted(fullest.values())


def _step(rows: Sequence[look.Row]) -> int:
    return 20 if len({row["rank"] for row in rows}) <= 4 else 15


def _caption(
    data: SweepData, verdict: SweepVerdict, rows: Sequence[look.Row], shown: Sequence[tuple[str, Sequence[RunRecord]]]
) -> str:
    parts = {row["part"] for row in rows}
    said = []
    if parts == {_PARTS[0]}:
        said.append("Only allocated bytes exist: a processor has no caching allocator and no device memory.")
    elif _PARTS[2] not in parts:
        said.append("What is in use outside torch is not known: no NVML samples.")
    if any(len(run.ranks) > _MAX_RANKS for _, runs in shown for run in runs[:1]):
        said.append("Of each pipeline stage the fullest rank is shown.")
    said.append(left_out(data).strip())
    without = [cell.name for cell in verdict.cells if cell.status == "oom"]
    if without:
        said.append(f"Out of memory, so without bars: {'; '.join(without)}.")
    return (
        " ".join(said) or "Tensors, what torch's allocator holds beside them, and what is in use on the device beyond."
    )
