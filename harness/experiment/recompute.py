"""The recompute policy as one value."""

import hashlib
import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from harness.experiment.frozen import Frozen
from harness.experiment.modules import MODULES
from harness.experiment.recompute_plan import FULL, PLAN, PlannedRecompute, parse_plan


class NoRecompute(Frozen):
    """Every activation is kept: the control of a sweep."""

    granularity: Literal["none"] = "none"

    @property
    def text(self) -> str:
        return "none"


class SelectiveRecompute(Frozen):
    """Named modules inside every layer are recomputed."""

    granularity: Literal["selective"] = "selective"
    modules: Annotated[tuple[str, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _each_module_once(self) -> "SelectiveRecompute":
        if len(set(self.modules)) != len(self.modules):
            raise ValueError(f"recompute_modules names a module twice: {','.join(self.modules)}")
        return self

    @property
    def text(self) -> str:
        return ",".join(self.modules)


class FullRecompute(Frozen):
    """Whole layers are recomputed: all of them in units of N (uniform), or the first N of each chunk (block)."""

    granularity: Literal["full"] = "full"
    method: Literal["uniform", "block"]
    num_layers: Annotated[int, Field(ge=1)]
    distribute_saved_activations: bool = False

    @property
    def text(self) -> str:
        suffix = ":distributed" if self.distribute_saved_activations else ""
        return f"full:{self.method}:{self.num_layers}{suffix}"


def canonical_text(policy: "RecomputePolicy") -> str:
    """Return the spelling with modules in alphabetical order: equal settings have equal fingerprints and files."""
    if isinstance(policy, SelectiveRecompute):
        return ",".join(sorted(policy.modules))
    return policy.text


def short_text(policy: "RecomputePolicy") -> str:
    """Return the text for names of files: a plan by the digest of its text."""
    return shown_setting(canonical_text(policy), 0)


def shown_setting(text: str, most: int = 48) -> str:
    """Return a setting for tables and sentences: a plan of more than ``most`` characters by its digest."""
    if text.startswith(PLAN) and len(text) > most:
        return f"plan-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return text


UniformRecompute = NoRecompute | SelectiveRecompute | FullRecompute
# What fields of a file say: a plan is a text, or a file of its own.
WrittenRecompute = Annotated[UniformRecompute, Field(discriminator="granularity")]
RecomputePolicy = Annotated[UniformRecompute | PlannedRecompute, Field(discriminator="granularity")]


def policy_of_layer(setting: str) -> UniformRecompute:
    """Return the policy that gives a layer what ``setting`` of a plan gives it."""
    if setting == FULL:
        return FullRecompute(method="uniform", num_layers=1)
    return NoRecompute() if setting == "none" else SelectiveRecompute(modules=tuple(setting.split(",")))


def simplest(plan: PlannedRecompute) -> "RecomputePolicy":
    """Return the plan, or the setting without ``full`` that all its layers have."""
    one = plan.distinct if len(plan.distinct) == 1 and FULL not in plan.distinct else ()
    return policy_of_layer(one[0]) if one else plan


def base_of_plan(policy: "RecomputePolicy") -> UniformRecompute:
    """Return what a model is built with: none for a plan, which is set on the built layers."""
    return NoRecompute() if isinstance(policy, PlannedRecompute) else policy


def runs_again(more: "RecomputePolicy", fewer: "RecomputePolicy") -> bool:
    """Return whether ``more`` certainly runs everything again that ``fewer`` runs again. Looks at the settings only."""
    match fewer, more:
        case NoRecompute(), _:
            return True
        case SelectiveRecompute(modules=few), SelectiveRecompute(modules=many):
            return set(few) <= {name for name, row in MODULES.items() if name in many or row.inside in many}
        case FullRecompute(method="block", num_layers=few), FullRecompute(method="block", num_layers=many):
            return few <= many
        case _, FullRecompute(method="uniform"):
            return True
        case _:
            return False


class RecomputeFields(Frozen):
    """megatron-core's recompute fields, all of them, so that nothing is left over from an earlier layer."""

    recompute_granularity: Literal["selective", "full"] | None = None
    recompute_method: Literal["uniform", "block"] | None = None
    recompute_num_layers: int | None = None
    recompute_modules: tuple[str, ...] = ()
    distribute_saved_activations: bool = False


def megatron_fields(policy: NoRecompute | SelectiveRecompute | FullRecompute) -> RecomputeFields:
    """Convert the policy to megatron-core fields."""
    match policy:
        case NoRecompute():
            return RecomputeFields()
        case SelectiveRecompute(modules=modules):
            return RecomputeFields(recompute_granularity="selective", recompute_modules=modules)
        case FullRecompute():
            return RecomputeFields(
                recompute_granularity="full",
                recompute_method=policy.method,
                recompute_num_layers=policy.num_layers,
                distribute_saved_activations=policy.distribute_saved_activations,
            )


def parse_recompute(text: str) -> UniformRecompute | PlannedRecompute:
    """Read the stable spelling; ValueError names what is wrong and what is allowed."""
    text = text.strip()
    if text == "none":
        return NoRecompute()
    if text.startswith(PLAN):
        return parse_plan(text)
    if text.startswith("full"):
        return _parse_full(text)
    modules = tuple(part.strip() for part in text.split(","))
    if not all(modules):
        raise ValueError(f"recompute {text!r} has an empty module name; write 'none' for no recompute")
    unknown = [m for m in modules if m not in MODULES]
    if unknown:
        raise ValueError(f"unknown recompute module {', '.join(map(repr, unknown))}; known: {', '.join(MODULES)}")
    return SelectiveRecompute(modules=modules)


def _parse_full(text: str) -> FullRecompute:
    found = re.fullmatch(r"full:(uniform|block):0*([1-9][0-9]*)(:distributed)?", text)
    if found is None:
        raise ValueError(f"recompute {text!r} is not full:uniform:N or full:block:N with N >= 1")
    method: Literal["uniform", "block"] = "uniform" if found[1] == "uniform" else "block"
    return FullRecompute(method=method, num_layers=int(found[2]), distribute_saved_activations=bool(found[3]))
