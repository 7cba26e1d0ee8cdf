"""`mbr-perf recipes`: list recipes, show one, check recipe files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from harness.recipes.recipe import OperatingPoint, Recipe

SCHEMA_VERSION = 1

app = typer.Typer(no_args_is_help=True, help="List, show and check recipes.")
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Directory = Annotated[Path | None, typer.Option("--recipes_dir", help="Directory of recipe families.")]


@app.command("list")
def list_recipes(recipes_dir: Directory = None, as_json: Json = False) -> None:
    """Every recipe with its size, and the GPUs, precisions and counts that it has operating points for."""
    from harness.recipes.listing import summaries

    rows = summaries(recipes_dir)
    if as_json:
        _print_json({"recipes": rows})
        return
    table = _table("recipe", "family", "parameters", "GPU", "precisions", "GPUs")
    for row in rows:
        cells = [row["recipe"], row["family"], f"{row['parameters_billion']:.1f} B"]
        for gpu, there in row["gpus"].items():
            table.add_row(*cells, gpu, " ".join(there["compute_dtypes"]), " ".join(map(str, there["num_gpus"])))
            cells = ["", "", ""]
    _print_table(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A recipe name or the path of a recipe file.")],
    recipes_dir: Directory = None,
    as_json: Json = False,
) -> None:
    """The model of a recipe and all its operating points."""
    from harness.recipes.find import open_recipe
    from harness.recipes.listing import details

    recipe = open_recipe(name, recipes_dir)
    if as_json:
        _print_json(details(recipe))
        return
    _print_recipe(recipe)


@app.command()
def validate(
    paths: Annotated[list[Path] | None, typer.Argument(help="Recipe files; all recipes when none is given.")] = None,
    recipes_dir: Directory = None,
    as_json: Json = False,
) -> None:
    """Check recipe files: every key, every value, every operating point, and the rules of megatron-core 0.16.1.

    Exits 2 with all problems. A published point that breaks a rule is listed, with the rule; a run of it is refused.
    """
    from harness.errors import raise_all
    from harness.recipes.validation import check_files

    checked, problems = check_files(paths or [], recipes_dir)
    if as_json:
        _print_json({"checked": checked, "problems": [{"message": p.message, "remedy": p.remedy} for p in problems]})
        if problems:
            raise typer.Exit(int(problems[0].exit_code))
        return
    raise_all(problems)
    for row in checked:
        for title in row["inconsistent"]:
            print(f"{row['file']}: {title}: listed only, its published arithmetic does not divide")
        for refused in row["refused"]:
            print(f"{row['file']}: {refused['point']}: refused by {refused['rule']}: {refused['message']}")
    print(f"ok: {len(checked)} recipe files, {sum(row['points'] for row in checked)} operating points")


def _print_recipe(recipe: "Recipe") -> None:
    from harness.recipes.listing import model_settings

    header = recipe.header
    print(f"{header.name} ({header.family}): {header.title}\n{recipe.label}")
    for source in header.sources:
        print(f"  {source}")
    model = _table("model setting", "value")
    for path, value in model_settings(recipe).items():
        model.add_row(path, str(value))
    _print_table(model)
    points = _table("task", "GPU", "precision", "GPUs", "variant", "TP", "PP", "VPP", "CP", "EP", "MBS", "GBS", "seq",
                    "recompute", "CUDA graph", "runs")  # fmt: skip
    for point in recipe.points:
        points.add_row(*_point_cells(point))
    _print_table(points)


def _point_cells(point: "OperatingPoint") -> list[str]:
    from harness.recipes.listing import point_row

    row = point_row(point)
    names = ("task", "gpu", "compute_dtype", "num_gpus", "variant", "tensor_model_parallel_size",
             "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "context_parallel_size",
             "expert_model_parallel_size", "micro_batch_size", "global_batch_size", "seq_length", "recompute",
             "cuda_graph")  # fmt: skip
    cells = ["-" if row[name] is None else str(row[name]) for name in names]
    reasons = row["inconsistent"]
    return [*cells, "no: " + "; ".join(map(str, reasons)) if isinstance(reasons, list) and reasons else "yes"]


def _table(*headers: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False)
    for header in headers:
        table.add_column(header, no_wrap=True)
    return table


def _print_table(table: "Table") -> None:
    """On a terminal fit its width; in a pipe use the width that the table needs, so that nothing is cut."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=max(80, console.measure(table, options=console.options.update(width=10_000)).maximum))
    console.print(table)


def _print_json(document: dict[str, object]) -> None:
    import json

    print(json.dumps({"schema_version": SCHEMA_VERSION, **document}, indent=2))
