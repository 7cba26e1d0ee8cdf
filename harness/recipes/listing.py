"""Recipes as rows for people and for JSON, and the check of many recipe files."""

from pathlib import Path
from typing import TypedDict

from harness.recipes.building import build_spec
from harness.recipes.find import all_recipe_files, check_names, recipes_dir
from harness.recipes.recipe import OperatingPoint, Recipe
from harness.recipes.recipe_file import load_recipe
from harness.recipes.settings import LEAVES
from harness.recipes.size import parameter_count
from harness.spec.model import ModelSpec
from harness.spec.recompute import canonical_text


class GpuRow(TypedDict):
    """What a recipe has for one GPU type."""

    tasks: list[str]
    compute_dtypes: list[str]
    num_gpus: list[int]


class RecipeRow(TypedDict):
    """One recipe of the list."""

    recipe: str
    family: str
    title: str
    parameters_billion: float
    gpus: dict[str, GpuRow]


def full_model(recipe: Recipe) -> ModelSpec:
    """The model at full size: that of the first point on a GPU, else of the first point."""
    point = next((p for p in recipe.points if p.key.gpu != "cpu"), recipe.points[0])
    return build_spec(point.layer, point.place).model


def summary(recipe: Recipe) -> RecipeRow:
    """Name, size, and the GPUs, precisions and counts of the operating points."""
    gpus: dict[str, GpuRow] = {}
    for point in recipe.points:
        row = gpus.setdefault(point.key.gpu, {"tasks": [], "compute_dtypes": [], "num_gpus": []})
        for values, value in ((row["tasks"], point.key.task), (row["compute_dtypes"], point.key.compute_dtype)):
            if value not in values:
                values.append(value)
        row["num_gpus"] = sorted({*row["num_gpus"], point.key.num_gpus})
    header = recipe.header
    return {
        "recipe": header.name,
        "family": header.family,
        "title": header.title,
        "parameters_billion": round(parameter_count(full_model(recipe)) / 1e9, 3),
        "gpus": gpus,
    }


def summaries(directory: Path | None) -> list[RecipeRow]:
    """:func:`summary` of every recipe of the directory."""
    rows: list[RecipeRow] = []
    for file in all_recipe_files(recipes_dir(directory)):
        recipe = load_recipe(file.path, file.label)
        check_names(recipe, file)
        rows.append(summary(recipe))
    return rows


def model_settings(recipe: Recipe) -> dict[str, object]:
    """Model settings that the recipe states, at full size, by path below ``model``."""
    point = next((p for p in recipe.points if p.key.gpu != "cpu"), recipe.points[0])
    stated = {path: s.value for path, s in point.layer.items() if path.startswith("model.")}
    return {path.removeprefix("model."): stated[path] for path in LEAVES if path in stated}


def point_row(point: OperatingPoint) -> dict[str, object]:
    """What an operating point sets, flat."""
    spec = build_spec(point.layer, point.place)
    graph = spec.cuda_graph
    return {
        "task": point.key.task,
        "gpu": point.key.gpu,
        "compute_dtype": point.key.compute_dtype,
        "num_gpus": point.key.num_gpus,
        "variant": point.key.variant,
        **spec.parallelism.model_dump(),
        **spec.batch.model_dump(),
        "recompute": canonical_text(spec.recompute),
        "cuda_graph": ":".join([graph.impl, *([",".join(graph.scope)] if graph.scope else [])]),
        "source": point.key.source,
        "note": point.key.note,
        "inconsistent": list(point.key.inconsistent),
    }


def details(recipe: Recipe) -> dict[str, object]:
    """Everything ``recipes show`` prints."""
    return {
        **summary(recipe),
        "file": recipe.label,
        "sources": list(recipe.header.sources),
        "model": model_settings(recipe),
        "points": [point_row(point) for point in recipe.points],
    }
