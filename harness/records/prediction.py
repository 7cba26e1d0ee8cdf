"""A prediction as records hold it."""

from harness.experiment.frozen import Frozen


class StagePrediction(Frozen):
    """The peak memory of a pipeline stage in bytes; its parts add up to ``total``. ``peak``: which of the three."""

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

    @property
    def parts(self) -> dict[str, int]:
        return {name: size for name, size in self if name not in ("pp_rank", "total", "peak")}


class PredictionRecord(Frozen):
    """A prediction. Seconds are None if time is not predicted (CPU). ``range_bytes`` is (low, high).

    ``recompute_flops`` and ``model_flops`` are per step over all GPUs.
    """

    peak_bytes: int
    range_bytes: tuple[int, int]
    stages: tuple[StagePrediction, ...]
    model_flops: int
    recompute_flops: int
    step_time_s: float | None = None
    step_time_range_s: tuple[float, float] | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def worst_stage(self) -> StagePrediction:
        return max(self.stages, key=lambda stage: stage.total)
