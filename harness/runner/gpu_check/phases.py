"""Memory phase by phase: what the planner says of one setting, and what a rank weighed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.planning.ledger import lingering_bytes, stage_memory
from harness.planning.model_states import steps_with_torch_adam
from harness.planning.search import Traces
from harness.planning.stages import Composer, MissingTraceError
from harness.runner.gpu_check.checks import NO_TIME, Check, Verdict
from harness.spec.effective import Implementation
from harness.spec.experiment import ExperimentSpec
from harness.spec.software import Software
from harness.units import format_percent

# Share by which a measurement may differ from the prediction. What stands is a sum of sizes; passes also hold scratch
# memory of kernels, for which they are given what `mbr-perf` gives memory by default before it calls it a regression.
TOLERANCES = {"weights": 0.01, "gradients": 0.01, "optimizer": 0.02, "forward": 0.05, "backward": 0.05,
              "optimizer_step": 0.05}  # fmt: skip
FILE = "phases.json"


@dataclass(frozen=True)
class Row:
    """One recompute setting. ``refused_by``: the rules that forbid it, and nothing else is known then.

    ``predicted`` and ``measured`` are bytes by phase; ``problem`` says why one of them is missing. ``unjudged`` holds
    phases that the prediction does not claim to know, each with the reason. ``fingerprint``: of the experiment.
    """

    recompute: str
    refused_by: tuple[str, ...] = ()
    predicted: Mapping[str, int] | None = None
    measured: Mapping[str, int] | None = None
    problem: str = ""
    unjudged: Mapping[str, str] | None = None
    seconds: float = 0.0
    fingerprint: str = ""

    def difference(self, phase: str) -> float | None:
        """Measured over predicted, less one."""
        predicted, measured = (self.predicted or {}).get(phase), (self.measured or {}).get(phase)
        return measured / predicted - 1 if predicted and measured is not None else None

    @property
    def is_measured(self) -> bool:
        """Whether every phase was weighed."""
        return set(self.measured or ()) == set(TOLERANCES)

    @property
    def check(self) -> Check:
        """Whether every judged phase is as predicted."""
        if self.refused_by:
            return Check(self.recompute, "skipped", f"refused by {', '.join(self.refused_by)}")
        if self.problem:
            return Check(self.recompute, "fail", self.problem)
        if not self.is_measured:
            return Check(self.recompute, "not_run", NO_TIME)
        found = {phase: self.difference(phase) for phase in TOLERANCES}
        told = ", ".join(f"{phase} {format_percent(diff)}" for phase, diff in found.items() if diff is not None)
        judged = {phase: diff for phase, diff in found.items() if phase not in (self.unjudged or {})}
        holds = all(diff is not None and abs(diff) <= TOLERANCES[phase] for phase, diff in judged.items())
        verdict: Verdict = "pass" if holds else "fail"
        return Check(self.recompute, verdict, told)


def predicted(
    spec: ExperimentSpec, implementation: Implementation, traces: Traces, software: Software
) -> dict[str, int]:
    """Bytes in live tensors on the only rank; MissingTraceError with the tracer's reason where it declined."""
    composer = Composer(spec, implementation)
    try:
        costs = composer.chunk_costs(traces.even)
    except MissingTraceError as error:
        reasons = (traces.refused.get(case.key) for case in composer.cases())
        raise MissingTraceError(next((reason for reason in reasons if reason), f"not traced: {error}")) from error
    stage = stage_memory(spec, 0, costs[0], torch_adam=steps_with_torch_adam(spec, software))
    return {
        "weights": stage.weights,
        "gradients": stage.weights + stage.gradients,
        "optimizer": stage.weights + stage.gradients + stage.optimizer + stage.overhead + lingering_bytes(costs[0]),
        "forward": stage.passes["forward"],
        "backward": stage.passes["backward"],
        "optimizer_step": stage.peaks["optimizer step"],
    }


def unjudged(spec: ExperimentSpec) -> dict[str, str]:
    """Phases in which something happens that no prediction is made of."""
    reasons = {}
    if spec.gpu_type.is_cpu:
        reasons["optimizer_step"] = (
            "on a processor torch steps weight by weight, with two temporaries of the largest one"
        )
    if spec.precision.transformer_config:
        quantised = "quantised copies of weights are made in the first forward pass"
        reasons |= {"weights": quantised, "gradients": quantised}
    return reasons


def measured(run_dir: Path) -> dict[str, int]:
    """What the rank wrote, as far as it came."""
    path = run_dir / FILE
    return {name: int(value) for name, value in json.loads(path.read_text()).items()} if path.is_file() else {}
