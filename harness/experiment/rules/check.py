"""Judges a situation by all rules."""

from collections.abc import Mapping, Set

from harness.errors import BadRequestError, closest, raise_all
from harness.experiment.effective import Implementation, settled_implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.model import ModelSpec
from harness.experiment.rules import (
    attention,
    cuda_graph,
    experts,
    machine,
    offload,
    parallel,
    precision,
    recompute,
)
from harness.experiment.rules.rule import SEVERITIES, Finding, Rule, Situation
from harness.experiment.software import Software

_EVERYWHERE: tuple[Rule, ...] = (
    *recompute.EFFECT,
    *recompute.RULES,
    *offload.RULES,
    *precision.RULES,
    *cuda_graph.RULES,
    *parallel.RULES,
    *experts.RULES,
    *attention.RULES,
    *precision.OPTIMIZER,
    *precision.USER_BUFFERS,
    *machine.ENVIRONMENT,
    *recompute.DEFECTS,
    *machine.RUN_RULES,
)

RULES: tuple[Rule, ...] = (*_EVERYWHERE, *machine.CPU_RULES)
_FOR_PLAIN_ATTENTION = tuple(row for row in _EVERYWHERE if row not in attention.RULES)


def applicable(situation: Situation) -> tuple[Rule, ...]:
    """Return the rows to judge.

    Rows about processors, and about windows, sinks, gates and delta nets, only where there are some. Rows about
    mbr-perf's own worker do not hold for Megatron-Bridge's loop. If the spec does not describe a job fully, only rows
    about the machine apply.
    """
    engine = situation.spec.engine
    if engine is not None:
        rows = machine.RUN_RULES if engine.unsaid else _EVERYWHERE
        return tuple(row for row in rows if row.id not in _OF_OWN_WORKER)
    rows = _FOR_PLAIN_ATTENTION if _has_plain_attention(situation.spec.model) else _EVERYWHERE
    return (*rows, *machine.CPU_RULES) if situation.gpu.is_cpu else rows


def _has_plain_attention(model: ModelSpec) -> bool:
    differs = model.window_size or model.linear_attention or model.attention_output_gate
    return not differs and model.softmax_type == "vanilla"


_OF_OWN_WORKER = frozenset({"RUN01"})  # beside the rows about processors

# Warnings about a value that has no effect without a switch: rule -> dotted paths of the value and of the switch.
_IDLE = {
    "B04b": ("kernels.tp_comm_overlap_cfg", "kernels.tp_comm_overlap"),
    "B18a": ("ddp.align_grad_reduce", "ddp.overlap_grad_reduce"),
    "B18b": ("ddp.align_param_gather", "ddp.overlap_param_gather"),
    "B19": ("ddp.bucket_size", "ddp.overlap_grad_reduce"),
    "B20": ("train.manual_gc_interval", "train.manual_gc"),
    "P35": ("parallelism.wgrad_deferral_limit", "parallelism.defer_embedding_wgrad_compute"),
}


def check(
    spec: ExperimentSpec,
    software: Software,
    *,
    env: Mapping[str, str] | None = None,
    implementation: Implementation | None = None,
    force: frozenset[str] = frozenset(),
    sources: Mapping[str, str] | None = None,
) -> tuple[Finding, ...]:
    """Return every rule that ``spec`` violates, errors first. If a finding ``blocks``, nothing may start.

    ``env`` is the environment the ranks will have; without it only ``spec.env`` is judged. ``implementation`` is the
    settled kernels.transformer_impl. ``force`` names errors to override; BadRequestError for an unknown id. ``sources``
    names the origin of each value: a recipe's value is a note, not a warning, if an option turned its switch off.
    """
    known = {rule.id for rule in RULES}
    raise_all([_unknown(identifier, known) for identifier in sorted(force - known)])
    situation = Situation(spec, software, implementation or settled_implementation(spec), env)
    findings = [finding for rule in applicable(situation) if (finding := rule.judge(situation))]
    findings = [_noted(finding, sources or {}) for finding in findings]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return tuple(
        finding.model_copy(update={"overridden": True})
        if finding.id in force and finding.severity == "error"
        else finding
        for finding in findings
    )


def _unknown(identifier: str, known: Set[str]) -> BadRequestError:
    near = closest(identifier.upper(), sorted(known), 3)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    return BadRequestError(
        f"--force {identifier}: no such rule",
        remedy=f"{hint}`mbr-perf check` names the violated rules; `mbr-perf rules list` prints all",
    )


def _noted(finding: Finding, sources: Mapping[str, str]) -> Finding:
    value, switch = _IDLE.get(finding.id, ("", ""))
    if not sources.get(switch, "").startswith("-") or sources.get(value, "-").startswith("-"):
        return finding
    fix = f"nothing to do: the recipe sets it, and {sources[switch]} turns its switch off"
    return finding.model_copy(update={"severity": "note", "fix": fix})
