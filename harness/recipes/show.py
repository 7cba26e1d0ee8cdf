"""Shows recipes and rules."""

from collections.abc import Iterable

from harness.experiment.rules.rulebook import Entry
from harness.recipes.rows import CheckedFile, RecipeRow, model_settings, point_row, refusals
from harness.resolve.recipe import OperatingPoint, Recipe
from harness.show.figures import ABSENT
from harness.show.page import GAP, Column, Page, listing, table
from harness.units import counted

# Column and key of `point_row`, in the order of the table.
_POINT = {
    "task": "task", "GPU": "gpu", "precision": "compute_dtype", "GPUs": "num_gpus", "variant": "variant",
    "TP": "tensor_model_parallel_size", "PP": "pipeline_model_parallel_size",
    "VPP": "virtual_pipeline_model_parallel_size", "CP": "context_parallel_size", "EP": "expert_model_parallel_size",
    "MBS": "micro_batch_size", "GBS": "global_batch_size", "seq": "seq_length", "recompute": "recompute",
    "CUDA graph": "cuda_graph",
}  # fmt: skip

# A narrow terminal drops these columns, the highest number first.
_DROPPED = {"VPP": 5, "CUDA graph": 4, "variant": 3, "MBS": 3, "runs": 2, "seq": 2, "GBS": 2, "EP": 1, "CP": 1}


def recipes_page(rows: Iterable[RecipeRow]) -> Page:
    """Return one row per recipe and GPU type."""
    found, lines = list(rows), []
    for row in found:
        cells = [row.recipe, row.family, f"{row.parameters_billion:.1f} B"]
        for gpu, there in row.gpus.items():
            lines.append([*cells, gpu, " ".join(there.compute_dtypes), " ".join(map(str, there.num_gpus))])
            cells = ["", "", ""]
    columns = ("recipe", Column("family", drop=1), "parameters", "GPU", "precisions", "GPUs")
    answer = f"{counted(len(found), 'recipe')}; `mbr-perf recipes show NAME` lists the points of one and what can run."
    return Page((table(columns, lines),), answer=answer)


def recipe_page(recipe: Recipe) -> Page:
    """Return the recipe's sources, its model settings, and every operating point."""
    header = recipe.header
    settings = [(path, str(value)) for path, value in model_settings(recipe).items()]
    columns = (Column(title, drop=_DROPPED.get(title, 0)) for title in (*_POINT, "runs"))
    points = table(columns, (_point_cells(recipe, point) for point in recipe.points))
    return Page(
        (
            recipe.label,
            listing(f"  {source}" for source in header.sources),
            GAP,
            table(("model setting", "value"), settings),
            GAP,
            points,
        ),
        answer=f"{header.name} ({header.family}): {header.title}, {counted(len(recipe.points), 'operating point')}",
    )


def checked_page(checked: Iterable[CheckedFile]) -> Page:
    """Return a summary, and the points that cannot run."""
    files, lines = list(checked), []
    for file in files:
        where = file.file
        lines += [
            f"{where}: {title}: cannot run, because the published sizes do not divide" for title in file.inconsistent
        ]
        lines += [f"{where}: {row.point}: refused by rule {row.rule}: {row.message}" for row in file.refused]
    points = counted(sum(file.points for file in files), "operating point")
    refused = f"; {len(lines)} cannot run" if lines else ""
    return Page((listing(lines),), answer=f"OK: {counted(len(files), 'recipe file')}, {points}{refused}.")


def _point_cells(recipe: Recipe, point: OperatingPoint) -> list[str]:
    row = point_row(point)
    values = [getattr(row, name) for name in _POINT.values()]
    cells = [ABSENT if value is None else str(value) for value in values]
    reasons = point.key.inconsistent or [f"rule {refused.id}" for refused in refusals(recipe, point)]
    return [*cells, f"no: {'; '.join(reasons)}" if reasons else "yes"]


def rules_page(entries: tuple[Entry, ...]) -> Page:
    """Return one row per rule; ``<name>`` stands for a value of the request."""
    rows = [(entry.id, entry.severity, entry.versions, entry.message) for entry in entries]
    listed = table(
        ("Rule", Column("Severity", drop=1), Column("megatron-core", drop=2), Column("Message", long=True)), rows
    )
    return Page((listed,), answer=f"{len(entries)} rules; `mbr-perf rules show ID` explains one.")


def rule_page(entries: tuple[Entry, ...]) -> Page:
    """Return all facts of a rule; an id may have a row per release of megatron-core."""
    lines = []
    for entry in entries:
        rows = (
            ("severity", entry.severity),
            ("fix", entry.fix),
            ("megatron-core", entry.mcore_text),
            ("versions", entry.versions),
            ("evidence", entry.evidence),
            ("source", entry.source),
        )
        lines += [f"{entry.id}: {entry.message}", *(f"  {name}: {value}" for name, value in rows if value)]
    return Page((listing(lines, hang=4),))
