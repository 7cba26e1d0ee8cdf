"""Selects the operating point of a request that names no GPU type."""

from collections.abc import Collection

from harness.errors import BadRequestError, SeveralMatchError
from harness.resolve.points import with_num_gpus
from harness.resolve.recipe import OperatingPoint, Recipe, Request

_MOST_LISTED = 8


def only_gpu_point(recipe: Recipe, request: Request) -> OperatingPoint:
    """Return the one runnable point on a GPU that fits the options of a request without GPU type.

    SeveralMatchError lists the options of each if several fit; BadRequestError if none fits.
    """
    found = [point for point in recipe.points if point.key.gpu != "cpu" and not point.key.inconsistent]
    wanted = _wanted(request, found)
    matching = [point for point in found if wanted.items() <= vars(point.key).items()]
    if not matching:
        given = " ".join(f"--{'point_gpu' if key == 'gpu' else key} {value}" for key, value in wanted.items())
        raise BadRequestError(
            f"recipe '{recipe.header.name}' has no GPU operating point for {given or 'any GPU'}; no -g was given",
            remedy=f"`mbr-perf recipes show {request.model_recipe_name}` lists its points; -g cpu takes the cpu point",
        )
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
