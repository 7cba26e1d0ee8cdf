"""What the recipes commands answer: recipes, their points and checked files. Each is the JSON."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from harness.errors import BadRequestError, Problems, nearest
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.flops import layer_flops
from harness.experiment.gpu import GPUS
from harness.experiment.model import BatchSpec, ParallelismSpec
from harness.experiment.recompute import canonical_text
from harness.experiment.rules.check import check
from harness.experiment.rules.rule import Finding
from harness.experiment.rules.rulebook import Entry
from harness.experiment.software import ASSUMED_MEGATRON_CORE, ASSUMED_TRANSFORMER_ENGINE, Software
from harness.resolve.find import RecipeFile, all_recipe_files, check_names, recipes_dir
from harness.resolve.recipe import LEAVES, OperatingPoint, Recipe, build_spec
from harness.resolve.recipe_file import load_recipe
from harness.resolve.resolve import resolve_point
from harness.show.json import Document, Shown
from harness.units import grouped


class GpuRow(Shown):
    """What a recipe has for one GPU type."""

    tasks: list[str]
    compute_dtypes: list[str]
    num_gpus: list[int]


class RecipeRow(Shown):
    """One recipe of the list."""

    recipe: str
    family: str
    title: str
    parameters_billion: float
    gpus: dict[str, GpuRow]


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


class RecipeDocument(RecipeRow, Document):
    """``mbr-perf recipes show --json``. ``model``: the settings that the recipe states, by path below ``model``."""

    file: str
    sources: list[str]
    model: dict[str, object]
    points: list[PointRow]


def recipes_document(directory: Path | None, gpu: str | None = None) -> RecipesDocument:
    """Summarise every recipe of the directory; with ``gpu`` only recipes and points of that GPU type."""
    if gpu is not None and gpu not in GPUS:
        raise BadRequestError(f"--gpu {gpu!r}: no such GPU type", remedy=nearest(gpu, GPUS))
    rows: list[RecipeRow] = []
    for file in all_recipe_files(recipes_dir(directory)):
        recipe = load_recipe(file.path, file.label)
        check_names(recipe, file)
        row = _summary(recipe)
        kept = {name: there for name, there in row.gpus.items() if gpu in (None, name)}
        rows += [row.model_copy(update={"gpus": kept})] if kept else []
    return RecipesDocument(recipes=rows)


def _summary(recipe: Recipe) -> RecipeRow:
    by_gpu = grouped((point.key.gpu, point.key) for point in recipe.points)
    gpus = {
        gpu: GpuRow(
            tasks=list(dict.fromkeys(key.task for key in keys)),
            compute_dtypes=list(dict.fromkeys(key.compute_dtype for key in keys)),
            num_gpus=sorted({key.num_gpus for key in keys}),
        )
        for gpu, keys in by_gpu.items()
    }
    billions = round(parameter_count(full_size(recipe)) / 1e9, 3)
    return RecipeRow.of(recipe.header, recipe=recipe.header.name, parameters_billion=billions, gpus=gpus)


def full_size(recipe: Recipe) -> ExperimentSpec:
    """Return the first point on a GPU, else the first point: it has the model at full size."""
    point = _full_point(recipe)
    return build_spec(point.layer, point.place)


def _full_point(recipe: Recipe) -> OperatingPoint:
    return next((p for p in recipe.points if p.key.gpu != "cpu"), recipe.points[0])


def refusals(recipe: Recipe, point: OperatingPoint) -> list[Finding]:
    """Return the rule errors of megatron-core 0.16.1 at a point; none if its file marks it as inconsistent."""
    return [] if point.key.inconsistent else refusals_of(resolve_point(recipe, point))


def refusals_of(spec: ExperimentSpec, force: frozenset[str] = frozenset()) -> list[Finding]:
    """Do as :func:`refusals`, for any job; errors that ``force`` names no longer block."""
    software = Software(megatron_core=ASSUMED_MEGATRON_CORE, transformer_engine=ASSUMED_TRANSFORMER_ENGINE)
    return [finding for finding in check(spec, software, force=force) if finding.severity == "error"]


def parameter_count(spec: ExperimentSpec) -> int:
    """Return the weights of matrix products and embeddings, without MTP: all but one in a thousand parameters."""
    model, routers = spec.model, 0
    if model.moe:  # every expert has its weights, also those that a token does not pass
        moe = model.moe.model_copy(update={"moe_router_topk": model.moe.num_moe_experts})
        spec = spec.model_copy(update={"model": model.model_copy(update={"moe": moe})})
        routers = sum(model.moe_layer_pattern) * model.hidden_size * moe.num_moe_experts
    each = ((layer_flops(spec, kind), number) for kind, number in Counter(model.layer_kinds).items())
    products = sum(number * (layer.total - layer.core_attn - layer.delta_rule) for layer, number in each)
    embeddings = model.vocab_size * model.hidden_size * (1 if model.share_embeddings_and_output_weights else 2)
    return products // (2 * spec.tokens_per_step) + routers + embeddings


def recipe_document(recipe: Recipe) -> RecipeDocument:
    """Return the model of a recipe and its operating points, which are already checked."""
    row, points = _summary(recipe), [point_row(point) for point in recipe.points]
    return RecipeDocument.of(
        row, file=recipe.label, sources=recipe.header.sources, model=model_settings(recipe), points=points
    )


def model_settings(recipe: Recipe) -> dict[str, object]:
    """Return the model settings that the recipe states, at full size, by path below ``model``."""
    stated = {path: s.value for path, s in _full_point(recipe).layer.items() if path.startswith("model.")}
    return {path.removeprefix("model."): stated[path] for path in LEAVES if path in stated}


def point_row(point: OperatingPoint) -> PointRow:
    """Return the settings of an operating point, flat."""
    spec, key = build_spec(point.layer, point.place), point.key
    graph = spec.cuda_graph
    fields = vars(key) | spec.parallelism.model_dump() | spec.batch.model_dump()
    fields |= {
        "recompute": canonical_text(spec.recompute),
        "cuda_graph": ":".join([graph.impl, *([",".join(graph.scope)] if graph.scope else [])]),
        "inconsistent": list(key.inconsistent),
    }
    build: Callable[..., PointRow] = PointRow.model_construct
    return build(**{name: fields[name] for name in PointRow.model_fields})


class RefusedPoint(Shown):
    """A point that breaks a rule."""

    point: str
    rule: str
    message: str


class CheckedFile(Shown):
    """One file: its points, those listed as inconsistent upstream, and those that a rule refuses."""

    file: str
    points: int
    inconsistent: list[str]
    refused: list[RefusedPoint]


class Problem(Shown):
    """A problem of a file, and what to do."""

    message: str
    remedy: str


class CheckedDocument(Document):
    """``mbr-perf recipes validate --json``."""

    checked: list[CheckedFile]
    problems: list[Problem]


def check_files(paths: list[Path], directory: Path | None) -> tuple[list[CheckedFile], list[BadRequestError]]:
    """Check files (default: all): schema, names, and every point by the rules of megatron-core 0.16.1."""
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
                    found = refusals(recipe, point)
                    refused += [RefusedPoint(point=point.title, rule=each.id, message=each.message) for each in found]
            listed = [point.title for point in recipe.points if point.key.inconsistent]
            checked.append(
                CheckedFile(file=file.label, points=len(recipe.points), inconsistent=listed, refused=refused)
            )
    return checked, problems.found


class RulesDocument(Document):
    """``mbr-perf rules list --json`` and ``rules show``."""

    rules: tuple[Entry, ...]


class ExportedDocument(Document):
    """``mbr-perf recipes export --json``. ``words``: none for a recipe file; ``remarks``: what is set elsewhere."""

    form: str
    words: tuple[str, ...]
    remarks: tuple[str, ...]
    text: str


class CommandsDocument(Document):
    """``mbr-perf schema --json``: the commands that have a schema."""

    commands: tuple[str, ...]
