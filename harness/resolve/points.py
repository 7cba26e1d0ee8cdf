"""Selects the operating point of a request and scales its batch to another number of GPUs."""

from collections.abc import Collection
from dataclasses import dataclass

from harness.errors import BadRequestError, Problems, SeveralMatchError, nearest
from harness.experiment.gpu import GPUS, PRECISIONS
from harness.experiment.model import ParallelismSpec
from harness.resolve.recipe import ASSUMED, TASKS, OperatingPoint, Recipe, Request
from harness.units import counted

KNOWN_NAMES: dict[str, tuple[str, ...]] = {
    "gpu": tuple(GPUS),
    "point_gpu": tuple(GPUS),
    "compute_dtype": tuple(PRECISIONS),
    "task": TASKS,
}
"""Options of a `Request` whose values are names, with the known names."""


@dataclass(frozen=True)
class Choice:
    """The point, and the notes about choices made for the user."""

    point: OperatingPoint
    notes: tuple[str, ...]


def choose_point(recipe: Recipe, request: Request) -> Choice:
    """Return the operating point that a request selects; BadRequestError with the available points."""
    check_names(request)
    if request.source is not None:  # its only point was made for the request
        return Choice(recipe.points[0], ())
    task, gpu = request.task or "pretrain", request.point_gpu or request.gpu
    name = recipe.header.name
    points = [point for point in recipe.points if point.key.task == task]
    if not points:
        there = ", ".join(dict.fromkeys(point.key.task for point in recipe.points))
        message = f"recipe '{name}' has no operating point for task '{task}'"
        raise BadRequestError(message, remedy=f"there is --task {there}")
    points = _for_gpu(recipe, points, task, gpu, request)
    points, of_variant = _for_variant(points, request.variant, f"recipe '{name}' on {gpu}")
    points, notes = _for_dtype(points, request.compute_dtype, gpu, f"recipe '{name}' on {gpu}")
    notes = of_variant + notes
    if request.point_gpu is not None and gpu != request.gpu:
        notes += (f"operating point of {gpu} used on {request.gpu}, as asked by --point_gpu",)
    if request.num_gpus is None:
        return _first_runnable(points, notes)
    return with_num_gpus(points, request.num_gpus, notes)


_LIKE = "a known one of its generation and --fit_into GiB"


def check_names(request: Request) -> None:
    """Require that GPU types, precision and task exist; BadRequestError with all problems."""
    problems = Problems()
    for option, known in KNOWN_NAMES.items():
        value = getattr(request, option)
        if value is not None and value not in known:
            other = f"; for another GPU, `plan` with {_LIKE}" if option == "gpu" else ""
            problems.add(f"--{option}: no such value '{value}'", f"known: {', '.join(known)}{other}")
    if request.num_gpus is not None and request.num_gpus < 1:
        problems.add(f"--num_gpus: must be 1 or more, is {request.num_gpus}", "give a number of GPUs")
    problems.raise_if_any()


def data_parallel_size(parallelism: ParallelismSpec, num_gpus: int) -> int:
    """Return the copies of the model on ``num_gpus``; BadRequestError if the model's cut does not divide them."""
    copy = parallelism.model_parallel_size
    if num_gpus % copy:
        raise BadRequestError(
            f"--num_gpus {num_gpus} is not divisible by TP x PP x CP = {parallelism.tensor_model_parallel_size} x "
            f"{parallelism.pipeline_model_parallel_size} x {parallelism.context_parallel_size} = {copy}",
            remedy="give -tp, -pp, -cp for this number of GPUs, or a multiple of it",
        )
    return num_gpus // copy


def weak_scaled(global_batch_size: int, base_data_parallel: int, data_parallel: int) -> int:
    """Return the global batch size that keeps each GPU's work, as Megatron-Bridge scales it: GBS x DP / base DP."""
    scaled, rest = divmod(global_batch_size * data_parallel, base_data_parallel)
    if rest:
        raise BadRequestError(
            f"global batch size {global_batch_size} of {base_data_parallel} data-parallel copies does not scale to "
            f"{data_parallel}: {global_batch_size * data_parallel}/{base_data_parallel} is no whole number",
            remedy="give -gb",
        )
    return scaled


def _for_gpu(
    recipe: Recipe, points: list[OperatingPoint], task: str, gpu: str, request: Request
) -> list[OperatingPoint]:
    found = [p for p in points if p.key.gpu == gpu]
    if found:
        return found
    gpus = list(dict.fromkeys(p.key.gpu for p in points))
    borrow = next((g for g in gpus if g != "cpu"), gpus[0])
    raise BadRequestError(
        f"recipe '{recipe.header.name}' has no {task} operating point for {gpu}; it has points for {', '.join(gpus)}",
        remedy=f"-g {borrow} takes its point, --point_gpu {borrow} runs that point on {request.gpu}; "
        f"or add a point to {recipe.label}",
    )


def _for_variant(
    points: list[OperatingPoint], variant: str | None, what: str
) -> tuple[list[OperatingPoint], tuple[str, ...]]:
    """Return the points of a variant; without one the plain points, or those of the only variant, with a note."""
    found = [p for p in points if p.key.variant == variant]
    if found:
        return found, ()
    variants = tuple(dict.fromkeys(p.key.variant for p in points if p.key.variant))
    if variant is None and len(variants) == 1:
        return points, (f"{what} has no point but those of --variant {variants[0]}: using them",)
    if variant is None:
        raise BadRequestError(f"{what} has only variants", remedy=f"give --variant {' or '.join(variants)}")
    remedy = nearest(variant, variants) if variants else "leave --variant out: there are none"
    raise BadRequestError(f"{what} has no variant '{variant}'", remedy=remedy)


