"""What the planner said before a run, kept beside what was measured."""

from harness.spec.frozen import Frozen


class StagePrediction(Frozen):
    """Peak of one pipeline stage in bytes; the parts add up to ``total``. ``peak``: which of the three peaks it is."""

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


class PredictionRecord(Frozen):
    """A prediction as values. Seconds are None where none are predicted (cpu); ``range_bytes`` is (low, high).

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
        """The stage with the highest peak."""
        return max(self.stages, key=lambda stage: stage.total)
