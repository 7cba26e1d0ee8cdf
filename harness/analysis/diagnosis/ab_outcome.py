"""How the two cells of an A/B ended, and what follows for fragmentation where the allocator was varied."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.diagnosis.of_run import case_of_run
from harness.analysis.diagnosis.trial import allocator_trial
from harness.analysis.diagnosis.values import Case
from harness.analysis.statistics import median
from harness.records.sweeps import CellData, SweepData
from harness.units import format_bytes, format_percent, format_seconds

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
    change = _change(*cells.values()) if endings == [{"ok"}, {"ok"}] else ""
    told.append(f"A and B ended {'differently' if differs else 'alike'}{change}.")
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


def _change(a: Sequence[Case], b: Sequence[Case]) -> str:
    times, peaks = (_step_time(a), _step_time(b)), (_peak(a), _peak(b))
    told = []
    if times[0] and times[1]:
        told.append(f"{format_percent(times[1] / times[0] - 1)} step time")
    if peaks[0] and peaks[1]:
        told.append(f"{format_percent(peaks[1] / peaks[0] - 1)} peak")
    return f"; B against A: {', '.join(told)}" if told else ""


def _step_time(cases: Sequence[Case]) -> float | None:
    known = [case.step_time_s for case in cases if case.step_time_s is not None]
    return median(known) if known else None


def _peak(cases: Sequence[Case]) -> int | None:
    return max((case.peak_bytes for case in cases if case.peak_bytes is not None), default=None)
