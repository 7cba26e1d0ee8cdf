"""How much less memory one setting takes than another, rank by rank, and how little of it would be noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.analysis import peaks
from harness.analysis.gate import default_thresholds
from harness.analysis.metrics import PEAK_METRICS, Metrics
from harness.analysis.peaks import Peak
from harness.analysis.welch import MIN_RUNS
from harness.records.rank import RankRecord
from harness.records.run import RunRecord
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
        saved_by_metric={name: saved for name in PEAK_METRICS if (saved := _saved(name, metrics, control_metrics)) is not None},
    )  # fmt: skip


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


def _saved(name: str, metrics: Metrics, control: Metrics) -> int | None:
    ours: Peak | None = getattr(metrics, name)
    theirs: Peak | None = getattr(control, name)
    return None if ours is None or theirs is None else theirs.value - ours.value


def _noise(runs: Sequence[RunRecord], peak: Peak) -> int:
    """The range over three repeats or more; else what identical runs of such a spec have been seen to differ by."""
    spec = runs[0].spec
    each = [value.value for run in runs if (value := peaks.worst_rank(run.ranks, spec.num_gpus, peaks.allocated))]
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
    ours, theirs = highest_per_rank(runs, peaks.allocated), highest_per_rank(control_runs, peaks.allocated)
    stages = {rank.rank: rank.coordinates.pp for rank in runs[0].ranks}
    return tuple(
        RankSaving(rank, stages.get(rank, 0), theirs[rank] - ours[rank]) for rank in sorted(ours.keys() & theirs.keys())
    )
