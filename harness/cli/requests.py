"""The one crossing from command-line options to the values that the logic takes."""

from collections.abc import Container, Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from harness.cli.options import (
    ENGINES,
    ClusterLaunchOptions,
    EngineOptions,
    ExperimentOptions,
    JudgeOptions,
    LaunchOptions,
    LocalLaunchOptions,
)
from harness.errors import BadRequestError, Problems, nearest, raise_all
from harness.experiment.model import repeats_problem
from harness.launch.plan import Nodes
from harness.measure.understanding import RunRequest
from harness.records.batches import BatchLaunch
from harness.records.gating import GateOptions, LaunchSettings
from harness.records.job import CLUSTERS
from harness.resolve.find import all_recipe_files, recipes_dir
from harness.resolve.recipe import STDIN, FileKind, ForeignSource, Request

_Kind = TypeVar("_Kind")


def read(kind: type[_Kind], *groups: object, **settled: object) -> _Kind:
    """Make a ``kind`` of ``settled`` and of options by name; None leaves a default. AttributeError for a lost one."""
    given = {**{name: value for group in reversed(groups) for name, value in vars(group).items()}, **settled}
    names = getattr(kind, "model_fields", None) or [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if missing := [name for name in names if name not in given]:
        raise AttributeError(f"{kind.__name__}: no option {', '.join(missing)}")
    values = {name: given[name] for name in names if given[name] is not None}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def experiment_request(
    options: ExperimentOptions, judge: JudgeOptions | None = None, engine: EngineOptions | None = None
) -> Request:
    """Return the options as a request. BadRequestError for several jobs, and for options of recipes beside a file."""
    problems, source, own = Problems(), None, engine or EngineOptions()
    with problems.collecting():
        source = _source(options, own)
        _require_fitting(own, source)
    chunks = problems.tried(lambda: _chunks(options.virtual_pipeline_model_parallel_size))
    problems.raise_if_any()
    settled = {"gpu": options.gpu or "", "source": source, "virtual_pipeline_model_parallel_size": chunks}
    return read(Request, options, judge or JudgeOptions(), own, **settled)


def _require_fitting(engine: EngineOptions, source: ForeignSource | None) -> None:
    require_engine(engine.engine)
    kind = source.kind if source else None
    if engine.engine == "bridge" and kind not in (None, "bridge_config", "bridge_recipe"):
        remedy = "describe the job with -mr, --bridge_config FILE or --bridge_recipe FUNCTION"
        raise BadRequestError(
            f"--engine bridge trains a configuration of Megatron-Bridge, and --{kind} names none", remedy=remedy
        )
    given = [name for name in ("bridge_recipe", "forward_step") if getattr(engine, name) is not None]
    if given and engine.engine != "bridge":
        names = ", ".join(f"--{name}" for name in given)
        raise BadRequestError(f"{names}: only Megatron-Bridge's own loop takes it", remedy="add --engine bridge")


def require_engine(name: str | None) -> None:
    """Raise BadRequestError for an engine that does not exist."""
    if name not in (None, *ENGINES):
        raise BadRequestError(f"--engine {name!r}: no such engine", remedy=nearest(str(name), ENGINES))


def require_job(request: Request, *others: str) -> None:
    """Raise BadRequestError if the request describes no job. ``others``: further options that could."""
    if not request.job_name:
        own = ", ".join(f"--{kind}" for kind in get_args(FileKind))
        remedy = f"name a recipe with -mr (`mbr-perf recipes list`), or a file of your own job with {own}"
        family, files = request.model_family_name, all_recipe_files(recipes_dir())
        if names := [str(file.name) for file in files if family in (file.name, file.family)]:
            remedy = f"-m takes a family; add the recipe's name: -mr {' or -mr '.join(names)}"
        known = sorted({file.family for file in files if file.family})
        slip = f"; -m {family}: no such family, {nearest(family, known)}" if family and not names else ""
        raise BadRequestError(f"the job is missing{slip}", remedy=", or ".join((remedy, *others)))


_OF_RECIPES = {"model_family_name": "-m", "variant": "-cv", "point_gpu": "--point_gpu"}


def _source(options: ExperimentOptions, engine: EngineOptions) -> ForeignSource | None:
    files = [ForeignSource(kind, path) for kind in get_args(FileKind) if (path := getattr(options, kind)) is not None]
    files += [ForeignSource("bridge_recipe", engine.bridge_recipe)] if engine.bridge_recipe is not None else []
    if not files:
        return None
    recipe = [f"-mr {options.model_recipe_name}"] if options.model_recipe_name else []
    given, problems = [*recipe, *(" ".join(file.words) for file in files)], Problems()
    if len(given) > 1:
        problems.add(f"{' and '.join(given)}: each describes the job", "keep one of them")
    for file in files:
        if not file.path or (file.path == STDIN and file.kind != "megatron_args"):
            problems.add(f"{' '.join(file.words)}: names no file", "name a file")
    if unused := [option for name, option in _OF_RECIPES.items() if getattr(options, name) is not None]:
        problems.add(f"{', '.join(unused)}: only for recipes, not for {files[0].words[0]}", "leave it out")
    problems.raise_if_any()
    return files[0]


def _chunks(text: str | None) -> int | Literal["none"] | None:
    if text is None:
        return None
    if text.lower() == "none":
        return "none"
    if not text.isdecimal():
        message = f"--virtual_pipeline_model_parallel_size {text!r} is neither a count nor none"
        raise BadRequestError(message, remedy="e.g. -vp 5")
    return int(text)


def run_request(
    asked: ExperimentOptions, judge: JudgeOptions, launch: LaunchOptions, engine: EngineOptions | None = None
) -> RunRequest:
    """Return all of `mbr-perf run` as one value. BadRequestError for options that contradict each other."""
    if problem := repeats_problem(launch.repeats):
        raise BadRequestError(problem)
    request = experiment_request(asked, judge, engine)
    require_job(request)
    return read(
        RunRequest,
        launch,
        asked=request,
        starts=False,
        force=frozenset(asked.force or ()),
        gate=read(GateOptions, judge),
        launch=read(LaunchSettings, launch),
        nodes=read(Nodes, launch),
    )


def nodes_said(nodes: LaunchOptions, replay_from: Path | None) -> dict[str, object]:
    """Return the options that choose the nodes, by name; None for a default."""
    return {
        "nnodes": None if nodes.nnodes == 1 else nodes.nnodes,
        "node_rank": None if nodes.node_rank == 0 else nodes.node_rank,
        "master_addr": nodes.master_addr,
        "from": replay_from,
    }


def batch_launch(launch: LocalLaunchOptions) -> BatchLaunch:
    """Return how to launch runs on this node, as plans store it. BadRequestError for limits that plans cannot hold."""
    settings = read(LaunchSettings, launch)
    raise_all(settings.problems)
    source = settings.replay_from
    return BatchLaunch(**settings.model_dump() | {"replay_from": source.absolute() if source else None})


def require_nothing_else(what: str, may: str, groups: tuple[object, ...], but: Container[str]) -> None:
    """Raise BadRequestError with every option that a resumed ``what`` takes from its plan, except ``but``."""
    given = given_options(*groups, but=but)
    if given:
        raise BadRequestError(
            f"--resume takes everything from the {what}; {', '.join(given)} would change it",
            remedy=f"only {may} go with it; or start a new {what}",
        )


def given_options(*groups: object, but: Container[str]) -> list[str]:
    """Name options and arguments of ``groups`` that differ from their defaults, as typed, except those in ``but``."""
    return [
        typed
        for group in groups
        for field, typed in _typed(group)
        if field.name not in but and field.default is not MISSING
        if getattr(group, field.name) not in (field.default, ())
    ]


def _typed(group: object) -> Iterator[tuple[Field[Any], str]]:
    hints = get_type_hints(type(group), include_extras=True)
    for field in fields(group):  # type: ignore[arg-type]
        (option,) = hints[field.name].__metadata__
        names = (option.default, *(option.param_decls or ()))  # Annotated puts the first name there
        long = next((name for name in names if isinstance(name, str) and name.startswith("--")), option.metavar)
        yield field, long.partition("/")[0]


def is_for_cluster(launch: LocalLaunchOptions, given: ClusterLaunchOptions) -> bool:
    """Return whether :func:`harness.cli.cluster.cluster_request` has something to do: import it only then."""
    return launch.launcher in CLUSTERS or bool(given_options(given, but=()))
