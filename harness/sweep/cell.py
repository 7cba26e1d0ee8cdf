"""Judges one cell of a sweep: against the control, its prediction and its golden."""

from collections.abc import Sequence

from harness.experiment.experiment import ExperimentSpec
from harness.failures.of_run import oom_of_run
from harness.judge.compare import compare_runs
from harness.judge.derive import combine, derive
from harness.judge.gate import Comparison
from harness.judge.likeness import is_for
from harness.judge.plausible import doubts_of
from harness.judge.readings import allocated, worst_rank
from harness.judge.saving import another_machine, memory_saving
from harness.judge.statistics import time_change
from harness.measure.prediction import limits_for
from harness.measure.values import NotPredicted, OutOfMemory, error_of
from harness.records.gating import GateOptions
from harness.records.goldens import find_golden
from harness.records.metrics import Metrics, speed_of
from harness.records.run import RunRecord
from harness.records.sweep import CellData
from harness.sweep.values import CellPrediction, CellStatus, CellVerdict, MeasuredCell, Versus, trade_off
from harness.units import first_line

# A cell that ran out of memory once is not reliable, whatever its other repeats did.
_WORST_FIRST: tuple[CellStatus, ...] = ("oom", "failed")


def status_of(cell: CellData) -> tuple[CellStatus, str]:
    """Return status and reason. Interrupted runs count only if a cell has no others."""
    if not cell.runs:
        return ("not_run" if cell.fate == "run" else cell.fate), cell.reason
    good = sum(run.status == "ok" for run in cell.runs)
    for status in _WORST_FIRST:
        if bad := next((run for run in cell.runs if run.status == status), None):
            why = first_line(bad.failure, "no failure recorded")
            return status, f"{why} ({good} of {len(cell.runs)} runs ended well)" if good else why
    if good:
        return "ok", cell.reason
    return "interrupted", cell.reason or "interrupted before its steps were done"


def oom_of(runs: Sequence[RunRecord]) -> tuple[OutOfMemory | None, int | None]:
    """Return why the first run that ran out of memory did, and the allocated peak of its worst rank until then."""
    run = next((run for run in runs if run.status == "oom"), None)
    if run is None:
        return None, None
    found, rank, peak = oom_of_run(run), run.first_oom, worst_rank(run.ranks, run.spec.num_gpus, allocated)
    return OutOfMemory.of(found, rank=rank.rank) if found and rank else None, peak.value if peak else None


# A cell without these figures cannot be compared; a problem of another metric does not matter here.
_TIME, _MEMORY = "step_time_s", "peak_allocated_bytes"


def measured(cell: CellData, reference: ExperimentSpec | None, first: RunRecord | None) -> MeasuredCell:
    """Return a cell's figures, for the tokens of ``reference``. ``first``: the run whose machine all must have."""
    status, reason = status_of(cell)
    runs = tuple(run for run in cell.runs if run.status == "ok")
    each = [derive(run) for run in runs]
    suspect = (f"suspect: {why}" for run, own in zip(runs, each, strict=True) for why in doubts_of(run, own))
    metrics = combine(each) if each else None
    problems = (metrics.problems.get(name) for name in (_TIME, _MEMORY)) if metrics else ()
    return MeasuredCell(
        data=cell,
        status=status,
        reason=reason,
        runs=runs,
        metrics=metrics,
        speed=speed_of(each, _tokens_per_gpu(runs[0].spec)) if runs else None,
        costs_s=_costs(runs, each, reference),
        doubts=tuple(dict.fromkeys(doubt for doubt in (*suspect, *problems, another_machine(runs, first)) if doubt)),
    )


def judged(
    cell: MeasuredCell, control: MeasuredCell, reference: MeasuredCell | None, margin: float, gate: GateOptions
) -> CellVerdict:
    """Return the verdict of a cell, without the parts that need the other cells. ``gate``: for goldens.

    ``reference``: the cell that stands in for a control that has no figures and gets none; None where it has some.
    """
    is_control = cell.name == control.name
    obstacle = no_comparison(control) if cell.status == "ok" and not is_control else ""
    versus = None if is_control or obstacle else _versus(cell, control)
    oom, peak_bytes = oom_of(cell.data.runs)
    return CellVerdict.of(
        cell,
        num_runs=len(cell.runs),
        is_control=is_control,
        fits=_fits(cell, margin),
        out_of_memory=oom,
        oom_peak_bytes=peak_bytes,
        vs_control=versus,
        vs_reference=_versus(cell, reference) if reference and reference.name != cell.name else None,
        not_compared=obstacle,
        prediction=_prediction(cell, control, versus),
        compared=_golden(cell.runs, gate),
    )


