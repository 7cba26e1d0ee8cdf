"""Compares machines, and computes the memory that a setting saves."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.judge import readings
from harness.judge.coverage import measured_device
from harness.judge.gate import default_thresholds
from harness.judge.statistics import MIN_RUNS
from harness.records.metrics import Metrics, Peak
from harness.records.rank import RankRecord
from harness.records.run import RunRecord
from harness.records.sweep import CellData, SweepData
from harness.units import MIB

# torch's caching allocator takes small blocks in segments of 2 MiB. A smaller difference is rounding.
_GPU_NOISE_BYTES = 2 * MIB
# Repeats on a CPU differ by some KiB, even if three of them happen to agree.
_CPU_NOISE_BYTES = MIB // 16


@dataclass(frozen=True)
class RankSaving:
    """Allocated bytes of a rank: control minus cell; negative if the cell uses more."""

    rank: int
    stage: int
    saved_bytes: int


@dataclass(frozen=True)
class MemorySaving:
    """Control minus cell, bytes, worst ranks. ``ranks``: empty if unlike. ``noise_bytes``: between identical runs."""

    saved_bytes: int
    noise_bytes: int
    ranks: tuple[RankSaving, ...]
    saved_by_metric: dict[str, int]

    @property
    def is_noise(self) -> bool:
        return abs(self.saved_bytes) <= self.noise_bytes


def memory_saving(
    cell: tuple[Sequence[RunRecord], Metrics], control: tuple[Sequence[RunRecord], Metrics]
) -> MemorySaving | None:
    """Return the saving; None if a side lacks a rank's allocated peak."""
    (runs, metrics), (control_runs, control_metrics) = cell, control
    ours, theirs = metrics.peak_allocated_bytes, control_metrics.peak_allocated_bytes
    if ours is None or theirs is None:
        return None
    if ours.missing_ranks or theirs.missing_ranks:
        return None
    return MemorySaving(
        saved_bytes=theirs.value - ours.value,
        noise_bytes=max(_noise(runs, ours), _noise(control_runs, theirs)),
        ranks=_by_rank(runs, control_runs),
        saved_by_metric={
            name: there.value - here.value
            for name, here in metrics.peaks.items()
            if here is not None and (there := control_metrics.peaks[name]) is not None
        },
    )


def highest_per_rank(runs: Sequence[RunRecord], read: Callable[[RankRecord], int | None]) -> dict[int, int]:
    """Return the highest reading of each rank over repeats, without ranks that have no reading."""
    highest: dict[int, int] = {}
    for run in runs:
        for rank in run.ranks:
            value = read(rank)
            if value is not None:
                highest[rank.rank] = max(value, highest.get(rank.rank, value))
    return highest


def _noise(runs: Sequence[RunRecord], peak: Peak) -> int:
    """Return the range over three or more repeats, else the known difference between identical runs."""
    spec = runs[0].spec
    each = [value.value for run in runs if (value := readings.worst_rank(run.ranks, spec.num_gpus, readings.allocated))]
    seen = max(each) - min(each) if each else 0
    if not spec.gpu_type.is_cpu:
        return max(seen, _GPU_NOISE_BYTES)
    if len(each) >= MIN_RUNS:
        return max(seen, _CPU_NOISE_BYTES)
    return max(seen, round(default_thresholds(spec).memory * peak.value))


def _by_rank(runs: Sequence[RunRecord], control_runs: Sequence[RunRecord]) -> tuple[RankSaving, ...]:
    cell, control = runs[0].spec, control_runs[0].spec
    if cell.num_gpus != control.num_gpus or cell.parallelism != control.parallelism:
        return ()
    ours, theirs = highest_per_rank(runs, readings.allocated), highest_per_rank(control_runs, readings.allocated)
    stages = {rank.rank: rank.coordinates.pp for rank in runs[0].ranks}
    return tuple(
        RankSaving(rank, stages.get(rank, 0), theirs[rank] - ours[rank]) for rank in sorted(ours.keys() & theirs.keys())
    )


def first_run(data: SweepData) -> RunRecord | None:
    """Return the run whose machine counts as the sweep's: the control's first successful run, else any cell's."""
    cells: tuple[CellData, ...] = (data.control, *data.cells)
    return next((run for cell in cells for run in cell.runs if run.status == "ok"), None)


def elsewhere(data: SweepData, hostname: str) -> str:
    """Warn about resuming the sweep on another host; empty on the host where it began."""
    first = first_run(data)
    if first is None or first.provenance.hostname == hostname:
        return ""
    began = first.provenance.hostname
    here = f"the sweep began on {began}, but this is {hostname}"
    return f"{here}: cells measured here count as doubtful and are never recommended"


def another_machine(runs: Sequence[RunRecord], first: RunRecord | None) -> str:
    """Describe how the machines of ``runs`` differ from that of ``first``; empty without a known difference."""
    if first is None:
        return ""
    expected = dict(_machine(first))
    found = dict.fromkeys(row for run in runs for row in _machine(run))
    other = [f"{name} {here}, not {expected[name]}" for name, here in found if here != expected.get(name, here)]
    return f"measured on another machine than the first run: {'; '.join(other)}" if other else ""


def _machine(run: RunRecord) -> Iterable[tuple[str, str]]:
    """Yield the known facts of a run's machine; the driver, for example, only if NVML worked."""
    where = run.provenance
    rows = (("device", measured_device(run)), ("host", where.hostname), ("driver", where.driver_version))
    return [(name, value) for name, value in rows if value is not None]
