"""How the two cells of an A/B ended, and what follows for fragmentation where the allocator was varied."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.diagnosis.ab_noise import change_told
from harness.analysis.diagnosis.of_run import case_of_run
from harness.analysis.diagnosis.trial import allocator_trial
from harness.analysis.diagnosis.values import Case
from harness.analysis.statistics import median
from harness.analysis.sweep.judge import judge_sweep
from harness.records.sweeps import CellData, SweepData
from harness.spec.gpu import GPUS
from harness.units import format_bytes, format_seconds

_ENDED = {"ok": "ended well", "oom": "ran out of memory", "failed": "failed", "interrupted": "was interrupted"}


@dataclass(frozen=True, slots=True)
class AbOutcome:
    """``differs``: whether A and B ended differently; None where one of them did not run. ``confirmed``: as in a trial."""

    differs: bool | None
    confirmed: bool | None
    lines: tuple[str, ...]


def ab_outcome(data: SweepData) -> AbOutcome:
    """From the runs on disk; A is the control."""
    cells = {letter: [case_of_run(run) for run in cell.runs] for letter, cell in zip("AB", _cells(data), strict=False)}
    if len(cells) < 2 or not all(cells.values()):
        return AbOutcome(None, None, ("A/B: not both have run, so nothing can be said.",))
    told = [f"{letter} ({_name(data, letter)}): {_summary(cases)}" for letter, cases in cells.items()]
    endings = [frozenset(case.status for case in cases) for cases in cells.values()]
    differs = endings[0] != endings[1]
    told.append(f"A and B ended {'differently' if differs else 'alike'}.")
    if endings == [{"ok"}, {"ok"}] and (change := _change(data)):
        told.append(f"B against A: {change}.")
    trial = allocator_trial([case for cases in cells.values() for case in cases])
    if trial is not None:
        told.append(trial.told)
    return AbOutcome(differs, trial.confirmed if trial else None, tuple(told))


def _cells(data: SweepData) -> tuple[CellData, ...]:
    return tuple(sorted(data.cells, key=lambda cell: cell.planned.name != data.plan.control))[:2]


def _name(data: SweepData, letter: str) -> str:
    return _cells(data)["AB".index(letter)].planned.name


def _summary(cases: Sequence[Case]) -> str:
    counts = {status: sum(case.status == status for case in cases) for status in _ENDED}
    told = [f"{count} of {len(cases)} {_ENDED[status]}" for status, count in counts.items() if count]
    seconds, peak = _step_time(cases), _peak(cases)
    told += [f"{format_seconds(seconds)} a step"] if seconds is not None else []
    told += [f"peak {format_bytes(peak)}"] if peak is not None else []
    return ", ".join(told)


def _change(data: SweepData) -> str:
    """As the sweep's table has it."""
    verdict = judge_sweep(data)
    a, b = (verdict.cell(cell.planned.name) for cell in _cells(data))
    return change_told(a, b, GPUS[data.plan.gpu])


def _step_time(cases: Sequence[Case]) -> float | None:
    known = [case.step_time_s for case in cases if case.step_time_s is not None]
    return median(known) if known else None


def _peak(cases: Sequence[Case]) -> int | None:
    return max((case.peak_bytes for case in cases if case.peak_bytes is not None), default=None)
