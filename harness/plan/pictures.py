"""Draws a plan: layers by setting, settings or layouts by memory and time, memory by stage, memory over a step."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, cycle
from operator import itemgetter, lt
from typing import TYPE_CHECKING, NamedTuple

from harness.experiment.modules import MODULES
from harness.experiment.recompute_plan import FULL
from harness.plan.run import Planned
from harness.plan.show import chief
from harness.plan.show_layouts import best_row
from harness.predict.prediction import Prediction
from harness.predict.reserved import why_unknown
from harness.predict.search import Plan, Row, cost_of
from harness.predict.step_history import Moment, StepHistory
from harness.show import chart as look
from harness.show.chart import Axis, Bar, Bars, Curve, Plane, Point, front, memory_limit, memory_unit
from harness.show.page import Block, Details, Page, Picture, Section
from harness.show.request_text import request_rows
from harness.units import counted, format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from harness.predict.fastest import Optimal

_PARTS = {"weights": look.BLUE, "gradients": look.SKY, "optimizer": look.GREEN, "activations": look.ORANGE,
          "logits": look.PURPLE, "transient": look.VERMILION, "overhead": look.PALE}  # fmt: skip
_REST = "allocator"
# What layers keep by the module whose recompute would free it.
_MODULES = {f"layers, {name}": colour for name, colour in zip(MODULES, cycle(look.MORE), strict=False)}
_GROUPS = {"weights": look.BLUE, "gradients": look.SKY, "optimizer": look.GREEN, "overhead": look.PALE,
           "embedding": look.PLUM, "layers": look.ORANGE, **_MODULES, "output layer": look.PURPLE,
           "layers, recompute": look.LIME, "layers, backward": look.WINE, "transient": look.VERMILION}  # fmt: skip
_BEST, _CONTROL, _OTHER, _FRONT = "use this", "no recompute", "others", "no other is better in both"
_LOOKS = {_BEST: (look.VERMILION, "diamond"), _CONTROL: (look.INK, "triangle"), _OTHER: (look.SKY, "circle"),
          _FRONT: (look.BLUE, "line")}  # fmt: skip
_MOST_MOMENTS, _MOST_NAMED = 300, 12
# Of a plan by layer: colours of its settings, the name of those that have none, and layers between two chunks.
_SETTINGS = (look.SKY, look.VERMILION, look.ORANGE, look.GREEN, look.BLUE, look.YELLOW, look.PURPLE, look.BROWN)
_MORE, _GAP = "other settings", 0.4


def pictured(planned: Planned, page: Page) -> Page:
    """Return the page of a plan with its pictures: that of the choice first, the others at the end."""
    layout, by_layer = planned.judged, planned.optimal.row if planned.optimal else None
    assert layout
    rows, step = dict(request_rows(layout.plan.spec)), layout.step()
    missing = f"Memory over one step: not drawn, {why_unknown(layout.plan.spec)}."
    more: list[Block] = [_stages(layout.plan, by_layer), _step(layout.plan, *step) if step else missing]
    several = len(planned.layouts) > 1
    asked = "Layout and recompute" if several else "Recompute by layer" if planned.optimal else "Recompute"
    details = [each for each in page.blocks if isinstance(each, Details)]
    details.sort(key=lambda each: any(isinstance(inner, Section) for inner in each.blocks))
    return replace(
        page,
        title=f"{asked} for {rows['Recipe']}",
        about=f"{counted(len(planned.layouts), 'layout')}; batch: {rows['Batch']}" if several else rows["Parallelism"],
        blocks=(
            *chief_pictures(planned),
            *(each for each in page.blocks if not isinstance(each, Details)),
            *more,
            *details,
        ),
    )


def chief_pictures(planned: Planned) -> tuple[Picture, ...]:
    """Return the pictures of the choice: a plan by layer, where there is one, and all settings or layouts."""
    found, layout = planned.optimal, planned.judged
    return (*([_layers(found, layout.plan)] if found and found.stages and layout else []), choice(planned))


class _Entry(NamedTuple):
    name: str
    plan: Plan
    row: Row
    found: Prediction


def choice(planned: Planned) -> Picture:
    """Draw a point per setting, or per layout with its best setting, by memory and time. At most twelve are named."""
    several = len(planned.layouts) > 1
    entries, best = [*_entries(planned, several=several)], _best(planned, several=several)
    first, is_timed = entries[0].plan, all(each.found.time for each in entries)
    tokens, named = first.spec.tokens_per_step, entries if several else _named(first, entries)
    unit, scale = memory_unit([each.found.fits[1] for each in entries])
    limits, off = memory_limit(
        [each.plan.limits for each in entries], scale, max(each.found.fits[2] for each in entries) / scale
    )

    def upwards(each: _Entry) -> float:
        return each.plan.seconds_per_token(each.row) * tokens if is_timed else cost_of(each.row)[0] * 100

    numbers = {each.name: str(at) for at, each in enumerate(sorted(named, key=upwards)[:_MOST_NAMED], 1)}
    ordered = sorted(entries, key=lambda each: (each.name not in numbers, upwards(each)))
    points = tuple(_point(each, best, upwards(each), scale, numbers.get(each.name, "")) for each in ordered)
    seconds = f"Time for {tokens:,} tokens (s)" if several else "Step time (s)"
    x = Axis(f"Needed by torch's allocator at the fullest stage ({unit})")
    chart = Plane(
        x, Axis(seconds if is_timed else "Recompute FLOPs (%)"), _LOOKS, points, front(_FRONT, points, lt), limits
    )
    caption = "Down and to the left is better. Horizontal lines are ranges of the memory."
    title = f"Which {'layout' if several else 'setting'}: memory against time"
    return Picture("choice", title, caption + off, chart)


def _entries(planned: Planned, *, several: bool) -> Iterator[_Entry]:
    for layout in planned.made:
        for row in [best_row(layout.plan)] if several else layout.plan.rows:
            if row and row.prediction:
                yield _Entry(f"{layout.name}: {row.label}" if several else row.label, layout.plan, row, row.prediction)

    found = planned.optimal.row if planned.optimal and not several else None
    if found and found.prediction:
        yield _Entry("plan by layer", planned.made[0].plan, found, found.prediction)


def _best(planned: Planned, *, several: bool) -> Row | None:
    """Return the plan by layer, where it is faster, else the best setting for all layers."""
    if planned.optimal and planned.optimal.is_faster and not several:
        return planned.optimal.row
    return planned.best.row if planned.best else None


def _named(plan: Plan, entries: Sequence[_Entry]) -> list[_Entry]:
    rows = chief(plan, [each.row for each in entries])
    return [each for each in entries if each.row in rows or each.row not in plan.rows]


def _point(each: _Entry, best: Row | None, upwards: float, scale: float, number: str) -> Point:
    low, likely, high = each.found.fits
    kind = _BEST if each.row is best else _CONTROL if each.name == "none" else _OTHER
    cost = "" if each.row.overhead is None else format_percent(each.row.overhead)
    text = f"{format_bytes(likely)}, {format_seconds(each.found.time.likely_s) if each.found.time else cost}"
    note = (
        f"{each.name}: {text}, {cost}, {format_bytes(low)} to {format_bytes(high)}, {each.row.verdict or 'not judged'}"
    )
    across = (low / scale, high / scale) if number else None
    return Point(likely / scale, upwards, kind, number, each.name if number else "", text, note, across)


def _layers(found: "Optimal", plan: Plan) -> Picture:
    """Draw a row per stage of a plan by layer: a box per layer in the colour of its setting, chunk beside chunk."""
    assert found.row and found.row.prediction
    used = Counter(chain.from_iterable(chain.from_iterable(found.stages)))
    shown = sorted(used, key=lambda name: (name not in ("none", FULL), -used[name]))
    looks = dict(zip(shown, _SETTINGS, strict=False)) | {_MORE: look.GREY, "": "none"}
    widths = [max(map(len, column)) for column in zip(*found.stages, strict=True)]
    limit = f" of {plan.limits.usable_text} usable" if plan.limits.budget_bytes else ""
    rows = tuple(
        Bar(f"Stage {stage}", f"{format_bytes(need)}{limit}", (*_boxes(chunks, widths, looks),))
        for stage, (need, chunks) in enumerate(zip(_needs(found.row.prediction), found.stages, strict=True))
    )
    starts = accumulate((width + _GAP for width in widths[:-1]), initial=0.0)
    axis = Axis("Layers", {start: f"chunk {number}" for number, start in enumerate(starts)})
    caption = "Each box is a layer in the colour of its setting. At the right: the memory that the stage needs."
    chart = Bars(axis, {name: (colour, "") for name, colour in looks.items()}, rows)
    return Picture("plan_by_layer", "Recompute by layer", caption, chart)


def _boxes(
    chunks: Sequence[Sequence[str]], widths: Sequence[int], known: Collection[str]
) -> Iterator[tuple[str, float]]:
    """Yield the boxes of a stage, with a gap before each chunk but the first, so that chunks begin at one place."""
    gap = 0.0
    for settings, width in zip(chunks, widths, strict=True):
        yield from [("", gap)] * bool(gap)
        yield from ((setting if setting in known else _MORE, 1.0) for setting in settings)
        gap = width - len(settings) + _GAP


def _needs(found: Prediction) -> list[int]:
    """Return what torch's allocator needs, stage by stage."""
    return [max(stage.total, held.fits[1]) for stage, held in zip(found.stages, found.held, strict=True)]


