"""Recipes at a terminal: the list, one of them with its operating points, and what a check of files found."""

from collections.abc import Iterable

from rich.text import Text

from harness.recipes.listing import RecipeRow, model_settings, point_row
from harness.recipes.recipe import OperatingPoint, Recipe
from harness.recipes.validation import CheckedFile, refusals
from harness.report.console import Console
from harness.report.figures import ABSENT
from harness.report.printing import plain_table, print_lines, show, show_whole
from harness.units import counted

# Column and key of `point_row`, in the order of the table.
_POINT = {
    "task": "task", "GPU": "gpu", "precision": "compute_dtype", "GPUs": "num_gpus", "variant": "variant",
    "TP": "tensor_model_parallel_size", "PP": "pipeline_model_parallel_size",
    "VPP": "virtual_pipeline_model_parallel_size", "CP": "context_parallel_size", "EP": "expert_model_parallel_size",
    "MBS": "micro_batch_size", "GBS": "global_batch_size", "seq": "seq_length", "recompute": "recompute",
    "CUDA graph": "cuda_graph",
}  # fmt: skip


def print_recipes(console: Console, rows: Iterable[RecipeRow]) -> None:
    """One row per recipe and GPU type."""
    table = plain_table("recipe", "family", "parameters", "GPU", "precisions", "GPUs")
    for row in rows:
        cells = [row["recipe"], row["family"], f"{row['parameters_billion']:.1f} B"]
        for gpu, there in row["gpus"].items():
            table.add_row(*cells, gpu, " ".join(there["compute_dtypes"]), " ".join(map(str, there["num_gpus"])))
            cells = ["", "", ""]
    show(console, table)


def print_recipe(console: Console, recipe: Recipe) -> None:
    """Where it is from, the model as the recipe states it, and every operating point."""
    header = recipe.header
    print_lines(console, [f"{header.name} ({header.family}): {header.title}", recipe.label])
    print_lines(console, [f"  {source}" for source in header.sources])
    model = plain_table("model setting", "value")
    for path, value in model_settings(recipe).items():
        model.add_row(path, Text(str(value)))
    console.print()
    show(console, model)
    points = plain_table(*_POINT, "runs")
    for point in recipe.points:
        points.add_row(*map(Text, _point_cells(recipe, point)))
    console.print()
    show_whole(console, points)


def print_checked(console: Console, checked: Iterable[CheckedFile]) -> None:
    """Points that are listed only or refused, and a closing line."""
    files = list(checked)
    for file in files:
        for title in file["inconsistent"]:
            print_lines(console, [f"{file['file']}: {title}: listed only, its published arithmetic does not divide"])
        for refused in file["refused"]:
            print_lines(
                console, [f"{file['file']}: {refused['point']}: refused by {refused['rule']}: {refused['message']}"]
            )
    points = sum(file["points"] for file in files)
    print_lines(console, [f"ok: {counted(len(files), 'recipe file')}, {counted(points, 'operating point')}"])


def _point_cells(recipe: Recipe, point: OperatingPoint) -> list[str]:
    row = point_row(point)
    cells = [ABSENT if row[name] is None else str(row[name]) for name in _POINT.values()]
    reasons = point.key.inconsistent or [f"rule {refused['rule']}" for refused in refusals(recipe, point)]
    return [*cells, f"no: {'; '.join(reasons)}" if reasons else "yes"]
