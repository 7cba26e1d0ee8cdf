"""Tables of recipes, suites and rules."""

from collections.abc import Iterable

from rich.text import Text

from harness.experiment.rules.rulebook import Entry
from harness.recipes.listing import CheckedFile, RecipeRow, model_settings, point_row, refusals
from harness.recipes.recipe import OperatingPoint, Recipe
from harness.recipes.suite import Suite, shared_golden_lines
from harness.recipes.suite_listing import CaseRow, SuiteRow, case_rows
from harness.showing.figures import ABSENT
from harness.showing.printing import Console, plain_table, print_hanging, print_lines, show_whole
from harness.showing.printing import show as print_table
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
    print_table(console, table)


def print_recipe(console: Console, recipe: Recipe) -> None:
    """Where it is from, the model as the recipe states it, and every operating point."""
    header = recipe.header
    print_lines(console, [f"{header.name} ({header.family}): {header.title}", recipe.label])
    print_lines(console, [f"  {source}" for source in header.sources])
    model = plain_table("model setting", "value")
    for path, value in model_settings(recipe).items():
        model.add_row(path, Text(str(value)))
    console.print()
    print_table(console, model)
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


def print_suites(console: Console, rows: Iterable[SuiteRow]) -> None:
    """One row per suite."""
    table = plain_table("suite", "cases", "GPU", "about", right=["cases"])
    for row in rows:
        gpus = " ".join(row["gpus"]) or ABSENT
        table.add_row(Text(row["suite"]), str(row["num_cases"]), gpus, Text(row["title"]))
    print_table(console, table)


def print_suite(console: Console, suite: Suite) -> None:
    """What it is about, then every case; ``-`` is left to the machine. BadRequestError as :func:`case_rows`."""
    rows = case_rows(suite)
    print_lines(console, [f"{suite.name}: {suite.title}", *([f"  {suite.source}"] if suite.source else [])])
    columns = ["case", "task", "GPU", "precision", "GPUs", "recompute", "repeats", "golden", "owner", "expected"]
    table = plain_table(*columns, right=["GPUs", "repeats"])
    for row in rows:
        table.add_row(*map(Text, _cells(row)))
    console.print()
    show_whole(console, table)
    shared = shared_golden_lines(
        (row["case"], row["golden_name"], row["golden"] == "required") for row in rows if row["golden_name"]
    )
    print_lines(console, [f"Note: {line}" for line in shared])


def _cells(row: CaseRow) -> list[str]:
    known = row["expected"]
    expected = f"{known.outcome} until {known.until}: {known.reason}" if known else None
    said = (row["task"], row["gpu"], row["compute_dtype"], row["num_gpus"], row["recompute"], row["repeats"])
    cells = (row["case"], *said, row["golden"], row["owner"], expected)
    return [ABSENT if cell in (None, "") else str(cell) for cell in cells]


def print_rules(console: Console, entries: tuple[Entry, ...]) -> None:
    """One row a rule; ``<name>`` stands for a value of the request."""
    table = plain_table("Rule", "Severity", "megatron-core", "Says")
    for entry in entries:
        table.add_row(entry.id, entry.severity, entry.versions, entry.message)
    print_table(console, table)
    console.print(f"{len(entries)} rules. `mbr-perf rules show ID` explains one.", highlight=False)


def print_rule(console: Console, entries: tuple[Entry, ...]) -> None:
    """Print all that is known of one rule; an id may have a row per release of megatron-core."""
    for entry in entries:
        rows = (
            ("severity", entry.severity),
            ("fix", entry.fix),
            ("megatron-core", entry.mcore_text or ""),
            ("versions", entry.versions),
            ("evidence", entry.evidence),
            ("source", entry.source),
        )
        for line in (f"{entry.id}: {entry.message}", *(f"  {name}: {value}" for name, value in rows if value)):
            print_hanging(console, Text(line), 4)
