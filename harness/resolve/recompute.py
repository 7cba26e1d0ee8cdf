"""Reads one whole recompute policy from text or from options."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic
from pydantic import ValidationError

from harness.errors import BadRequestError, Problems, nearest
from harness.experiment.modules import MODULES, UPSTREAM
from harness.experiment.recompute import (
    FullRecompute,
    NoRecompute,
    SelectiveRecompute,
    UniformRecompute,
    parse_recompute,
)
from harness.experiment.recompute_plan import PLAN, LayerGroup, PlannedRecompute
from harness.records.faults import in_words
from harness.records.reading import PlainValue
from harness.records.refusing import FileModel
from harness.records.strict_yaml import read_yaml
from harness.resolve.recipe import Request, Setting
from harness.units import grouped

Policy = UniformRecompute | PlannedRecompute


def selective(names: Sequence[str], where: str) -> SelectiveRecompute:
    """Return a selective policy; BadRequestError, opened by ``where``, for all unknown, empty or repeated names."""
    problems, modules = Problems(), tuple(name.strip() for name in names)
    place = f"{where}: " if where else ""
    for name in dict.fromkeys(modules):
        if not name:
            problems.add(f"{place}an empty module name", "write 'none' for no recompute")
        elif name in UPSTREAM:
            known = f"known upstream since {UPSTREAM[name]}, not in megatron-core 0.16 to 0.19"
            problems.add(f"{place}recompute module '{name}': {known}", "omit it: mbr-perf does not model it")
        elif name not in MODULES:
            problems.add(f"{place}unknown recompute module '{name}'", nearest(name, MODULES))
        elif modules.count(name) > 1:
            problems.add(f"{place}module '{name}' is named twice", "name each module once")
    problems.raise_if_any()
    return SelectiveRecompute(modules=modules)


def policy_from_text(text: str, where: str = "") -> Policy:
    """Read the stable spelling, or a plan's file: ``none``, ``mlp,core_attn``, ``full:uniform:1``, ``full:block:4``."""
    text = text.strip()
    if text == "none":
        return NoRecompute()
    if text.endswith((".yaml", ".yml")):
        return _read_plan(Path(text))
    if text != "full" and not text.startswith(("full:", PLAN)):
        return selective(text.split(","), where)
    try:
        return parse_recompute(text)
    except ValueError as error:
        raise BadRequestError(
            f"{where}: {error}" if where else str(error),
            remedy="write full:uniform:1, full:block:4, a module list or none",
        ) from error


_MOST_PLACES = 4096  # more stages or chunks than a job has


class _Row(FileModel, LayerGroup):
    """Layers in a row of one chunk."""

    stage: int = pydantic.Field(ge=0, lt=_MOST_PLACES, description="count stages from 0")
    chunk: int = pydantic.Field(ge=0, lt=_MOST_PLACES, description="count chunks from 0")


class _PlanFile(FileModel):
    """A whole file."""

    recompute_plan: tuple[_Row, ...] = pydantic.Field(
        min_length=1, description="as in [{stage: 0, chunk: 0, layers: 2, setting: full}], one row for layers in a row"
    )


def _read_plan(path: Path) -> PlannedRecompute:
    file = read_yaml(path, str(path))
    rows = file.problems.having(file.read(_PlanFile)).recompute_plan
    groups = grouped(((row.stage, row.chunk), LayerGroup(layers=row.layers, setting=row.setting)) for row in rows)
    num_stages, num_chunks = (max(place[at] for place in groups) + 1 for at in (0, 1))
    stages = (
        tuple(tuple(groups.get((stage, chunk), ())) for chunk in range(num_chunks)) for stage in range(num_stages)
    )
    try:
        return PlannedRecompute(stages=tuple(stages))
    except ValidationError as error:
        raise BadRequestError(f"{path}: {error.errors()[0]['msg']}", remedy="write their row first") from error


