"""Finds the model of a recipe at full size, and checks its points by the rules."""

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.rules.check import check
from harness.experiment.rules.rule import Finding
from harness.experiment.software import ASSUMED_MEGATRON_CORE, ASSUMED_TRANSFORMER_ENGINE, Software
from harness.resolve.recipe import OperatingPoint, Recipe, build_spec
from harness.resolve.resolve import resolve_point


def full_size(recipe: Recipe) -> ExperimentSpec:
    """Return the first point on a GPU, else the first point: it has the model at full size."""
    point = next((p for p in recipe.points if p.key.gpu != "cpu"), recipe.points[0])
    return build_spec(point.layer, point.place)


def refusals(recipe: Recipe, point: OperatingPoint) -> list[Finding]:
    """Return the errors of the rule table at one point; none for a point that its file marks as inconsistent.

    The rules are those of megatron-core 0.16.1: another release may accept the point.
    """
    if point.key.inconsistent:
        return []
    software = Software(megatron_core=ASSUMED_MEGATRON_CORE, transformer_engine=ASSUMED_TRANSFORMER_ENGINE)
    return [finding for finding in check(resolve_point(recipe, point), software) if finding.blocks]
