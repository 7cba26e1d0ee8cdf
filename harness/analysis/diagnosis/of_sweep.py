"""A sweep to be diagnosed: how its runs ended, one line each for those that failed, and what an A/B came to."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.diagnosis.ab_outcome import AbOutcome, ab_outcome
from harness.analysis.diagnosis.of_run import case_of_run
from harness.records.store import RECORD
from harness.records.sweep import PlannedCell
from harness.records.sweeps import SweepData, run_dir_of

_ENDED = {"ok": "ended well", "oom": "out of memory", "failed": "failed", "interrupted": "interrupted"}
_AB_CELLS = 2
_LONGEST = 160


@dataclass(frozen=True, slots=True)
class FailedRun:
    """``oom_class`` and ``confidence``: by the record alone; None where memory was not it. ``told``: one line."""

    run_dir: Path
    cell: str
    status: str
    oom_class: str | None
    confidence: str | None
    rank: int | None
    told: str


@dataclass(frozen=True, slots=True)
class SweepOverview:
    """``failed``: all runs that did not end well. ``ab``: of two cells that differ in one thing."""

    sweep_dir: Path
    title: str
    counts: tuple[tuple[str, int], ...]
    failed: tuple[FailedRun, ...]
    ab: AbOutcome | None

    @property
    def is_conclusive(self) -> bool:
        """Whether anything can be said: an A/B of which one side did not run says nothing."""
        return bool(self.failed) or self.ab is None or self.ab.differs is not None


def overview_of(data: SweepData, killed: Sequence[tuple[Path, str, str]] = ()) -> SweepOverview:
    """From the records on disk. ``killed``: runs without a record, as folder, cell and what became of them."""
    failed, counts = [], Counter[str]()
    for cell in data.cells:
        for run_dir, record in zip(_committed(data, cell.planned.index), cell.runs, strict=True):
            counts[_ENDED[record.status]] += 1
            if record.status == "ok":
                continue
            case = case_of_run(record)
            verdict = case.verdict
            kind = f"{verdict.oom_class} ({verdict.confidence})" if case.has_oom else ""
            failed.append(
                FailedRun(
                    run_dir=run_dir,
                    cell=cell.planned.name,
                    status=_ENDED[record.status],
                    oom_class=verdict.oom_class if case.has_oom else None,
                    confidence=verdict.confidence if case.has_oom else None,
                    rank=case.failed.rank if case.failed else None,
                    told=(kind or record.failure or "no word of it").splitlines()[0][:_LONGEST],
                )
            )
    counts["without a record"] += len(killed)
    failed += [FailedRun(run_dir, cell, "no record", None, None, None, told) for run_dir, cell, told in killed]
    told_counts = tuple((name, count) for name, count in counts.items() if count)
    return SweepOverview(data.sweep_dir, data.plan.title, told_counts, tuple(failed), _ab(data))


def _committed(data: SweepData, cell: int) -> list[Path]:
    folders = (run_dir_of(data.sweep_dir, cell, repeat) for repeat in range(data.plan.repeats))
    return [folder for folder in folders if (folder / RECORD).is_file()]


def _ab(data: SweepData) -> AbOutcome | None:
    """Two cells that were to run and differ in one thing are an A/B, however they were asked for."""
    asked = [cell for cell in data.cells if isinstance(cell.planned, PlannedCell)]
    return ab_outcome(data) if len(asked) == len(data.cells) == _AB_CELLS and len(data.plan.axes) == 1 else None
