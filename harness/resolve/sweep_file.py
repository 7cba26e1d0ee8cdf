"""Sweep files, the axes that a sweep can vary, and what sweep and suite files share: `request` and places."""

import types
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator, Field, PrivateAttr, create_model

from harness.errors import BadRequestError, nearest
from harness.experiment.model import Repeats
from harness.records.folders import SWEEPS
from harness.records.refusing import FileModel, RefusedError, one_of
from harness.records.strict_yaml import read_yaml
from harness.resolve.find import is_path, recipes_dir, require_inside
from harness.resolve.points import KNOWN_NAMES
from harness.resolve.recipe import Request

SHORT_NAMES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "et": "expert_tensor_parallel_size",
    "mb": "micro_batch_size",
    "gb": "global_batch_size",
    "sl": "seq_length",
    "ng": "num_gpus",
    "ol": "activation_offload_layers",
    "ms": "max_steps",
    "c": "compute_dtype",
    "cv": "variant",
    "gn": "gpus_per_node",
}
"""Short names, as of the options, and the field of a `Request` that each stands for."""

_OF_ONE_ENGINE = "one sweep trains with one engine"
_OF_ONE_RECIPE, _OF_ONE_GPU = "one sweep compares settings of one recipe", "one sweep runs on one kind of GPU"
_AS_RECOMPUTE = "write --over recompute='none; core_attn,mlp; full:uniform:1'"
NO_AXIS = {
    "model_recipe_name": _OF_ONE_RECIPE,
    "model_family_name": _OF_ONE_RECIPE,
    "recipes_dir": _OF_ONE_RECIPE,
    "source": _OF_ONE_RECIPE,
    "engine": _OF_ONE_ENGINE,
    "forward_step": _OF_ONE_ENGINE,
    "gpu": _OF_ONE_GPU,
    "point_gpu": _OF_ONE_GPU,
    "env": "write --over env.NAME=VALUE",
    "set_values": "write --over SECTION.FIELD=VALUE",
    "recompute_modules": _AS_RECOMPUTE,
    "recompute_num_layers": _AS_RECOMPUTE,
    "recompute_granularity": _AS_RECOMPUTE,
    "recompute_method": _AS_RECOMPUTE,
    "distribute_saved_activations": _AS_RECOMPUTE,
}
"""Fields of a `Request` that are not varied, and what to do instead."""

RECOMPUTE_OPTIONS = ("recompute", *(name for name, instead in NO_AXIS.items() if instead is _AS_RECOMPUTE))
"""Fields of a `Request` that set recompute."""

OPTION_NAMES = tuple(field.name for field in fields(Request) if field.name not in NO_AXIS)
"""Long names of the options that can be varied."""

# Names of `--over`, each with its option.
SIZES = {name: SHORT_NAMES[name] for name in ("tp", "pp", "vp", "cp", "ep", "et", "mb", "gb", "sl", "ng")}
SWEPT = SIZES | {"vpp": SIZES["vp"], "mbs": SIZES["mb"], "gbs": SIZES["gb"]}


class Over(NamedTuple):
    """An axis as given: by any of its names. ``place`` opens messages."""

    name: str
    values: tuple[str, ...]
    place: str


OptionValue = str | int | float | bool | tuple[str, ...]


class _Options(FileModel):
    """Options of a `Request`; an unset option changes nothing."""

    @property
    def given(self) -> dict[str, OptionValue]:
        return self.model_dump(exclude_unset=True)


def _field(name: str, hint: object) -> tuple[Any, None]:
    """Return the type of an option in a file, and None for an unset option. A file does not write null."""
    arms = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    annotation: Any = Union[tuple(arm for arm in arms if arm is not type(None))]  # noqa: UP007 (of a tuple)
    return (Annotated[annotation, one_of(KNOWN_NAMES[name])] if name in KNOWN_NAMES else annotation), None


if TYPE_CHECKING:
    Options = _Options
else:
    _FIELDS = {
        name: _field(name, hint)
        for name, hint in get_type_hints(Request).items()
        if name not in ("recipes_dir", "source", "engine", "forward_step")
    }
    Options = create_model("Options", __base__=_Options, **_FIELDS)


