"""Compares machines and states the memory that a setting saves."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.judging import readings
from harness.judging.coverage import measured_device
from harness.judging.gate import default_thresholds
from harness.judging.metrics import Metrics
from harness.judging.readings import Peak
from harness.judging.statistics import MIN_RUNS
from harness.records.rank import RankRecord
from harness.records.run import RunRecord
from harness.records.sweep import CellData, SweepData
from harness.units import MIB

# torch's caching allocator takes small blocks in segments of 2 MiB; less is rounding, not a setting's effect.
_GPU_NOISE_BYTES = 2 * MIB
# Repeats on a processor differ by some KiB even where three of them happen to agree.
_CPU_NOISE_BYTES = MIB // 16


@dataclass(frozen=True)
class RankSaving:
    """Allocated bytes of one rank, the control's less the cell's; negative where the cell takes more."""

    rank: int
    stage: int
    saved_bytes: int


@dataclass(frozen=True)
class MemorySaving:
    """Control less cell, in bytes: peak allocated at each side's worst rank, per rank, and the other peaks likewise.

    ``ranks`` is empty where the two do not have the same ranks. ``noise_bytes``: what identical runs differ by.
    """

    saved_bytes: int
    noise_bytes: int
    ranks: tuple[RankSaving, ...]
    saved_by_metric: dict[str, int]

    @property
    def is_noise(self) -> bool:
        """Whether identical runs could differ by as much."""
        return abs(self.saved_bytes) <= self.noise_bytes


def memory_saving(
    cell: tuple[Sequence[RunRecord], Metrics], control: tuple[Sequence[RunRecord], Metrics]
) -> MemorySaving | None:
    """None where either side has no allocated peak of all its ranks; logs need only tell of the same ranks."""
    (runs, metrics), (control_runs, control_metrics) = cell, control
    ours, theirs = metrics.peak_allocated_bytes, control_metrics.peak_allocated_bytes
    if ours is None or theirs is None:
        return None
    if (ours.missing_ranks or theirs.missing_ranks) and not _same_ranks_told(runs, control_runs):
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


def _same_ranks_told(runs: Sequence[RunRecord], control_runs: Sequence[RunRecord]) -> bool:
    """Whether all are from training logs, and these tell the memory of the same ranks."""
    told = {frozenset(rank.rank for rank in run.ranks if rank.memory) for run in (*runs, *control_runs)}
    return len(told) == 1 and all(run.imported is not None for run in (*runs, *control_runs))


def highest_per_rank(runs: Sequence[RunRecord], read: Callable[[RankRecord], int | None]) -> dict[int, int]:
    """The highest reading of each rank over repeats; ranks that never had one are left out."""
    highest: dict[int, int] = {}
    for run in runs:
        for rank in run.ranks:
            value = read(rank)
            if value is not None:
                highest[rank.rank] = max(value, highest.get(rank.rank, value))
    return highest


def _noise(runs: Sequence[RunRecord], peak: Peak) -> int:
    """The range over three repeats or more; else what identical runs of such a spec have been seen to differ by."""
    spec = runs[0].spec
    each = [value.value for run in runs if (value := readings.worst_rank(run.ranks, spec.num_gpus, readings.allocated))]
    seen = max(each) - min(each) if each else 0
    if not spec.gpu_type.is_cpu:
        return max(seen, _GPU_NOISE_BYTES)
    if len(each) >= MIN_RUNS:
        return max(seen, _CPU_NOISE_BYTES)
    return max(seen, round(default_thresholds(spec).memory * peak.value))


def _by_rank(runs: Sequence[RunRecord], control_runs: Sequence[RunRecord]) -> tuple[RankSaving, ...]:
    """Rank by rank, where both sides cut the model in the same way."""
    one, other = runs[0].spec, control_runs[0].spec
    if one.num_gpus != other.num_gpus or one.parallelism != other.parallelism:
        return ()
    ours, theirs = highest_per_rank(runs, readings.allocated), highest_per_rank(control_runs, readings.allocated)
    stages = {rank.rank: rank.coordinates.pp for rank in runs[0].ranks}
    return tuple(
        RankSaving(rank, stages.get(rank, 0), theirs[rank] - ours[rank]) for rank in sorted(ours.keys() & theirs.keys())
    )


def first_run(data: SweepData) -> RunRecord | None:
    """The run whose machine is that of the sweep: the control's first that ended well, or else any cell's first."""
    cells: tuple[CellData, ...] = (data.control, *data.cells)
    return next((run for cell in cells for run in cell.runs if run.status == "ok"), None)


def elsewhere(data: SweepData, hostname: str) -> str:
    """What going on with the sweep on that host would do to it; empty on the host where it began."""
    first = first_run(data)
    if first is None or first.provenance.hostname == hostname:
        return ""
    began = first.provenance.hostname
    return f"the sweep began on {began}, this is {hostname}: what is measured here will be in doubt, never recommended"


def another_machine(runs: Sequence[RunRecord], first: RunRecord | None) -> str:
    """In what the machines of ``runs`` differ from that of ``first``; empty where nothing known does."""
    if first is None:
        return ""
    expected = dict(_machine(first))
    found = dict.fromkeys(row for run in runs for row in _machine(run))
    other = [f"{name} {here}, not {expected[name]}" for name, here in found if here != expected.get(name, here)]
    return f"measured on another machine than the first run: {'; '.join(other)}" if other else ""


def _machine(run: RunRecord) -> Iterable[tuple[str, str]]:
    """What is known of it: a driver, for one, only where NVML could be asked."""
    where = run.provenance
    rows = (("device", measured_device(run)), ("host", where.hostname), ("driver", where.driver_version))
    return [(name, value) for name, value in rows if value is not None]