def _for_dtype(
    points: list[OperatingPoint], dtype: str | None, gpu: str, what: str
) -> tuple[list[OperatingPoint], tuple[str, ...]]:
    there = list(dict.fromkeys(p.key.compute_dtype for p in points))
    notes: tuple[str, ...] = ()
    if dtype is None:
        usual = GPUS[gpu].default_compute_dtype
        dtype = usual if usual in there else there[0]
        if dtype != usual:
            notes = (f"{what} has no {usual} point: using {dtype} (-c chooses among {', '.join(there)})",)
        elif others := [each for each in there if each != dtype]:
            notes = (f"{ASSUMED}: {dtype}; -c also takes {', '.join(others)}",)
    if dtype not in there:
        remedy = f"there is -c {', '.join(there)}; `mbr-perf recipes show` has the points of variants"
        raise BadRequestError(f"{what} has no operating point for -c {dtype}", remedy=remedy)
    return [p for p in points if p.key.compute_dtype == dtype], notes


def _first_runnable(points: list[OperatingPoint], notes: tuple[str, ...]) -> Choice:
    for point in points:
        if not point.key.inconsistent:
            if point is not points[0]:
                why = "; ".join(points[0].key.inconsistent)
                notes += (f"{point.title}, because {points[0].title} cannot run: {why}",)
            return Choice(point, notes)
    raise _refusal(points[0])


def with_num_gpus(points: list[OperatingPoint], num_gpus: int, notes: tuple[str, ...]) -> Choice:
    """Return the point of so many GPUs, else the next larger one or the largest, whose batch is then to be scaled."""
    for point in points:
        if point.key.num_gpus == num_gpus:
            if point.key.inconsistent:
                raise _refusal(point)
            return Choice(point, notes)
    runnable = sorted((p for p in points if not p.key.inconsistent), key=lambda p: p.key.num_gpus)
    if not runnable:
        raise _refusal(points[0])
    point = next((p for p in runnable if p.key.num_gpus > num_gpus), runnable[-1])
    note = f"no operating point for {counted(num_gpus, 'GPU')}: started from {point.title}"
    return Choice(point, (*notes, note))


def _refusal(point: OperatingPoint) -> BadRequestError:
    return BadRequestError(
        f"{point.place}: {point.title} cannot run as published: {'; '.join(point.key.inconsistent)}",
        remedy="choose another point from `mbr-perf recipes show`, or write one of your own in a recipe file",
    )


_MOST_LISTED = 8


def only_gpu_point(recipe: Recipe, request: Request) -> OperatingPoint:
    """Return the one runnable point on a GPU that fits the options. SeveralMatchError, BadRequestError."""
    matching = _matching(recipe, request)
    matching = [point for point in matching if point.key.num_gpus == request.num_gpus] or matching
    choices = dict.fromkeys(_choosing(point, request) for point in matching)
    if len(choices) > 1:
        points, shown = f"{len(choices)} GPU operating points that match", tuple(choices)
        if len(choices) > _MOST_LISTED:
            shown = _first_of_each_gpu(choices)
            points += f" (all: mbr-perf recipes show {request.model_recipe_name})"
        raise SeveralMatchError(
            f"recipe '{recipe.header.name}' has {points}, and no -g was given: choose one", choices=shown
        )
    return matching[0] if request.num_gpus is None else with_num_gpus(matching, request.num_gpus, ()).point


def _matching(recipe: Recipe, request: Request) -> list[OperatingPoint]:
    found = [point for point in recipe.points if point.key.gpu != "cpu" and not point.key.inconsistent]
    wanted = _wanted(request, found)
    matching = [point for point in found if wanted.items() <= vars(point.key).items()]
    if not matching:
        given = " ".join(f"--{'point_gpu' if key == 'gpu' else key} {value}" for key, value in wanted.items())
        raise BadRequestError(
            f"recipe '{recipe.header.name}' has no GPU operating point for {given or 'any GPU'}; no -g was given",
            remedy=f"`mbr-perf recipes show {request.model_recipe_name}` lists its points; -g cpu takes the cpu point",
        )
    return matching


def _first_of_each_gpu(choices: Collection[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    first = {choice[:2]: choice for choice in reversed([*choices])}
    return tuple(choice for choice in choices if first[choice[:2]] == choice)


def _wanted(request: Request, points: list[OperatingPoint]) -> dict[str, str]:
    usual = "pretrain" if any(point.key.task == "pretrain" for point in points) else None
    wanted = {
        "task": request.task or usual,
        "gpu": request.point_gpu,
        "compute_dtype": request.compute_dtype,
        "variant": request.variant,
    }
    return {name: value for name, value in wanted.items() if value}


def _choosing(point: OperatingPoint, request: Request) -> tuple[str, ...]:
    key = point.key
    task = None if key.task == "pretrain" else key.task
    options = (
        ("-g", key.gpu, None),
        ("--task", task, request.task),
        ("-c", key.compute_dtype, request.compute_dtype),
        ("-ng", str(key.num_gpus), request.num_gpus),
        ("-cv", key.variant, request.variant),
    )
    return tuple(word for name, value, given in options if value and not given for word in (name, value))
