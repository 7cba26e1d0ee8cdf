"""Judges a situation by all rules."""

from collections.abc import Callable, Iterator, Mapping, Set

from harness.errors import BadRequestError, closest, raise_all
from harness.experiment.effective import settled_implementation
from harness.experiment.experiment import ExperimentSpec, OffloadSpec
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


def _has_special_attention(s: Situation) -> bool:
    model = s.spec.model
    special = model.window_size or model.linear_attention or model.attention_output_gate
    return bool(special or model.qk_l2_norm or model.no_rope_freq) or model.softmax_type != "vanilla"


# The rows in the order of findings, each with the situations that some of them may fit.
_TABLES: tuple[tuple[tuple[Rule, ...], Callable[[Situation], bool]], ...] = (
    ((*recompute.EFFECT, *recompute.RULES), lambda _: True),
    (offload.RULES, lambda s: s.spec.offload != OffloadSpec()),
    (precision.RULES, lambda s: s.quantized or not s.gpu.is_cpu),
    (cuda_graph.RULES, lambda s: s.graph.impl != "none" or bool(s.graph.scope)),
    (parallel.RULES, lambda _: True),
    (experts.RULES, lambda s: s.moe is not None),
    (attention.RULES, _has_special_attention),
    (optimizer.RULES, lambda _: True),
    (adapters.RULES, lambda s: s.spec.peft is not None),
    (precision.USER_BUFFERS, lambda s: s.spec.kernels.tp_comm_overlap),
    ((*machine.ENVIRONMENT, *recompute.DEFECTS, *machine.RUN_RULES), lambda _: True),
    (machine.CPU_RULES, lambda s: s.gpu.is_cpu and s.spec.engine is None),
)
RULES: tuple[Rule, ...] = tuple(row for rows, _ in _TABLES for row in rows)


def applicable(s: Situation) -> tuple[Rule, ...]:
    """Return the rows to judge: of each table, unless the request has nothing that the table is about.

    Of a job that the spec does not describe, only those about the machine.
    """
    if not s.spec.is_described:
        return machine.RUN_RULES
    return tuple(row for table, fits in _TABLES if fits(s) for row in table)


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
    raise_all([_unknown(name, known) for name in sorted(force - known)])
    findings = [
        finding
        for each in _each_setting(spec)
        for situation in [Situation(each, software, settled_implementation(spec), env, launcher)]
        for rule in applicable(situation)
        if (finding := rule.judge(situation))
    ]
    findings = [*{(finding.id, finding.message): finding for finding in findings}.values()]
    findings = [_noted(finding, launcher) for finding in findings]
    findings = parallel.one_cause(findings, Situation(spec, software, settled_implementation(spec)), force)
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


def _unknown(name: str, known: Set[str]) -> BadRequestError:
    near = " or ".join(closest(name.upper(), sorted(known), 3))
    hint = f"did you mean {near}? " if near else ""
    return BadRequestError(f"--force {name}: no such rule", remedy=f"{hint}`mbr-perf rules list` prints all")


def _noted(finding: Finding, launcher: Launcher) -> Finding:
    if launcher == "bridge" and finding.id in _OF_MEGATRON_LM:
        return finding.model_copy(update={"severity": "warning", "mcore_text": None})
    return finding
