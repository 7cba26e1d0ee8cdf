"""What a run would measure: recompute that does nothing, or less than its name says."""

from harness.experiment.rules.rule import Rule, Values
from harness.experiment.rules.situation import Situation


def _nothing_in_effect(s: Situation) -> Values | None:
    effect = s.effective
    if effect is None or not effect.does_nothing:
        return None
    return {"asked": effect.recompute, "reasons": _reasons(effect.inert_modules)}


def _part_inert(s: Situation) -> Values | None:
    effect = s.effective
    if effect is None or not effect.inert_modules or not effect.modules:
        return None
    return {"active": ",".join(effect.modules), "reasons": _reasons(effect.inert_modules)}


def _acts_on_few_layers(s: Situation) -> Values | None:
    effect = s.effective
    if effect is None:
        return None
    few = [f"{name} on {n} of {effect.num_layers}" for name, n in effect.modules.items() if n < effect.num_layers]
    return {"few": ", ".join(few)} if few else None


def _reasons(inert: dict[str, str]) -> str:
    return "; ".join(f"{module}: {reason}" for module, reason in inert.items())


RULES = (
    Rule("EFF01", "error", _nothing_in_effect,
         "recompute {asked} has no effect, the run would equal recompute none ({reasons})",
         "name a module that this model has, or ask for --recompute_modules none",
         "mbr-perf", "harness"),
    Rule("EFF02", "warning", _part_inert,
         "the run measures {active} only ({reasons})",
         "drop the modules without effect",
         "mbr-perf", "harness"),
    Rule("EFF03", "note", _acts_on_few_layers,
         "recompute acts on part of the layers: {few}",
         "expect the saving only on the pipeline stages that hold them",
         "mbr-perf", "harness"),
)  # fmt: skip
