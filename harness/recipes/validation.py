"""The check of recipe files: every key, every value, every operating point, and the rules at each of them."""

from pathlib import Path
from typing import TypedDict

from harness.errors import BadRequestError
from harness.recipes.find import RecipeFile, all_recipe_files, check_names, recipes_dir
from harness.recipes.problems import Problems
from harness.recipes.recipe import OperatingPoint, Recipe
from harness.recipes.recipe_file import load_recipe
from harness.recipes.request import Request
from harness.recipes.resolve import resolve_recipe
from harness.spec.experiment import ExperimentSpec
from harness.spec.rules.check import check
from harness.spec.software import ASSUMED_MEGATRON_CORE, ASSUMED_TRANSFORMER_ENGINE, Software
from harness.units import counted


class RefusedPoint(TypedDict):
    """A point that breaks a rule."""

    point: str
    rule: str
    message: str


class CheckedFile(TypedDict):
    """One file: its points, those listed as inconsistent upstream, and those that a rule refuses."""

    file: str
    points: int
    inconsistent: list[str]
    refused: list[RefusedPoint]


def check_files(paths: list[Path], directory: Path | None) -> tuple[list[CheckedFile], list[BadRequestError]]:
    """Check files (all recipes when ``paths`` is empty): schema, names, that every runnable point resolves, and rules.

    A point that breaks a rule of megatron-core 0.16.1 is listed under ``refused``: it is published, and it may be legal
    in another release; a run of it is refused there and then.
    """
    files = [RecipeFile(path, str(path), None, None) for path in paths] or all_recipe_files(recipes_dir(directory))
    problems = Problems()
    checked: list[CheckedFile] = []
    for file in files:
        with problems.collecting():
            recipe = load_recipe(file.path, file.label)
            check_names(recipe, file)
            refused: list[RefusedPoint] = []
            for point in recipe.points:
                with problems.collecting():
                    refused += refusals(recipe, point)
            listed = [point_title(point) for point in recipe.points if point.key.inconsistent]
            checked.append(
                {"file": file.label, "points": len(recipe.points), "inconsistent": listed, "refused": refused}
            )
    return checked, problems.found


def point_title(point: OperatingPoint) -> str:
    """Task, GPU, precision, count and variant of a point."""
    key = point.key
    return " ".join(filter(None, (key.task, key.gpu, key.compute_dtype, counted(key.num_gpus, "GPU"), key.variant)))


def refusals(recipe: Recipe, point: OperatingPoint) -> list[RefusedPoint]:
    """The errors of the rule table at one point; none for one that is listed as inconsistent anyway."""
    if point.key.inconsistent:
        return []
    software = Software(megatron_core=ASSUMED_MEGATRON_CORE, transformer_engine=ASSUMED_TRANSFORMER_ENGINE)
    findings = check(resolve_point(recipe, point), software)
    return [
        {"point": point_title(point), "rule": finding.id, "message": finding.message}
        for finding in findings
        if finding.blocks
    ]


def resolve_point(recipe: Recipe, point: OperatingPoint) -> ExperimentSpec:
    """Resolve one point as its own options would select it."""
    key = point.key
    request = Request(
        model_recipe_name=recipe.header.name,
        gpu=key.gpu,
        task=key.task,
        compute_dtype=key.compute_dtype,
        num_gpus=key.num_gpus,
        variant=key.variant,
    )
    return resolve_recipe(recipe, request).spec
