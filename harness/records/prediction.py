"""A prediction as records hold it."""

from typing import Literal

from harness.experiment.frozen import Frozen

Source = Literal["replayed", "estimated"]


class StagePrediction(Frozen):
    """The peak of a stage; its parts add up to ``total``. ``whole_run``: of all steps. ``pool``: of CUDA graphs."""

    pp_rank: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    transient: int
    overhead: int
    total: int
    peak: str
    whole_run: int | None = None
    pool: int = 0

    @property
    def parts(self) -> dict[str, int]:
        return {name: size for name, size in self if name not in ("pp_rank", "total", "peak", "whole_run", "pool")}

    @property
    def measurable(self) -> int:
        """Return the peak that counters of a whole run show."""
        return self.total if self.whole_run is None else self.whole_run

    @property
    def with_pool(self) -> int:
        """Return the peak as torch's message counts it: what private pools keep is allocated."""
        return max(self.measurable, self.total + self.pool)


class PredictionRecord(Frozen):
    """A prediction; None: not predicted. Ranges are (low, high). ``fits_bytes``: the least that the allocator needs."""

    peak_bytes: int
    range_bytes: tuple[int, int]
    stages: tuple[StagePrediction, ...]
    model_flops: int
    recompute_flops: int
    reserved_bytes: int | None = None
    reserved_range_bytes: tuple[int, int] | None = None
    fits_bytes: int | None = None
    fits_range_bytes: tuple[int, int] | None = None
    reserved_source: Source | None = None
    step_time_s: float | None = None
    step_time_range_s: tuple[float, float] | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def worst_stage(self) -> StagePrediction:
        return max(self.stages, key=lambda stage: stage.total)

    @property
    def fits(self) -> tuple[int, int, int]:
        """Return lower end, likely value and upper end of what torch's allocator must have; of the peak if unknown."""
        low, high = self.fits_range_bytes or self.range_bytes
        return low, self.peak_bytes if self.fits_bytes is None else self.fits_bytes, high

    @property
    def measurable_peak_bytes(self) -> int:
        return max((self.peak_bytes, *(stage.measurable for stage in self.stages)))
