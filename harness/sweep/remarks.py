"""Collects the remarks about the cells of a sweep, each once."""

from collections.abc import Iterable
from dataclasses import dataclass

from harness.judge.gate import Comparison
from harness.judge.statistics import MIN_RUNS
from harness.records.metrics import BY_NAME
from harness.records.redact import redact_shapes
from harness.show.figures import capacities_text, change, figure
from harness.sweep.cell import oom_text
from harness.sweep.values import CellVerdict, SweepVerdict
from harness.units import format_bytes, format_percent, grouped

_MANY = 4


@dataclass(frozen=True)
class Remark:
    """One sentence about one or several cells; ``is_bad``: the reader should look at it."""

    cells: tuple[str, ...]
    text: str
    is_bad: bool = False

    @property
    def line(self) -> str:
        """Return ``none; core_attn,mlp: the remark``. Of four or more cells, it names the first two."""
        named = self.cells if len(self.cells) < _MANY else (*self.cells[:2], f"and {len(self.cells) - 2} more")
        return f"{'; '.join(named)}: {self.text}"


def remarks(verdict: SweepVerdict) -> tuple[Remark, ...]:
    """Say why cells are not ok, their doubts and what is missing. Cells with the same remark share it."""
    shared = grouped((remark, cell.name) for cell in verdict.cells for remark in _about(cell))
    return tuple(Remark(tuple(cells), text, is_bad) for (text, is_bad), cells in shared.items())


def headline(verdict: SweepVerdict) -> str:
    """Return the number of cells by status, in one line."""
    counts = [(status, verdict.counted(status)) for status in dict.fromkeys(cell.status for cell in verdict.cells)]
    text = ", ".join(f"{n} {status.replace('_', ' ').replace('oom', 'OOM')}" for status, n in counts)
    repeats = f", {verdict.plan.repeats} repeats each" if verdict.plan.repeats > 1 else ""
    cells = "1 cell" if len(verdict.cells) == 1 else f"{len(verdict.cells)} cells"
    return f"{cells}{repeats}: {text}"


def closing_lines(verdict: SweepVerdict) -> tuple[str, ...]:
    """Return lines on memory, the computation of figures, the Pareto set and the recommendation."""
    memory = (
        f"Memory per rank: differs between cells, {capacities_text(verdict.capacities)}; {verdict.plan.margin * 100:g} "
        "% of it must stay free"
        if len(verdict.capacities) > 1
        else f"Memory: {format_bytes(verdict.plan.capacity_bytes)} per rank; keep {verdict.plan.margin * 100:g} % free"
        if verdict.plan.capacity_bytes is not None
        else "Memory: no limit is known on this machine, so every cell that ran fits"
    )
    members = "; ".join(verdict.pareto)
    front = (
        f"Pareto set (P), the cells that no other cell beats in time without using more memory: {members}"
        if members
        else "Pareto set: empty"
    )
    return (memory, *_basis(verdict), front, _answer(verdict))


def _answer(verdict: SweepVerdict) -> str:
    use, why = verdict.recommendation.cell, verdict.recommendation.why
    if verdict.num_due:
        return f"Unfinished, so no recommendation yet: {why}"
    if use and verdict.recommendation.tie:
        return f"{verdict.recommendation.tie}. By memory: use (*) {use}. {why}"
    return f"Use (*) {use}. {why}" if use else f"No recommendation. {why}"


def _basis(verdict: SweepVerdict) -> Iterable[str]:
    changes = [cell.versus.time for cell in verdict.cells if cell.versus and cell.versus.time]
    rescaled = [cell.name for cell in verdict.cells if cell.versus and cell.versus.rescaled]
    against = "reference" if verdict.reference_why else "control"
    if verdict.reference_why:
        yield f"Compared with {verdict.reference}, the fastest cell that ran, because {verdict.reference_why}"
    if rescaled:
        yield f"Time is scaled to the tokens per GPU and step of the {against} for: {'; '.join(rescaled)}"
    if verdict.has_repeats:
        yield "Mean step: the mean over repeats of each run's median step, as in TFLOP/s/GPU, Pareto set and pictures"
    if not changes:
        return
    if all(time.interval for time in changes):
        yield f"Time vs {against}: difference of the means over repeats, 95 % interval by Welch's t"
    elif verdict.plan.repeats >= MIN_RUNS:
        yield f"Time vs {against}: cells with fewer than {MIN_RUNS} runs have no interval; the spreads are below"
    else:
        how = f"--repeats {MIN_RUNS}, or {MIN_RUNS} logs of each setting"
        yield f"Time vs {against}: intervals need {MIN_RUNS} runs of each cell ({how}); the spreads are below"


def _about(cell: CellVerdict) -> Iterable[tuple[str, bool]]:
    if cell.oom is not None:
        yield oom_text(cell.oom), True
    elif cell.status != "ok":
        yield f"{cell.status.replace('_', ' ')}: {cell.reason}" if cell.reason else cell.status, cell.status == "failed"
    elif cell.reason:
        yield cell.reason, False
    for doubt in cell.doubts:
        yield f"not judged: {doubt}", True
    if cell.no_comparison and not cell.is_reference and cell.vs_reference is None:
        yield f"not compared: {cell.no_comparison}", True
    yield from _versus(cell)
    if cell.predicted is None and cell.no_prediction:
        yield f"not predicted: {cell.no_prediction}", False
    if cell.golden is not None:
        yield _golden(cell.golden), cell.golden.outcome == "regression"


def _versus(cell: CellVerdict) -> Iterable[tuple[str, bool]]:
    versus = cell.versus
    if versus is None:
        return
    if versus.time is not None and versus.time.interval is None:
        yield f"time {format_percent(versus.time.fraction)} from {versus.time.basis}", False
    if versus.trade.undefined and versus.time and versus.memory:
        yield f"ms per GiB saved is undefined: {versus.trade.undefined}", False


def _golden(comparison: Comparison) -> str:
    gated = [f for f in comparison.findings if f.change is not None]
    text = ", ".join(f"{BY_NAME[f.metric].title} {figure(BY_NAME[f.metric], f.current)} ({change(f)})" for f in gated)
    golden = redact_shapes(comparison.golden_path or "")
    return f"compared with golden {golden}: {comparison.outcome.value}{f': {text}' if text else ''}"
