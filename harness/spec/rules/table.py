"""The rule table: all rows, and those that apply to a machine."""

from harness.spec.rules import (
    bugs,
    cuda_graph,
    effect,
    environment,
    experts,
    machine,
    offload,
    optimizer,
    parallel,
    precision,
    recompute,
    user_buffers,
)
from harness.spec.rules.rule import Rule
from harness.spec.rules.situation import Situation

_EVERYWHERE: tuple[Rule, ...] = (
    *effect.RULES,
    *recompute.RULES,
    *offload.RULES,
    *precision.RULES,
    *cuda_graph.RULES,
    *parallel.RULES,
    *experts.RULES,
    *optimizer.RULES,
    *user_buffers.RULES,
    *environment.RULES,
    *bugs.RULES,
    *machine.RUN_RULES,
)

RULES: tuple[Rule, ...] = (*_EVERYWHERE, *machine.CPU_RULES)


def applicable(situation: Situation) -> tuple[Rule, ...]:
    """The rows to judge: those about processors only where ranks run on one."""
    return RULES if situation.gpu.is_cpu else _EVERYWHERE
