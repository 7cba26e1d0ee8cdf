"""Memory phase by phase for one setting: the planner's bytes, a rank's bytes, and the table of both."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from case import NO_TIME, Case, Check, Verdict
from machine import Target

from harness.experiment.effective import Implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.software import Software
from harness.predict.ledger import stage_memory
from harness.predict.model_states import adam_of
from harness.predict.search import Traces
from harness.predict.stages import Composer
from harness.predict.trace_book import MissingTraceError
from harness.units import format_percent

# Share by which a measurement may differ from the prediction. What stands is a sum of sizes; passes also hold scratch
# memory of kernels, for which they get what `mbr-perf` grants memory by default before it calls it a regression.
TOLERANCES = {"weights": 0.01, "gradients": 0.01, "optimizer": 0.02, "forward": 0.05, "backward": 0.05,
              "optimizer_step": 0.05}  # fmt: skip
TITLES = {"weights": "Weights", "gradients": "With gradients", "optimizer": "After optimizer init",
          "forward": "Forward peak", "backward": "Backward peak", "optimizer_step": "Optimizer step"}  # fmt: skip
FILE = "phases.json"


@dataclass(frozen=True)
class Row:
    """One recompute setting. ``refused_by``: the rules that forbid it; then nothing else is known.

    ``predicted`` and ``measured`` are bytes by phase; ``problem`` is the reason if one of them is missing. ``unjudged``: phases
    without a claim, each with the reason.
    """

    recompute: str
    refused_by: tuple[str, ...] = ()
    predicted: Mapping[str, int] = field(default_factory=dict)
    measured: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""
    unjudged: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def difference(self, phase: str) -> float | None:
        """Return measured over predicted, minus one."""
        predicted, measured = self.predicted.get(phase), self.measured.get(phase)
        return measured / predicted - 1 if predicted and measured is not None else None

    @property
    def is_measured(self) -> bool:
        return set(self.measured) == set(TOLERANCES)

    @property
    def check(self) -> Check:
        if self.refused_by:
            return Check(self.recompute, "skipped", f"refused by {', '.join(self.refused_by)}")
        if self.problem:
            return Check(self.recompute, "fail", self.problem)
        if not self.is_measured:
            return Check(self.recompute, "not_run", NO_TIME)
        differences = {phase: self.difference(phase) for phase in TOLERANCES}
        judged = {phase: diff for phase, diff in differences.items() if phase not in self.unjudged}
        holds = all(diff is not None and abs(diff) <= TOLERANCES[phase] for phase, diff in judged.items())
        verdict: Verdict = "pass" if holds else "fail"
        shown = (f"{phase} {format_percent(diff)}" for phase, diff in differences.items() if diff is not None)
        return Check(self.recompute, verdict, ", ".join(shown))


def row_of(document: Mapping[str, Any]) -> Row:
    """Return the row that a case's file holds."""
    return Row(**{**document, "refused_by": tuple(document["refused_by"])})


def predicted(
    spec: ExperimentSpec, implementation: Implementation, traces: Traces, software: Software
) -> dict[str, int]:
    """Return bytes in live tensors on the only rank; MissingTraceError with the tracer's reason where it declined."""
    composer = Composer(spec, implementation, software)
    try:
        costs = composer.chunk_costs(traces.even)
    except MissingTraceError as error:
        raise MissingTraceError(traces.why_missing(composer, f"not traced: {error}")) from error
    stage = stage_memory(spec, 0, costs[0], adam=adam_of(spec, software))
    left = sum(chunk.sizes.lingering for chunk in costs[0])  # by backward passes
    return {
        "weights": stage.weights,
        "gradients": stage.weights + stage.gradients,
        "optimizer": stage.total - stage.activations - stage.logits - stage.transient + left,
        "forward": stage.passes["forward"],
        "backward": stage.passes["backward"],
        "optimizer_step": stage.peaks["optimizer step"],
    }


def unjudged(spec: ExperimentSpec) -> dict[str, str]:
    """Return the phases in which something happens that the planner does not predict, each with the reason."""
    reasons = {}
    if spec.gpu_type.is_cpu:
        reasons["optimizer_step"] = "on a CPU torch steps weight by weight, with two temporaries of the largest one"
    if spec.precision.transformer_config:
        quantised = "quantised copies of weights are made in the first forward pass"
        reasons |= {"weights": quantised, "gradients": quantised}
    return reasons


def measured(run_dir: Path) -> dict[str, int]:
    """Return the phases that the rank measured before it ended."""
    path = run_dir / FILE
    return {name: int(value) for name, value in json.loads(path.read_text()).items()} if path.is_file() else {}


def markdown(target: Target, cases: Sequence[Case]) -> str:
    """Return one table per case of the planner; a cell is predicted / measured in GB and the difference."""
    tolerated = ", ".join(f"{TITLES[phase].lower()} {limit:.0%}" for phase, limit in TOLERANCES.items())
    lines = [
        f"# Predicted and measured memory by phase, {target.device}",
        "",
        "Bytes in live tensors on the only rank, two layers. A cell shows predicted / measured in GB and the difference.",
        f"Tolerances: {tolerated}. Cells in brackets are not judged; the reason is below their table.",
    ]
    for group in (case.facts["planner"] for case in cases if "planner" in case.facts):
        title = f"## {group['shape']}, {group['compute_dtype']}, {group['attention']} attention"
        lines += ["", title, "", *_table([row_of(row) for row in group["rows"]])]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    shown = [row for row in rows if row.predicted]
    if shown:
        yield "| Recompute | " + " | ".join(TITLES.values()) + " |\n|---|" + "---|" * len(TITLES)
    for row in shown:
        name = row.recompute if row.check.verdict in ("pass", "not_run") else f"**{row.recompute}**"
        yield f"| {name} | " + " | ".join(_cell(row, phase) for phase in TITLES) + " |"
    if shown:
        yield ""
    for row in rows:
        if row.problem or row.refused_by or row.check.verdict == "not_run":
            yield f"* {row.recompute}: {' '.join(row.check.found.split())}"
    reasons = {(phase, reason) for row in rows for phase, reason in row.unjudged.items()}
    yield from (f"* not judged, {TITLES[phase].lower()}: {reason}" for phase, reason in sorted(reasons))


def _cell(row: Row, phase: str) -> str:
    values = (row.predicted.get(phase), row.measured.get(phase))
    text = " / ".join("-" if value is None else f"{value / 1e9:.3f}" for value in values)
    difference = row.difference(phase)
    text += "" if difference is None else f" {format_percent(difference)}"
    return f"({text})" if phase in row.unjudged else text
