"""Diagnoses a sweep or an A/B comparison."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from harness.diagnose.of_run import case_of_run
from harness.diagnose.stages import allocator_trial
from harness.diagnose.values import Case
from harness.experiment.gpu import GPUS, GpuType
from harness.judge.statistics import MIN_RUNS, TimeChange, median
from harness.records.run import RunRecord
from harness.records.store import RECORD
from harness.records.sweep import PlannedCell, SweepData, run_dir_of
from harness.sweep.judge import judge_sweep
from harness.sweep.values import CellVerdict
from harness.units import first_line, format_bytes, format_percent, format_seconds

_REPEAT = f"--repeats {MIN_RUNS} gives an interval"


def change_text(a: CellVerdict, b: CellVerdict, gpu: GpuType) -> str:
    """Compare time and memory of B with A, the control, and with the noise; empty if neither is known."""
    versus = b.vs_control
    if versus is None:
        return b.no_comparison and f"not compared: {b.no_comparison}"
    parts = []
    if versus.time is not None:
        # Over steps; with several runs, over their medians.
        steps = (cell.metrics.step_time_s if cell.metrics else None for cell in (a, b))
        spreads = [each.relative_spread if each else None for each in steps]
        parts.append(f"{format_percent(versus.time.fraction)} step time ({_time(versus.time, spreads, gpu)})")
    if versus.memory is not None:
        noise = f" (within the noise: equal runs differ by {format_bytes(versus.memory.noise_bytes)})"
        saved = versus.memory.saved_bytes
        more = f"{format_bytes(abs(saved))} {'less' if saved > 0 else 'more'} peak memory" if saved else "the same peak"
        parts.append(f"{more}{noise if saved and versus.memory.is_noise else ''}")
    return ", ".join(parts)


def _time(change: TimeChange, spreads: Iterable[float | None], gpu: GpuType) -> str:
    if change.interval is not None:
        low, high = (format_percent(end) for end in change.interval)
        side = "beyond the noise" if change.is_settled else "within the noise"
        return f"{side}: the 95 % interval is {low} to {high}"
    known = [(spread, "steps or runs of A or B vary by") for spread in spreads if spread is not None]
    known += [(gpu.timing_threshold, "equal runs on a CPU differ by up to")] if gpu.is_cpu else []
    if not known:
        return f"too few runs to separate it from noise: {_REPEAT}"
    noise, basis = max(known)
    if abs(change.fraction) <= noise:
        return f"within the noise: {basis} {noise * 100:.1f} %; {_REPEAT}"
    return f"more than the known noise: {basis} {noise * 100:.1f} %; {_REPEAT}"


_AB_ENDED = {"ok": "ended well", "oom": "ran out of memory", "failed": "failed", "interrupted": "was interrupted"}
_ENDED = {"ok": "ended well", "oom": "out of memory", "failed": "failed", "interrupted": "interrupted"}
_LONGEST = 160


@dataclass(frozen=True, slots=True)
class AbOutcome:
    """``differs``: whether A and B ended differently; None if one of them did not run. ``confirmed``: as in `Trial`."""

    differs: bool | None
    confirmed: bool | None
    lines: tuple[str, ...]


def ab_outcome(data: SweepData) -> AbOutcome:
    """Return how A, the control, and B ended, by the runs on disk."""
    cells = sorted(data.cells, key=lambda cell: cell.planned.name != data.plan.control)[:2]
    ended = [[case_of_run(run) for run in cell.runs] for cell in cells]
    if len(ended) < 2 or not all(ended):
        return AbOutcome(None, None, ("A/B: no conclusion, because A or B has not run.",))
    lines = [
        f"{letter} ({cell.planned.name}): {_summary(cases)}"
        for letter, cell, cases in zip("AB", cells, ended, strict=True)
    ]
    endings = [frozenset(case.status for case in cases) for cases in ended]
    differs = endings[0] != endings[1]
    lines.append(f"A and B ended {'differently' if differs else 'in the same way'}.")
    if endings == [{"ok"}, {"ok"}]:
        verdict = judge_sweep(data)
        a, b = (verdict.cell(cell.planned.name) for cell in cells)
        change = change_text(a, b, GPUS[data.plan.gpu])
        lines += [f"B compared with A: {change}."] if change else []
    trial = allocator_trial([case for cases in ended for case in cases])
    lines += [trial.text] if trial else []
    return AbOutcome(differs, trial.confirmed if trial else None, tuple(lines))


def _summary(cases: Sequence[Case]) -> str:
    counts: Counter[str] = Counter(case.status for case in cases)
    parts = [f"{counts[status]} of {len(cases)} {text}" for status, text in _AB_ENDED.items() if counts[status]]
    times = [case.step_time_s for case in cases if case.step_time_s is not None]
    peaks = [case.peak_bytes for case in cases if case.peak_bytes is not None]
    parts += [f"{format_seconds(median(times))} a step"] if times else []
    parts += [f"peak {format_bytes(max(peaks))}"] if peaks else []
    return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class FailedRun:
    """``oom_class`` and ``confidence``: from the record alone; None if memory was not the cause. ``summary``: one line."""

    run_dir: Path
    cell: str
    status: str
    oom_class: str | None
    confidence: str | None
    rank: int | None
    summary: str

    @property
    def command(self) -> str:
        """Return the command that diagnoses it, to paste."""
        return f"mbr-perf diagnose {quote(str(self.run_dir))}"

    @property
    def line(self) -> str:
        """Return its cell, how it ended and the summary."""
        rank = f" on rank {self.rank}" if self.rank is not None else ""
        return f"{self.cell}: {self.status}{rank}: {self.summary}"


@dataclass(frozen=True, slots=True)
class SweepOverview:
    """``failed``: all runs that did not end well. ``ab``: set for two cells that differ in one setting."""

    sweep_dir: Path
    title: str
    counts: tuple[tuple[str, int], ...]
    failed: tuple[FailedRun, ...]
    ab: AbOutcome | None

    @property
    def is_conclusive(self) -> bool:
        """Return False for an A/B with a side that has not run."""
        return bool(self.failed) or self.ab is None or self.ab.differs is not None


def overview_of(data: SweepData, killed: Sequence[tuple[Path, str, str]] = ()) -> SweepOverview:
    """Return how the runs ended. ``killed``: runs without a record, as folder, cell and how they ended."""
    failed, counts = [], Counter[str]()
    for cell in data.cells:
        folders = (run_dir_of(data.sweep_dir, cell.planned.index, repeat) for repeat in range(data.plan.repeats))
        committed = (folder for folder in folders if (folder / RECORD).is_file())
        for run_dir, record in zip(committed, cell.runs, strict=True):
            counts[_ENDED[record.status]] += 1
            if record.status != "ok":
                failed.append(_failed(run_dir, cell.planned.name, record))
    counts["without a record"] += len(killed)
    failed += [FailedRun(run_dir, cell, "no record", None, None, None, end) for run_dir, cell, end in killed]
    known_counts = tuple((name, count) for name, count in counts.items() if count)
    # Two planned cells that differ in one setting are an A/B, also without --ab.
    asked = [cell for cell in data.cells if isinstance(cell.planned, PlannedCell)]
    is_ab = len(asked) == len(data.cells) == 2 and len(data.plan.axes) == 1
    return SweepOverview(
        data.sweep_dir, data.plan.title, known_counts, tuple(failed), ab_outcome(data) if is_ab else None
    )


def _failed(run_dir: Path, cell: str, record: RunRecord) -> FailedRun:
    case = case_of_run(record)
    oom = case.verdict if case.has_oom else None
    summary = f"{oom.oom_class} ({oom.confidence})" if oom else record.failure or "no message"
    return FailedRun(
        run_dir=run_dir,
        cell=cell,
        status=_ENDED[record.status],
        oom_class=oom.oom_class if oom else None,
        confidence=oom.confidence if oom else None,
        rank=case.failed.rank if case.failed else None,
        summary=first_line(summary)[:_LONGEST],
    )