def _costs(runs: Sequence[RunRecord], each: Sequence[Metrics], reference: ExperimentSpec | None) -> tuple[float, ...]:
    """Return each run's seconds for the control's tokens per GPU and step; empty unless all runs have a time."""
    costs = [
        metrics.step_time_s.median * (_tokens_per_gpu(reference or run.spec) / _tokens_per_gpu(run.spec))
        for run, metrics in zip(runs, each, strict=True)
        if metrics.step_time_s
    ]
    return tuple(costs) if len(costs) == len(runs) else ()


def _tokens_per_gpu(spec: ExperimentSpec) -> float:
    return spec.tokens_per_step / spec.num_gpus


_ENDED: dict[CellStatus, str] = {
    "oom": "ran out of memory",
    "failed": "failed",
    "pruned": "was pruned",
    "skipped_inert": "was skipped as inert",
    "illegal": "is illegal",
    "not_run": "was not run",
    "interrupted": "was interrupted",
}


def no_comparison(control: MeasuredCell) -> str:
    """Say why no cell is compared with the control; empty if cells are."""
    doubt = f"is in doubt: {control.doubts[0]}" if control.doubts else ""
    why = _ENDED.get(control.status, doubt)
    return f"the control {control.name} {why}" if why else ""


def _versus(cell: MeasuredCell, control: MeasuredCell) -> Versus | None:
    if cell.status != "ok" or cell.metrics is None or control.metrics is None:
        return None
    time = None
    if cell.costs_s and control.costs_s and _TIME not in cell.metrics.problems:
        time = time_change(cell.costs_s, control.costs_s)
    memory = memory_saving((cell.runs, cell.metrics), (control.runs, control.metrics))
    price, interval = trade_off(time, memory)
    return Versus.of(
        time=time,
        memory=memory,
        ms_per_gib_saved=price,
        ms_per_gib_saved_interval=interval,
        time_rescaled=_tokens_per_gpu(cell.runs[0].spec) != _tokens_per_gpu(control.runs[0].spec),
    )


def _fits(cell: MeasuredCell, margin: float) -> bool | None:
    """Return whether tensors keep what may be used, and torch's allocator never had to free its cache."""
    peak = cell.metrics.peak_allocated_bytes if cell.metrics else None
    if cell.status != "ok":
        return False if cell.status in ("oom", "pruned") else None
    budget = limits_for(cell.runs[0].spec, margin).budget_bytes if cell.runs else None
    if budget is None or peak is None:
        return None
    retried = any(rank.memory and rank.memory.num_alloc_retries for run in cell.runs for rank in run.ranks)
    return peak.value <= budget and not retried


def _prediction(
    cell: MeasuredCell, control: MeasuredCell, versus: Versus | None
) -> CellPrediction | NotPredicted | None:
    record = cell.prediction
    if record is None:
        reasons = (cell.planned.no_prediction, *(run.no_prediction for run in cell.data.runs))
        return next((NotPredicted(reason=reason) for reason in reasons if reason), None)
    seconds = cell.speed.step_time_s if cell.speed else None
    return CellPrediction.beside(
        record,
        cell.metrics if cell.status == "ok" else None,
        measured_step_time_s=seconds,
        step_time_error=error_of(record.step_time_s, seconds),
        overhead=_predicted_overhead(cell, control) if cell.name != control.name else None,
        measured_overhead=versus.time_change if versus else None,
    )


def _predicted_overhead(cell: MeasuredCell, control: MeasuredCell) -> float | None:
    """Return the overhead for the same tokens per GPU, as measured costs are; by FLOPs if no seconds are predicted."""
    ours, theirs = cell.prediction, control.prediction
    spec, reference = cell.spec, control.spec
    if ours is None or theirs is None or spec is None or reference is None:
        return None
    if ours.step_time_s is not None and theirs.step_time_s is not None:
        tokens = _tokens_per_gpu(reference) / _tokens_per_gpu(spec)
        return ours.step_time_s * tokens / theirs.step_time_s - 1
    work, before = ours.model_flops + ours.recompute_flops, theirs.model_flops + theirs.recompute_flops
    return work / spec.tokens_per_step / (before / reference.tokens_per_step) - 1


def _golden(runs: tuple[RunRecord, ...], gate: GateOptions) -> Comparison | None:
    """Compare with the golden of the cell's settings; None without one, or if the named file is for other settings."""
    if not runs:
        return None
    search = find_golden(runs[0].spec, gate.golden_values_path, runs[0].sources)
    if search.golden is None:
        return None
    if gate.names_one_golden and not is_for(search.golden, runs[0], gate.accept_differences):
        return None
    return compare_runs(runs, search, gate)[1]