def read_recompute_text(value: PlainValue, place: str) -> Policy:
    """Read `recompute:` from one text or a list of modules."""
    if isinstance(value, str):
        return policy_from_text(value, place)
    if isinstance(value, tuple):
        names = [name if isinstance(name, str) else in_words(name) for name in value]
        return selective(names, place) if names else NoRecompute()
    raise BadRequestError(
        f"{place}: must be text or a list of modules, is {in_words(value)}",
        remedy="write none, a module list such as core_attn,mlp, or full:uniform:1",
    )


_KNOWN = {"recompute_granularity": ("selective", "full", "none"), "recompute_method": ("uniform", "block")}
_FULL_ONLY = ("recompute_method", "recompute_num_layers", "distribute_saved_activations")
_OPTIONS = ("recompute", "recompute_modules", "recompute_granularity", *_FULL_ONLY)


def recompute_setting(request: Request) -> Setting | None:
    """Return the policy of the options, which replaces the recipe's whole policy; None without any."""
    policy = recompute_policy(request)
    if policy is None:
        return None
    source = ", ".join(f"--{name}" for name in _given(request))
    note = ""
    if request.recompute_granularity == "selective" and request.recompute_modules is None:
        note = "--recompute_granularity selective without --recompute_modules: megatron-core recomputes core_attn"
    return Setting(policy, source, note=note)


def recompute_policy(request: Request) -> Policy | None:
    """Return the policy of the options; None without any. BadRequestError for contradictions and unknown words."""
    given = _given(request)
    if not given:
        return None
    _check_words(given)
    _check_combination(given)
    if request.recompute is not None:
        return policy_from_text(request.recompute, "--recompute")
    modules, granularity = request.recompute_modules, request.recompute_granularity
    if granularity == "none" or (modules or "").strip() == "none":
        return NoRecompute()
    if modules is not None or granularity == "selective":
        named = "--recompute_granularity" if modules is None else "--recompute_modules"
        return selective(("core_attn" if modules is None else modules).split(","), named)
    assert request.recompute_num_layers is not None  # full recompute without it was refused
    return FullRecompute(
        method="uniform" if request.recompute_method == "uniform" else "block",
        num_layers=request.recompute_num_layers,
        distribute_saved_activations=bool(request.distribute_saved_activations),
    )


def _given(request: Request) -> dict[str, Any]:
    options = {name: getattr(request, name) for name in _OPTIONS}
    return {name: value for name, value in options.items() if value is not None}


def _check_words(given: Mapping[str, Any]) -> None:
    problems = Problems()
    for name, known in _KNOWN.items():
        if (value := given.get(name, known[0])) not in known:
            problems.add(f"--{name}: no such value '{value}'", nearest(value, known))
    if (layers := given.get("recompute_num_layers", 1)) < 1:
        remedy = "--recompute_modules none keeps every activation"
        problems.add(f"--recompute_num_layers: must be 1 or more, is {layers}", remedy)
    problems.raise_if_any()


def _check_combination(given: Mapping[str, Any]) -> None:
    problems, granularity = Problems(), given.get("recompute_granularity")
    of_full = [name for name in _FULL_ONLY if name in given]
    kinds = {
        "whole": ["recompute"] * ("recompute" in given),
        "selective": ["recompute_modules"] * ("recompute_modules" in given),
        "none": [],
        "full": [*of_full],
    }
    if granularity:
        kinds[granularity].append("recompute_granularity")
    texts = [" and ".join(f"--{name} {given[name]}" for name in names) for names in kinds.values() if names]
    if len(texts) > 1:
        message = f"{texts[0]} cannot be given together with {' and '.join(texts[1:])}"
        raise BadRequestError(message, remedy="give those of one kind of recompute")
    remedy = "as in --recompute full:uniform:1"
    for name in ("recompute_method", "recompute_num_layers"):
        if granularity == "full" and name not in given:
            problems.add(f"--recompute_granularity full needs --{name}", remedy)
    if granularity is None and "recompute_num_layers" not in given:
        for name in of_full:
            problems.add(f"--{name} needs --recompute_granularity full", remedy)
    problems.raise_if_any()
