"""Traces whole steps, and identifies the planner that made a prediction."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Event

import harness
from harness.errors import Problems, RunFailedError
from harness.experiment.effective import Implementation
from harness.experiment.experiment import CudaGraphSpec, ExperimentSpec
from harness.experiment.recompute import canonical_text, parse_recompute
from harness.experiment.software import Software
from harness.launch.environment import Host
from harness.launch.machine import installed_software
from harness.predict.compose import ChunkCost
from harness.predict.ledger import StageMemory, library_bytes, stage_memory
from harness.predict.model_states import Adam
from harness.predict.search import Plan, Row, Traces
from harness.predict.stages import Composer
from harness.predict.trace_cases import source_fingerprint, traceable
from harness.predict.tracer import require_megatron, side_by_side
from harness.predict.tracer_processes import TracerLateError, TracerProcess
from harness.records.calibration import Calibration
from harness.records.trace import ExactFile, ExactRequest, ExactStage

RECOMMENDED = "recommended"  # as a setting of `plan --exact`


@dataclass(frozen=True)
class ExactPeak:
    """Highest moment of one stage's schedule in bytes, composed and exact; ``error``: composed over exact, less 1."""

    pp_rank: int
    composed_bytes: int
    exact_bytes: int | None
    optimizer_step_bytes: int
    seconds: float | None = None
    problem: str | None = None
    error: float | None = None


def exact_spec(spec: ExperimentSpec, implementation: Implementation) -> ExperimentSpec:
    """Return ``spec`` as the tracer can run it: eagerly, without the parts that chunk traces leave out."""
    return spec.model_copy(
        update={"kernels": traceable(spec.kernels, implementation), "cuda_graph": CudaGraphSpec(), "env": {}}
    )


def exact_peaks(
    spec: ExperimentSpec,
    costs: tuple[tuple[ChunkCost, ...], ...],
    traced: Mapping[int, ExactStage],
    problems: Mapping[int, str],
    *,
    adam: Adam = "fused",
) -> tuple[ExactPeak, ...]:
    """Compare every stage of ``costs[pp_rank][vp_stage]``; ``problems``: by rank, why one is not in ``traced``."""
    stages = (stage_memory(spec, pp_rank, chunks, adam=adam) for pp_rank, chunks in enumerate(costs))
    return tuple(
        _exact_peak(spec, stage, chunks, traced.get(stage.pp_rank), problems.get(stage.pp_rank) or None)
        for stage, chunks in zip(stages, costs, strict=True)
    )


def _exact_peak(
    spec: ExperimentSpec,
    stage: StageMemory,
    chunks: tuple[ChunkCost, ...],
    traced: ExactStage | None,
    problem: str | None,
) -> ExactPeak:
    step = stage.peaks["optimizer step"]
    composed = max(peak for name, peak in stage.peaks.items() if name != "optimizer step")
    if traced is None:
        return ExactPeak(stage.pp_rank, composed, None, step, problem=problem)
    standing = stage.weights + stage.gradients + stage.optimizer + library_bytes(spec, chunks)
    exact = standing + traced.peak_bytes
    return ExactPeak(stage.pp_rank, composed, exact, step, traced.seconds, error=composed / exact - 1)


@dataclass(frozen=True)
class ExactSetting:
    """A setting whose whole step was traced."""

    recompute: str
    stages: tuple[ExactPeak, ...]


@dataclass(frozen=True)
class ExactTracing:
    """Traces on ``host``, at most ``timeout_s`` for each setting. Setting ``stop`` ends it."""

    host: Host
    implementation: Implementation
    software: Software
    timeout_s: float = 300.0
    stop: Event = field(default_factory=Event)

    def settings(self, plan: Plan, names: tuple[str, ...], traces: Traces) -> tuple[ExactSetting, ...]:
        """Trace the named rows of ``plan``. One BadRequestError for all unknown names."""
        require_megatron(self.host)
        return tuple(self._setting(row, traces) for row in named_rows(plan, names))

    def _setting(self, row: Row, traces: Traces) -> ExactSetting:
        """Trace the stages with the highest composed peaks first, because time may run out."""
        spec = row.candidate.spec
        software = self.software.model_copy(update={"apex": None})  # the tracer has Apex
        own = exact_spec(spec, self.implementation)
        costs = Composer(own, self.implementation, software, as_traced=True).chunk_costs(traces.even)
        assert row.prediction is not None
        order = [stage.pp_rank for stage in sorted(row.prediction.stages, key=lambda stage: -stage.total)]
        num = max(1, min(self.host.num_cores, len(order)))
        requests = [
            ExactRequest(spec=own, implementation=self.implementation, pp_ranks=tuple(order[i::num]))
            for i in range(num)
        ]
        answers = side_by_side(self._answer, requests, num, self.stop)
        traced = {stage.pp_rank: stage for stages, _ in answers for stage in stages}
        problems = {rank: why for _, lost in answers for rank, why in lost.items()}
        return ExactSetting(row.text, exact_peaks(spec, costs, traced, problems, adam=row.prediction.adam))

    def _answer(self, request: ExactRequest) -> tuple[list[ExactStage], dict[int, str]]:
        """Return the traced stages, and by pipeline rank why the others are missing."""
        why = ""
        try:
            text = TracerProcess(self.host, self.timeout_s, self.stop).answer(request.model_dump_json(), "--exact")
        except TracerLateError as late:
            text, why = late.so_far or b"{}", f"not traced within {self.timeout_s:g} s"
        except RunFailedError as died:
            text, why = b"{}", died.message
        answer = ExactFile.model_validate_json(text)
        return list(answer.stages), dict.fromkeys(request.pp_ranks, why or answer.refused or "")


def named_rows(plan: Plan, names: tuple[str, ...]) -> tuple[Row, ...]:
    """Find rows by their text, or ``recommended``, each once. One BadRequestError for all unknown names."""
    rows, problems = dict[str, Row](), Problems()
    every = {canonical_text(row.candidate.spec.recompute): row for row in plan.rows}
    for name in names:
        best = plan.recommended or plan.control
        row = best if name == RECOMMENDED else every.get(canonical_text(parse_recompute(name)))
        if row and row.prediction:
            rows[row.text] = row
        else:
            why = f"not predicted: {row.reason}" if row else "not in this plan, which lists equal settings once"
            known = " ".join(row.text for row in plan.predicted)
            problems.add(f"--exact {name}: {why}", f"{RECOMMENDED}, or one of: {known}")
    problems.raise_if_any()
    return tuple(rows.values())


_PARTS = ("predict", "engine/tracing", "engine/stand_in", "experiment/gpu.py", "experiment/effective.py")


@cache
def planner_fingerprint() -> str:
    """Return a fingerprint of the sources of planner and tracer, including the built-in constants."""
    return source_fingerprint(Path(harness.__file__).parent, _PARTS, ())


def traced_with() -> dict[str, str]:
    """Versions of the installed packages that the tracer runs."""
    found = installed_software()
    return {
        name: version
        for name, version in (("megatron-core", found.megatron_core), ("torch", found.torch))
        if version is not None
    }


def why_of_another_planner(calibration: Calibration) -> str:
    """Say why the calibration does not match this planner; empty if it does."""
    if calibration.planner != planner_fingerprint():
        return "fitted with another version of the planner"
    here = traced_with()
    changed = [
        f"{name} {calibration.traced_with.get(name)}, here {here.get(name)}"
        for name in sorted({*here, *calibration.traced_with})
        if here.get(name) != calibration.traced_with.get(name)
    ]
    return f"fitted with {'; '.join(changed)}" if changed else ""
