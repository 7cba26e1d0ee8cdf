"""Peaks composed of chunk traces, held against one step of each rank traced whole."""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.planning.compose import ChunkCost
from harness.planning.ledger import StageMemory, library_bytes, stage_memory
from harness.planning.trace_cases import traceable
from harness.records.exact import ExactStage
from harness.spec.effective import Implementation
from harness.spec.experiment import CudaGraphSpec, ExperimentSpec


@dataclass(frozen=True)
class ExactPeak:
    """Highest moment of one stage's schedule in bytes, composed and exact; ``problem`` says why there is no exact one.

    ``optimizer_step_bytes``: the other candidate for the stage's peak, which no schedule moves.
    """

    pp_rank: int
    composed_bytes: int
    exact_bytes: int | None
    optimizer_step_bytes: int
    seconds: float | None = None
    problem: str = ""

    @property
    def error(self) -> float | None:
        """Composed over exact, less one."""
        return None if self.exact_bytes is None else self.composed_bytes / self.exact_bytes - 1


def exact_spec(spec: ExperimentSpec, implementation: Implementation) -> ExperimentSpec:
    """``spec`` as the tracer can run it: eagerly, with what chunk traces leave out left out here too."""
    return spec.model_copy(
        update={"kernels": traceable(spec.kernels, implementation), "cuda_graph": CudaGraphSpec(), "env": {}}
    )


def exact_peaks(
    spec: ExperimentSpec,
    costs: tuple[tuple[ChunkCost, ...], ...],
    traced: Mapping[int, ExactStage],
    problem: str,
    *,
    torch_adam: bool = False,
) -> tuple[ExactPeak, ...]:
    """Every stage of ``costs[pp_rank][vp_stage]``; ``problem`` for those that are not in ``traced``.

    ``torch_adam`` as in `model_states`. Model states and workspaces of libraries are the same in both: no trace of a schedule sees them.
    """
    stages = (stage_memory(spec, pp_rank, chunks, torch_adam=torch_adam) for pp_rank, chunks in enumerate(costs))
    return tuple(
        _exact_peak(spec, stage, chunks, traced.get(stage.pp_rank), problem)
        for stage, chunks in zip(stages, costs, strict=True)
    )


def _exact_peak(
    spec: ExperimentSpec, stage: StageMemory, chunks: tuple[ChunkCost, ...], traced: ExactStage | None, problem: str
) -> ExactPeak:
    step = stage.peaks["optimizer step"]
    composed = max(peak for name, peak in stage.peaks.items() if name != "optimizer step")
    if traced is None:
        return ExactPeak(stage.pp_rank, composed, None, step, problem=problem)
    standing = stage.weights + stage.gradients + stage.optimizer + library_bytes(spec, chunks)
    return ExactPeak(stage.pp_rank, composed, standing + traced.peak_bytes, step, traced.seconds)