def _stages(plan: Plan, chosen: Row | None) -> Picture:
    """Draw a stacked bar per stage of the setting to use, and the range of the peak at the fullest stage."""
    row = chosen or plan.recommended or plan.control or plan.predicted[0]
    found = row.prediction
    assert found
    low, _, high = found.fits
    unit, scale = memory_unit([high])
    limits, off = memory_limit([plan.limits], scale, high / scale)
    needs = _needs(found)
    rows = tuple(
        Bar(
            f"Stage {stage.pp_rank}",
            format_bytes(need),
            (*((part, getattr(stage, part) / scale) for part in _PARTS), (_REST, (need - stage.total) / scale)),
            (low / scale, high / scale) if need == max(needs) else None,
        )
        for stage, need in zip(found.stages, needs, strict=True)
    )
    parts = {part: (colour, "") for part, colour in (*_PARTS.items(), (_REST, look.GREY))}
    chart = Bars(Axis(f"Memory needed ({unit})"), parts, rows, limits)
    name = "the plan by layer" if chosen else row.label
    caption = (
        f"Each pipeline stage with {name}: the parts of its peak, and what torch's allocator needs beyond it. "
        "The line at the fullest stage is the range of what is needed."
    )
    return Picture("memory_stages", "Memory by stage and part", caption + off, chart)


