"""Shows recipes, suites and rules, for people and as JSON."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from harness.experiment.model import BatchSpec, ParallelismSpec
from harness.experiment.rules.rulebook import Entry
from harness.resolve.listing import CheckedFile, GpuRow, RecipeRow, model_settings, point_row, refusals, summary
from harness.resolve.recipe import OperatingPoint, Recipe
from harness.resolve.suite import Suite, shared_golden_lines
from harness.resolve.suite_listing import CaseRow, SuiteRow, case_rows
from harness.show.figures import ABSENT
from harness.show.json import Document, Shown
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
    lines = []
    for row in rows:
        cells = [row["recipe"], row["family"], f"{row['parameters_billion']:.1f} B"]
        for gpu, there in row["gpus"].items():
            lines.append([*cells, gpu, " ".join(there["compute_dtypes"]), " ".join(map(str, there["num_gpus"]))])
            cells = ["", "", ""]
    columns = ("recipe", Column("family", drop=1), "parameters", "GPU", "precisions", "GPUs")
    return Page((table(columns, lines),))


def recipe_page(recipe: Recipe) -> Page:
    """Return the recipe's sources, its model settings, and every operating point."""
    header = recipe.header
    settings = [(path, str(value)) for path, value in model_settings(recipe).items()]
    columns = (Column(title, drop=_DROPPED.get(title, 0)) for title in (*_POINT, "runs"))
    points = table(columns, (_point_cells(recipe, point) for point in recipe.points))
    return Page(
        (
            f"{header.name} ({header.family}): {header.title}",
            recipe.label,
            listing(f"  {source}" for source in header.sources),
            GAP,
            table(("model setting", "value"), settings),
            GAP,
            points,
        )
    )


def checked_page(checked: Iterable[CheckedFile]) -> Page:
    """Return the points that cannot run, and a summary."""
    files, lines = list(checked), []
    for file in files:
        where = file["file"]
        lines += [
            f"{where}: {title}: cannot run, because the published sizes do not divide" for title in file["inconsistent"]
        ]
        lines += [
            f"{where}: {row['point']}: refused by rule {row['rule']}: {row['message']}" for row in file["refused"]
        ]
    points = sum(file["points"] for file in files)
    return Page((listing(lines), f"ok: {counted(len(files), 'recipe file')}, {counted(points, 'operating point')}"))


def _point_cells(recipe: Recipe, point: OperatingPoint) -> list[str]:
    row = point_row(point)
    cells = [ABSENT if row[name] is None else str(row[name]) for name in _POINT.values()]
    reasons = point.key.inconsistent or [f"rule {refused['rule']}" for refused in refusals(recipe, point)]
    return [*cells, f"no: {'; '.join(reasons)}" if reasons else "yes"]


def suites_page(rows: Iterable[SuiteRow]) -> Page:
    """Return one row per suite."""
    lines = [(row["suite"], str(row["num_cases"]), " ".join(row["gpus"]) or ABSENT, row["title"]) for row in rows]
    return Page((table(("suite", "cases", "GPU", Column("about", long=True)), lines, right=("cases",)),))


def suite_page(suite: Suite) -> Page:
    """Return the title, then every case; ``-``: the machine decides. BadRequestError as :func:`case_rows`."""
    rows = case_rows(suite)
    columns = ("case", "task", "GPU", "precision", "GPUs", "recompute", "repeats", "golden", "owner", "expected")
    shared = shared_golden_lines(
        (row["case"], row["golden_name"], row["expected"].outcome if row["expected"] else None) for row in rows
    )
    return Page(
        (
            f"{suite.name}: {suite.title}",
            *([f"  {suite.source}"] if suite.source else []),
            GAP,
            replace(table(columns, map(_cells, rows), right=("GPUs", "repeats")), whole=True),
            listing(f"Note: {line}" for line in shared),
        )
    )


def _cells(row: CaseRow) -> list[str]:
    known = row["expected"]
    expected = f"{known.outcome} until {known.until}: {known.reason}" if known else None
    request = (row["task"], row["gpu"], row["compute_dtype"], row["num_gpus"], row["recompute"], row["repeats"])
    cells = (row["case"], *request, row["golden"], row["owner"], expected)
    return [ABSENT if cell in (None, "") else str(cell) for cell in cells]


def rules_page(entries: tuple[Entry, ...]) -> Page:
    """Return one row per rule; ``<name>`` stands for a value of the request."""
    rows = [(entry.id, entry.severity, entry.versions, entry.message) for entry in entries]
    listed = table(
        ("Rule", Column("Severity", drop=1), Column("megatron-core", drop=2), Column("Message", long=True)), rows
    )
    return Page((listed, f"{len(entries)} rules. `mbr-perf rules show ID` explains one."))


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


class RulesDocument(Document):
    """``mbr-perf rules list --json`` and ``rules show``."""

    rules: tuple[Entry, ...]


class RecipesDocument(Document):
    """``mbr-perf recipes list --json``."""

    recipes: list[RecipeRow]


class PointRow(ParallelismSpec, BatchSpec):
    """The settings of an operating point, flat."""

    task: str
    gpu: str
    compute_dtype: str
    num_gpus: int
    variant: str | None
    recompute: str
    cuda_graph: str
    source: str | None
    note: str | None
    inconsistent: list[str]


class RecipeDocument(Document):
    """``mbr-perf recipes show --json``. ``model``: the settings that the recipe states, by path below ``model``."""

    recipe: str
    family: str
    title: str
    parameters_billion: float
    gpus: dict[str, GpuRow]
    file: str
    sources: list[str]
    model: dict[str, object]
    points: list[PointRow]


def recipe_document(recipe: Recipe) -> RecipeDocument:
    """Return the model of a recipe and its operating points, which are already checked."""
    build: Callable[..., PointRow] = PointRow.model_construct
    points = [build(**point_row(point)) for point in recipe.points]
    return RecipeDocument.of(
        **summary(recipe), file=recipe.label, sources=recipe.header.sources, model=model_settings(recipe), points=points
    )


class ExportedDocument(Document):
    """``mbr-perf recipes export --json``. ``words``: none for a recipe file; ``remarks``: what is set elsewhere."""

    form: str
    words: tuple[str, ...]
    remarks: tuple[str, ...]
    text: str


class Problem(Shown):
    """A problem of a file, and what to do."""

    message: str
    remedy: str


class CheckedDocument(Document):
    """``mbr-perf recipes validate --json``."""

    checked: list[CheckedFile]
    problems: list[Problem]


class SuitesDocument(Document):
    """``mbr-perf recipes suites --json``."""

    suites: list[SuiteRow]


class SuiteDocument(Document):
    """``mbr-perf recipes suites NAME --json``."""

    suite: str
    title: str
    source: str
    num_cases: int
    gpus: list[str]
    cases: list[CaseRow]


class CommandsDocument(Document):
    """``mbr-perf schema --json``: the commands that have a schema."""

    commands: tuple[str, ...]
