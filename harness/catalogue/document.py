"""JSON of recipes, suites and rules."""

from collections.abc import Callable

from harness.experiment.model import BatchSpec, ParallelismSpec
from harness.experiment.rules.rulebook import Entry
from harness.recipes.listing import CheckedFile, GpuRow, RecipeRow, model_settings, point_row, summary
from harness.recipes.recipe import Recipe
from harness.recipes.suite_listing import CaseRow, SuiteRow
from harness.showing.json import Document, Shown


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