def _step(plan: Plan, row: Row, step: StepHistory) -> Picture:
    """Draw memory of the fullest rank over one step, stacked by part and module, with reserved memory and the limit."""
    assert row.prediction
    moments = _moments(step)
    reserved = max(moment.reserved for _, moment in moments)
    unit, scale = memory_unit([reserved])
    limits, off = memory_limit([plan.limits], scale, reserved / scale)
    _, peak = max(moments, key=lambda each: each[1].allocated)
    known = f"reserved, {format_bytes(reserved)}"
    curves = [
        *_bands(moments, scale),
        Curve(known, tuple((at, each.reserved / scale) for at, each in moments), is_step=True),
    ]
    chart = Plane(
        Axis("Requests for memory, in order"),
        Axis(f"Memory ({unit})", from_zero=True),
        {group: (colour, "") for group, colour in _GROUPS.items()} | {known: (look.INK, "line")},
        curves=tuple(curves),
        upwards=limits,
    )
    caption = (
        f"Stage {row.prediction.worst.pp_rank} with {row.label}, the second step: peak {format_bytes(peak.allocated)}. "
        "Reserved: by torch's allocator. The axis counts requests, not time; repeated micro-batches are left out. "
        "What layers keep is split by the module whose recompute would free it; MTP layers and full recompute are not."
    )
    return Picture("memory_step", "Memory over one step", caption + off, chart)


def _moments(step: StepHistory) -> list[tuple[int, Moment]]:
    span, fullest = -(-(len(step.entries) - step.begin) // _MOST_MOMENTS), dict[int, tuple[int, Moment]]()
    for at, moment in enumerate(step.moments(), start=-step.begin):
        if at >= 0 and (at // span not in fullest or moment.allocated > fullest[at // span][1].allocated):
            fullest[at // span] = at, moment._replace(groups=dict(moment.groups))
    return sorted(fullest.values(), key=itemgetter(0))


def _bands(moments: Sequence[tuple[int, Moment]], scale: float) -> Iterator[Curve]:
    """Yield an area per group, each on top of the one before."""
    known, low = set[str]().union(*(moment.groups for _, moment in moments)), [0.0] * len(moments)
    for group, colour in _GROUPS.items():
        if group in known:
            high = [
                under + moment.groups.get(group, 0) / scale for under, (_, moment) in zip(low, moments, strict=True)
            ]
            places = tuple((at, value) for (at, _), value in zip(moments, high, strict=True))
            yield Curve(group, places, below=tuple(low), is_step=True, colour=colour)
            low = high
