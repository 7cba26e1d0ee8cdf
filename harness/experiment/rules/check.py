"""Judges a situation by all rules."""

from collections.abc import Iterator, Mapping

from harness.errors import BadRequestError, nearest, raise_all
from harness.experiment.effective import settled_implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import FullRecompute, policy_of_layer
from harness.experiment.recompute_plan import FULL, PlannedRecompute
from harness.experiment.rules import (
    adapters,
    attention,
    cuda_graph,
    experts,
    machine,
    offload,
    optimizer,
    parallel,
    precision,
    recompute,
)
from harness.experiment.rules.rule import SEVERITIES, Finding, Launcher, Rule, Situation
from harness.experiment.software import Software

_ON_EVERY_DEVICE: tuple[Rule, ...] = (
    *recompute.EFFECT,
    *recompute.RULES,
    *offload.RULES,
    *precision.RULES,
    *cuda_graph.RULES,
    *parallel.RULES,
    *experts.RULES,
    *attention.RULES,
    *optimizer.RULES,
    *adapters.RULES,
    *precision.USER_BUFFERS,
    *machine.ENVIRONMENT,
    *recompute.DEFECTS,
    *machine.RUN_RULES,
)
RULES = (*_ON_EVERY_DEVICE, *machine.CPU_RULES)
"""The rows in the order of findings."""


def applicable(s: Situation) -> tuple[Rule, ...]:
    """Return the rows to judge: only those about the machine for a job that the spec does not describe."""
    if not s.spec.is_described:
        return machine.RUN_RULES
    return RULES if s.gpu.is_cpu and s.spec.engine is None else _ON_EVERY_DEVICE


_OF_MEGATRON_LM = ("V01",)
"""Errors of Megatron-LM's launcher alone: in Megatron-Bridge, megatron-core only warns (tensor_parallel/layers.py)."""


def check(
    spec: ExperimentSpec,
    software: Software,
    *,
    env: Mapping[str, str] | None = None,
    force: frozenset[str] = frozenset(),
    launcher: Launcher = "mbr-perf",
) -> tuple[Finding, ...]:
    """Return every rule that ``spec`` violates, errors first. If a finding ``blocks``, nothing may start.

    ``env`` is the environment that ranks get from ``launcher``; without it only ``spec.env`` is judged.
    ``force`` names errors to override; BadRequestError for an unknown id.
    """
    known = {rule.id for rule in RULES}
    unknown = sorted(force - known)
    raise_all(
        [BadRequestError(f"--force {name}: no such rule", remedy=nearest(name.upper(), known)) for name in unknown]
    )
    findings = [
        finding
        for each in _each_setting(spec)
        for situation in [Situation(each, software, settled_implementation(spec), env, launcher)]
        for rule in applicable(situation)
        if (finding := rule.judge(situation))
    ]
    findings = [*{(finding.id, finding.message): finding for finding in findings}.values()]
    findings = [_noted(finding, launcher) for finding in findings]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return tuple(
        finding.model_copy(update={"overridden": True})
        if finding.id in force and finding.severity == "error"
        else finding
        for finding in findings
    )


def _each_setting(spec: ExperimentSpec) -> Iterator[ExperimentSpec]:
    """Yield the request; of a plan the request with each of its settings for every layer, and then the plan itself."""
    if isinstance(spec.recompute, PlannedRecompute):
        for setting in spec.recompute.distinct:
            full = FullRecompute(method="block", num_layers=1)
            policy = full if setting == FULL else policy_of_layer(setting)
            yield spec.model_copy(update={"recompute": policy})
    yield spec


def _noted(finding: Finding, launcher: Launcher) -> Finding:
    if launcher == "bridge" and finding.id in _OF_MEGATRON_LM:
        return finding.model_copy(update={"severity": "warning", "mcore_text": None})
    return finding
