"""Says what a judged sweep shows: line 1, and the remarks about its cells, each once."""

from collections.abc import Iterable

from harness.failures.verdict import class_name
from harness.judge.statistics import MIN_RUNS
from harness.measure.values import NotPredicted
from harness.records.metrics import BY_NAME
from harness.show.figures import change, figure
from harness.show.page import Line, answer_line
from harness.sweep.values import CellGolden, CellVerdict, SweepVerdict, Versus
from harness.units import counted, format_bytes, format_percent, grouped

_MANY = 4
_MOST_SHOWN = 6
# How much a remark matters: a cell ended badly or is in doubt, never started, or all is well.
_BAD, _NOT_STARTED, _DETAIL = range(3)
_WEIGHTS = {"oom": _BAD, "failed": _BAD, "interrupted": _BAD, "pruned": _NOT_STARTED, "illegal": _NOT_STARTED}


def remarks(verdict: SweepVerdict) -> tuple[list[str], list[str]]:
    """Return the few remarks that the reader should see, the worst first, and all others. Cells share equal ones."""
    shared = grouped((remark, cell.name) for cell in verdict.cells for remark in _about(cell, verdict.reference))
    found = [(weight, f"{_named(cells)}: {text}") for (weight, text), cells in shared.items()]
    found.sort(key=lambda each: each[0])
    num_shown = min(_MOST_SHOWN, sum(weight < _DETAIL for weight, _ in found))
    lines = [line for _, line in found]
    return lines[:num_shown], lines[num_shown:]


def _named(cells: list[str]) -> str:
    return "; ".join(cells if len(cells) < _MANY else (*cells[:2], f"and {len(cells) - 2} more"))


def headline(verdict: SweepVerdict) -> str:
    """Return the number of cells by status, in one line."""
    counts = {status: verdict.counted(status) for status in dict.fromkeys(cell.status for cell in verdict.cells)}
    text = ", ".join(f"{n} {status.replace('_', ' ').replace('oom', 'OOM')}" for status, n in counts.items())
    return f"{counted(len(verdict.cells), 'cell')}: {text}; repeats: {verdict.plan.repeats}"


def closing_lines(verdict: SweepVerdict) -> Iterable[str]:
    """Yield lines on the computation of figures, the Pareto set, and settings that are equally fast."""
    if rescaled := [cell.name for cell in verdict.cells if cell.versus.time_rescaled]:
        yield f"Time is scaled to the tokens per GPU and step of the control for: {'; '.join(rescaled)}"
    yield (
        "Step: the mean over repeats of each run's median step. The 95 % interval of its change (Welch's t) needs "
        f"{MIN_RUNS} runs of each cell (--repeats {MIN_RUNS})"
    )
    members = "; ".join(verdict.pareto) or "empty"
    yield f"Pareto set, the cells that no other cell beats in time without using more memory: {members}"
    if verdict.recommendation.noise:
        yield f"Equally fast: {'; '.join(verdict.recommendation.equally_fast)}; {verdict.recommendation.noise}"


def answer(verdict: SweepVerdict) -> Line:
    """Return ``Use mlp: the fastest of 3 settings that fit into 73 GiB, +20.1 % time (+18.0 to +22.1 %) ...``."""
    best, control = verdict.recommendation, verdict.cell(verdict.plan.control)
    if verdict.num_runs_missing or best.cell is None:
        return answer_line(f"{'Unfinished' if verdict.num_runs_missing else 'No recommendation'}: {best.why}")
    ended = "" if control.state == "ok" else f" ({control.state})"
    repeats = f", {verdict.plan.repeats} repeats" if verdict.plan.repeats > 1 else ""
    return answer_line(
        f"Use {best.cell}: {best.why}",
        *_changes(cell := verdict.cell(best.cell)),
        f", peak {format_bytes(cell.peak_bytes or 0)}",
        f". Control {control.name}{ended}{repeats}.",
    )


def _changes(cell: CellVerdict) -> Iterable[str]:
    versus = cell.vs_control or Versus()  # line 1 names no other cell
    saved = versus.memory_saved_bytes
    if versus.time_change is not None:
        interval = f" ({interval_text(versus.time_change_interval)})" if versus.time_change_interval else ""
        yield f", {format_percent(versus.time_change)}{interval} time"
    if saved is not None:
        yield f", {'saves' if saved >= 0 else 'uses'} {format_bytes(abs(saved))}{' more' * (saved < 0)}"


def interval_text(interval: tuple[float, float]) -> str:
    """Return ``+2.0 to +4.2 %``."""
    low, high = map(format_percent, interval)
    return f"{low.removesuffix(' %')} to {high}"


def _about(cell: CellVerdict, reference: str | None) -> Iterable[tuple[int, str]]:
    if cell.reason:
        text = cell.reason if cell.status == "ok" else f"{cell.state}: {cell.reason}"
        if oom := cell.out_of_memory:
            where = cell.reason.partition(": ")[0]  # behind it, the allocator's own words
            text = f"{where}: {class_name(oom.oom_class)} ({oom.confidence}): {oom.reason}"
        yield _WEIGHTS.get(cell.status, _DETAIL), text
    for doubt in cell.doubts:
        yield _BAD, f"not judged: {doubt}"
    if cell.not_compared and not reference:
        yield _BAD, f"not compared: {cell.not_compared}"
    if isinstance(cell.prediction, NotPredicted):
        yield _DETAIL, f"not predicted: {cell.prediction.reason}"
    if cell.golden is not None:
        yield _BAD if cell.golden.outcome == "regression" else _DETAIL, _golden(cell.golden)


def _golden(golden: CellGolden) -> str:
    gated = [f for f in golden.comparison if f.change is not None]
    text = ", ".join(f"{BY_NAME[f.metric].title} {figure(BY_NAME[f.metric], f.current)} ({change(f)})" for f in gated)
    name = "/".join((golden.path or "").removesuffix(".json").split("/")[-2:])  # as `golden list` prints it
    return f"compared with golden {name}: {golden.outcome.value}{f': {text}' if text else ''}"
