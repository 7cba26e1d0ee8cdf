"""Every GPU point of the shipped recipes: refused by a rule, or the layers that it trains as cases to trace."""

from dataclasses import dataclass
from functools import cache

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.rules.check import check
from harness.experiment.software import Software
from harness.predict.trace_cases import CaseMaker, base_policies, keyed
from harness.resolve.find import all_recipe_files, recipes_dir
from harness.resolve.recipe import Request
from harness.resolve.recipe_file import load_recipe
from harness.resolve.resolve import resolve_recipe

SOFTWARE = Software(megatron_core="0.16.1", transformer_engine="2.11.0")
IMPLEMENTATION = "transformer_engine"
# What recipes say of published points that cannot run, in place of a rule.
INCONSISTENT = "inconsistent"


@dataclass(frozen=True)
class Point:
    """A shipped point. ``refused``: ids of the rules that forbid it. ``spec`` is None if the point cannot be resolved."""

    name: str
    gpu: str
    spec: ExperimentSpec | None
    refused: tuple[str, ...]


@cache
def shipped_points():
    """All shipped GPU points, refused or not."""
    points = []
    for file in all_recipe_files(recipes_dir()):
        recipe = load_recipe(file.path, file.label)
        points += [_point(recipe, point.key) for point in recipe.points if point.key.gpu != "cpu"]
    return points


def _point(recipe, key):
    name = recipe.header.name
    asked = Request(
        model_recipe_name=name, gpu=key.gpu, task=key.task, compute_dtype=key.compute_dtype, num_gpus=key.num_gpus,
        variant=key.variant,
    )  # fmt: skip
    try:
        spec = resolve_recipe(recipe, asked).spec
    except BadRequestError:
        return Point(name, key.gpu, None, (INCONSISTENT,))
    findings = check(spec, SOFTWARE)
    return Point(name, key.gpu, spec, tuple(finding.id for finding in findings if finding.blocks))


def layers_of(point):
    """One layer of every kind that the model has, as the point trains it; equal layers have equal keys."""
    pattern = set(point.spec.model.moe_layer_pattern)
    return [
        case for kind, is_moe in (("dense", 0), ("moe", 1)) if is_moe in pattern for case in _layers(point.spec, kind)
    ]


def _layers(spec, kind):
    maker = CaseMaker(spec, IMPLEMENTATION)
    for policy in base_policies(spec.recompute)[-1:]:
        case = maker.layers(kind, policy, 1)
        # As a prediction does without: the flex dispatcher, whose kernels need a GPU, and settings of the other kind of layer.
        of_case = "moe" if kind == "dense" else "dispatcher"
        changes = {"transformer_impl": IMPLEMENTATION, "overlap_moe_expert_parallel_comm": False}
        changes |= {name: value for name, value in case.spec.kernels if of_case in name}
        kernels = spec.kernels.model_copy(update=changes)
        env = {name: value for name, value in spec.env.items() if name.startswith("NVTE_")}
        offload = spec.offload.model_copy(update={"cpu_offloading_num_layers": 0})
        spec_of_layer = case.spec.model_copy(update={"kernels": kernels, "env": env, "offload": offload})
        yield keyed(case.model_copy(update={"spec": spec_of_layer}), IMPLEMENTATION)
