"""Collects the remarks about the cells of a sweep, each once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.judge.statistics import MIN_RUNS
from harness.measure.values import NotPredicted
from harness.records.metrics import BY_NAME
from harness.show.figures import ABSENT, change, figure
from harness.show.page import Line, answer_line
from harness.sweep.cell import oom_text
from harness.sweep.values import CellGolden, CellVerdict, SweepVerdict, Versus, room_text
from harness.units import counted, format_bytes, format_percent, grouped, sentence

_MANY = 4
_MOST_BAD = 6
_NOT_STARTED = ("pruned", "illegal")
_NO_FIGURES = ("failed", "interrupted", *_NOT_STARTED)


@dataclass(frozen=True)
class Remark:
    """One sentence about one or several cells; ``is_bad``: the reader should look at it.

    ``not_started``: ``pruned`` or ``illegal`` where it says so of them; else an empty text.
    """

    text: str
    is_bad: bool = False
    not_started: str = ""
    cells: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """Return ``none; core_attn,mlp: the remark``. Of four or more cells, it names the first two."""
        named = self.cells if len(self.cells) < _MANY else (*self.cells[:2], f"and {len(self.cells) - 2} more")
        return f"{'; '.join(named)}: {self.text}"


def bad_lines(verdict: SweepVerdict) -> tuple[list[str], list[str]]:
    """Return the remarks to look at, those of cells that started first, in a few lines; and all that these leave out.

    Cells with the same remark share it. Where they are many, pruned cells share a line, and illegal ones.
    """
    shared = grouped((remark, cell.name) for cell in verdict.cells for remark in _about(cell))
    found = [replace(remark, cells=tuple(cells)) for remark, cells in shared.items()]
    shown = sorted((remark for remark in found if remark.is_bad), key=lambda remark: remark.not_started)
    num_left = 0
    if len(shown) > _MOST_BAD:
        by_status = grouped((remark.not_started, remark) for remark in shown)
        started = by_status.pop("", [])
        first = started[: _MOST_BAD - len(by_status)]
        num_left = len(started) - len(first)
        shown = [*first, *(_together(status, each) for status, each in by_status.items())]
    lines = [*(remark.line for remark in shown), *[f"{counted(num_left, 'more reason')}: -v"] * bool(num_left)]
    return lines, [remark.line for remark in found if remark not in shown]


def _together(status: str, found: Sequence[Remark]) -> Remark:
    """Return one remark on cells that did not start; with their reason if they share it."""
    cells = tuple(name for remark in found for name in remark.cells)
    return found[0] if len(found) == 1 else Remark(f"{status}, {len(found)} reasons: -v", cells=cells)


def headline(verdict: SweepVerdict) -> str:
    """Return the number of cells by status, in one line."""
    counts = [(status, verdict.counted(status)) for status in dict.fromkeys(cell.status for cell in verdict.cells)]
    text = ", ".join(f"{n} {status.replace('_', ' ').replace('oom', 'OOM')}" for status, n in counts)
    repeats = f", {verdict.plan.repeats} repeats each" if verdict.plan.repeats > 1 else ""
    cells = "1 cell" if len(verdict.cells) == 1 else f"{len(verdict.cells)} cells"
    return f"{cells}{repeats}: {text}"


def closing_lines(verdict: SweepVerdict) -> tuple[str, ...]:
    """Return lines on memory, the computation of figures, the Pareto set and the recommendation."""
    unknown = () if verdict.limits else ("Memory: no limit is known on this machine, so every cell that ran fits",)
    members = "; ".join(verdict.pareto) or "empty"
    return (
        *unknown,
        *_basis(verdict),
        f"Pareto set, the cells that no other cell beats in time without using more memory: {members}",
        verdict.recommendation.text,
    )


def answer(verdict: SweepVerdict) -> Line:
    """Return ``Use mlp: the fastest of 3 settings that fit, +20.1 % time (+18.0 to +22.1 %), ... Control none``."""
    best = verdict.recommendation
    if verdict.num_runs_missing or best.cell is None:
        prefix = "Unfinished: " if verdict.num_runs_missing else "No recommendation: "
        return answer_line(f"{prefix}{best.text[:1].lower()}{best.text[1:]}")
    control = f"Control {verdict.reference or verdict.plan.control}"
    if verdict.reference_why:
        control = f"Compared with {verdict.reference}: {verdict.reference_why}"
        control = sentence(verdict.reference_why) if best.cell == verdict.reference else control
    repeats = f", {verdict.plan.repeats} repeats" if verdict.plan.repeats > 1 else ""
    return answer_line(
        f"Use {best.cell}: {_among(verdict)}",
        *_changes(cell := verdict.cell(best.cell)),
        f", peak {format_bytes(cell.peak_bytes or 0)}",
        f". {control}{repeats}.",
    )


def _among(verdict: SweepVerdict) -> str:
    best = verdict.recommendation
    if best.tie:
        return best.tie + (" and take equal memory" if best.is_equal_in_memory else ", and it takes the least memory")
    fit = room_text(verdict.limits) if verdict.limits else "ran"
    num_fit = sum(each.is_comparable and each.fits is not False for each in verdict.cells)
    setting = "judged setting" if any(each.doubts for each in verdict.cells) else "setting"
    one = f"the only {setting} that {fit.replace('fit ', 'fits ')}"
    return one if num_fit == 1 else f"the fastest of {num_fit} {setting}s that {fit}"


def _changes(cell: CellVerdict) -> Iterable[str]:
    saved = cell.versus.memory_saved_bytes
    if cell.versus.time_change is not None:
        yield f", {change_text(cell)} time"
    if saved is not None:
        yield f", {'saves' if saved >= 0 else 'uses'} {format_bytes(abs(saved))}{' more' * (saved < 0)}"


def change_text(cell: CellVerdict, *, interval: bool = True) -> str:
    """Return ``+20.1 % (+18.0 to +22.1 %)``; absent without a comparison."""
    versus = cell.versus
    if versus.time_change is None:
        return ABSENT
    if versus.time_change_interval is None or not interval:
        return format_percent(versus.time_change)
    low, high = map(format_percent, versus.time_change_interval)
    return f"{format_percent(versus.time_change)} ({low.removesuffix(' %')} to {high})"


def _basis(verdict: SweepVerdict) -> Iterable[str]:
    timed = [cell.versus for cell in verdict.cells if cell.versus.time_change is not None]
    rescaled = [cell.name for cell in verdict.cells if cell.versus.time_rescaled]
    against = "reference" if verdict.reference_why else "control"
    if verdict.reference_why:
        yield f"Compared with {verdict.reference}, the fastest cell that ran, because {verdict.reference_why}"
    if rescaled:
        yield f"Time is scaled to the tokens per GPU and step of the {against} for: {'; '.join(rescaled)}"
    if any(cell.speed is not None and cell.speed.num_runs > 1 for cell in verdict.cells):
        yield "Step: the mean over repeats of each run's median step"
    if timed and all(versus.time_change_interval for versus in timed):
        yield "Time change: difference of the means over repeats, 95 % interval by Welch's t"
    elif timed:
        yield f"Time change: an interval needs {MIN_RUNS} runs of each cell (--repeats {MIN_RUNS}, or {MIN_RUNS} logs)"


def _about(cell: CellVerdict) -> Iterable[Remark]:
    if cell.oom is not None:
        yield Remark(oom_text(cell.oom), is_bad=True)
    elif cell.status != "ok":
        text = ": ".join(filter(None, (cell.status.replace("_", " "), cell.reason)))
        not_started = cell.status if cell.status in _NOT_STARTED else ""
        yield Remark(text, cell.status in _NO_FIGURES, not_started)
    elif cell.reason:
        yield Remark(cell.reason)
    for doubt in cell.doubts:
        yield Remark(f"not judged: {doubt}", is_bad=True)
    if cell.not_compared and not cell.is_reference and cell.vs_reference is None:
        yield Remark(f"not compared: {cell.not_compared}", is_bad=True)
    yield from _versus(cell.versus)
    if isinstance(cell.prediction, NotPredicted):
        yield Remark(f"not predicted: {cell.prediction.reason}")
    if cell.golden is not None:
        yield Remark(_golden(cell.golden), cell.golden.outcome == "regression")


def _versus(versus: Versus) -> Iterable[Remark]:
    if versus.time_change is not None and versus.time_change_interval is None:
        yield Remark(f"time {format_percent(versus.time_change)} from {versus.basis}")
    if versus.time_change is not None and versus.ms_per_gib_saved_undefined and versus.memory_saved_bytes is not None:
        yield Remark(f"ms per GiB saved is undefined: {versus.ms_per_gib_saved_undefined}")


def _golden(golden: CellGolden) -> str:
    gated = [f for f in golden.comparison if f.change is not None]
    text = ", ".join(f"{BY_NAME[f.metric].title} {figure(BY_NAME[f.metric], f.current)} ({change(f)})" for f in gated)
    name = "/".join((golden.path or "").removesuffix(".json").split("/")[-2:])  # as `golden list` prints it
    return f"compared with golden {name}: {golden.outcome.value}{f': {text}' if text else ''}"