def as_texts(value: object) -> tuple[str, ...]:
    """Return one value or a list as texts of the command line; empty if an item is no single value."""
    values = value if isinstance(value, tuple) else (value,)
    if any(each is None or each == "" or isinstance(each, tuple | dict) for each in values):
        return ()
    return tuple(str(each).lower() if isinstance(each, bool) else str(each) for each in values)


def request_of(options: Options) -> Request:
    """Return a request with the ``options`` of a file and nothing else."""
    return Request(**{"model_recipe_name": "", "gpu": "", **options.given})  # type: ignore[arg-type]


def laid_over(base: Request, given: Request) -> Request:
    """Return ``base`` with the options of ``given`` over it; ``env`` and ``set_values`` merge name by name.

    Recompute is one value: a layer that sets a part of it replaces all. A file of another program replaces the recipe.
    """
    values = {name: value for name, value in vars(given).items() if value not in (None, "", ())}
    if given.source is not None:
        base = replace(base, model_recipe_name="", model_family_name=None, variant=None, point_gpu=None)
    if any(name in values for name in RECOMPUTE_OPTIONS):
        base = replace(base, **dict.fromkeys(RECOMPUTE_OPTIONS))  # type: ignore[arg-type]
    for name in ("env", "set_values"):
        names = {text.partition("=")[0].strip() for text in getattr(given, name)}
        kept = (text for text in getattr(base, name) if text.partition("=")[0].strip() not in names)
        values[name] = (*kept, *getattr(given, name))
    return replace(base, **values)


def find_named(folder: str, asked_by: str, name: str, directory: Path | None) -> tuple[Path, str]:
    """Return the file of that name in a folder of the recipe directory, or at that path, and its label."""
    if is_path(name):
        if not Path(name).is_file():
            raise BadRequestError(
                f"{asked_by} {name}: no such file", remedy="name a .yaml file, or a shipped one by name"
            )
        return Path(name), name
    root = recipes_dir(directory)
    files = {path.stem: path for path in sorted((root / folder).glob("*.yaml"))}
    if name not in files:
        raise BadRequestError(f"{asked_by} {name}: no such name in {folder}/", remedy=nearest(name, files))
    require_inside(root, files[name], f"{asked_by} {name}")
    return files[name], f"{root.name}/{folder}/{files[name].name}"


def _texts(value: object) -> tuple[str, ...]:
    if texts := as_texts(value):
        return texts
    raise RefusedError.at((), "must be a list of values", "as in [1, 2]")


class SweepFile(FileModel):
    """The request of a sweep file; the command line overrides it. ``over`` has values as text, in the file's order."""

    title: str = Field(description="what the comparison is about")
    source: str = Field(default="", description="where it is known from")
    request: Options = Field(
        description="long names of `mbr-perf run`'s options and their values; `model_recipe_name` is needed"
    )
    over: dict[str, Annotated[tuple[str, ...], BeforeValidator(_texts)]] = Field(
        min_length=1,
        description="the values of every axis; `recompute: auto` stands for every setting that differs in effect",
    )
    grid: bool = Field(
        default=False, description="`true`: every combination; else one change at a time from the control"
    )
    repeats: Repeats = Field(
        default=1, description="runs of each cell, interleaved; three or more give intervals of confidence"
    )
    control: str | None = Field(
        default=None,
        description="`AXIS=VALUE ...` of the cell that the others are compared with; else the request itself, "
        "without recompute where it is varied",
    )
    _places: dict[str, str] = PrivateAttr({})

    @property
    def axes(self) -> tuple["Over", ...]:
        return tuple(Over(name, values, self._places[name]) for name, values in self.over.items())


def read_sweep_file(name_or_path: str, directory: Path | None = None) -> SweepFile:
    """Read the sweep file of that name, or at that path. BadRequestError with every problem at its ``file:line``."""
    file = read_yaml(*find_named(SWEEPS, "--file", name_or_path, directory))
    sweep = file.read(SweepFile)
    if "model_recipe_name" not in (sweep.request.given if sweep else {"model_recipe_name"}):
        file.refuse(("request", "model_recipe_name"), "missing", "name a recipe")
    sweep = file.problems.having(sweep)
    sweep._places.update({name: file.place(("over", name)) for name in sweep.over})
    return sweep
