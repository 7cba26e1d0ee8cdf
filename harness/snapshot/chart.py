"""Draws the memory of a snapshot over time."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import altair as alt

from harness.show.charts import drawing as look
from harness.show.charts.drawing import memory_unit, text_width, time_unit
from harness.show.html import html
from harness.show.page import Block, Page, Picture
from harness.snapshot.values import DeviceMemory, Levels

_HEIGHT = 320
_COLOURS = (look.BLUE, look.VERMILION)
_KINDS = {"allocated (as requested)": [1, 0], "reserved": [5, 3]}
_BAND_COLOURS = ("#EEF3F8", "#FBF3E4")
_LANES = 2
_HEADROOM = 1.13  # room for the names of phases


def snapshot_timeline(devices: tuple[tuple[str, DeviceMemory], ...]) -> Picture:
    """Draw one or two devices with their names. Phases are from the first device that has any.

    Two histories start at the same point, so that equal steps overlap.
    """
    title, name = "Memory of torch's allocator over time", "snapshot_timeline"
    shown = [(called, device.levels) for called, device in devices if device.levels is not None]
    if not shown:
        problem = next((device.history_problem for _, device in devices if device.history_problem), "")
        missing = "No history was recorded. Call torch.cuda.memory._record_memory_history before the training."
        return look.no_picture(name, title, f"Not drawn: {problem}." if problem else missing)
    unit, scale = memory_unit([levels.peak_reserved_bytes for _, levels in shown])
    is_timed = all(levels.clock == "s" for _, levels in shown)
    clock, seconds = time_unit([_length(levels) for _, levels in shown]) if is_timed else ("events", 1.0)
    across = f"Time since the history begins ({clock})" if is_timed else "Events since the history begins"
    rows = [row for called, levels in shown for row in _rows(called, levels, scale, seconds)]
    layers = [*_phase_layers(shown, seconds, is_timed=is_timed), *_line_layers(rows, shown, across, unit)]
    chart = alt.layer(*layers).properties(width=look.WIDTH, height=_HEIGHT)
    left_out = [called for called, device in devices if device.levels is None]
    return look.picture(
        name, title, _peaks(shown, scale, unit), chart, f"{_caption(shown, left_out)} {_peaks(shown, scale, unit)}."
    )


def _length(levels: Levels) -> float:
    return levels.interval * len(levels.allocated_bytes)


def _rows(called: str, levels: Levels, scale: float, seconds: float) -> list[look.Row]:
    kinds = zip(_KINDS, (levels.allocated_bytes, levels.reserved_bytes), strict=True)
    return [
        {"of": called, "kind": kind, "time": place * levels.interval / seconds, "memory": value / scale}
        for kind, values in kinds
        for place, value in enumerate((*values, values[-1]))  # so that the last interval has a width too
    ]


def _line_layers(rows: list[look.Row], shown: list[tuple[str, Levels]], across: str, unit: str) -> list[alt.Chart]:
    names = [called for called, _ in shown]
    highest = max(1e-6, *(float(row["memory"] or 0) for row in rows))
    legend = alt.Legend(orient="top", labelLimit=360)
    lines = (
        look.frame(rows)
        .mark_line(interpolate="step-after", strokeWidth=1.6)
        .encode(
            x=alt.X("time:Q", title=across, scale=alt.Scale(nice=False)),
            y=alt.Y("memory:Q", title=f"Memory ({unit})", scale=alt.Scale(domain=[0, highest * _HEADROOM], nice=False)),
            color=look.kinds(
                alt.Color, "of", dict(zip(names, _COLOURS, strict=False)), legend=legend if len(names) > 1 else None
            ),
            strokeDash=look.kinds(alt.StrokeDash, "kind", _KINDS, legend=legend),
            tooltip=["of:N", "kind:N", alt.Tooltip("time:Q", title=across, format=".5g"),
                     alt.Tooltip("memory:Q", title=unit, format=".4g")],
        )
    )  # fmt: skip
    return [lines]


def _phase_layers(shown: list[tuple[str, Levels]], seconds: float, *, is_timed: bool) -> list[alt.Chart]:
    """Return a band per phase, with its name at the top if it fits."""
    source = next((levels for _, levels in shown if levels.phases), None)
    if source is None or not is_timed:
        return []
    longest = max(_length(levels) for _, levels in shown)
    free_from = [0.0] * _LANES
    rows: list[look.Row] = []
    for number, phase in enumerate(source.phases):
        left, right = (at / longest * look.WIDTH for at in (phase.start_s, phase.end_s))
        name = look.shortened(phase.name)
        lane = next(
            (at for at in range(_LANES) if free_from[at] <= left and left + text_width(name) < look.WIDTH), None
        )
        if lane is not None:
            free_from[lane] = left + text_width(name) + 6
        rows.append({
            "from": phase.start_s / seconds, "to": phase.end_s / seconds, "name": phase.name,
            "label": name if lane is not None else "", "colour": _BAND_COLOURS[number % 2], "top": 9 + 13 * (lane or 0),
            "width": right - left,
        })  # fmt: skip
    bands = look.frame(rows)
    return [
        bands.mark_rect(opacity=0.8).encode(x="from:Q", x2="to:Q", color=alt.Color("colour:N", scale=None), tooltip="name:N"),
        bands.mark_text(align="left", dx=3, fontSize=10, color=look.GREY).encode(x="from:Q", y=alt.Y("top:Q", scale=None), text="label:N"),
    ]  # fmt: skip


def _peaks(shown: list[tuple[str, Levels]], scale: float, unit: str) -> str:
    texts = [
        f"{look.shortened(called)}: peak {levels.peak_allocated_bytes / scale:.2f} {unit} allocated, "
        f"{levels.peak_reserved_bytes / scale:.2f} {unit} reserved"
        for called, levels in shown
    ]
    return "; ".join(texts)


def _caption(shown: list[tuple[str, Levels]], left_out: list[str]) -> str:
    events = " and ".join(f"{levels.num_events:,}" for _, levels in shown)
    text = f"Highest level of each interval, from {events} recorded events. Allocated counts the requested bytes, before rounding."
    if len(shown) > 1 and any(levels.phases for _, levels in shown):
        text += f" The phases are from {next(called for called, levels in shown if levels.phases)}."
    if left_out:
        text += f" No history, so not drawn: {', '.join(left_out)}."
    return text


def write_timeline(devices: Sequence[tuple[str, DeviceMemory]], about: Sequence[Block], path: Path) -> Path:
    """Write the chart, replacing the file; the page also has ``about``. BadRequestError: no history, no space."""
    drawn = snapshot_timeline(tuple(devices))
    names = " and ".join(called for called, _ in devices)
    page = Page((drawn, *about), title=f"Memory snapshot{'s' * (len(devices) > 1)} {names}")
    return look.write_chart("--timeline", path, drawn, partial(html, page))
