"""The `request` of a suite or a sweep file: options of `mbr-perf run` by their long names, and what they ask for."""

import types
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import create_model

from harness.recipes.axes import RECOMPUTE_OPTIONS
from harness.recipes.points import KNOWN_NAMES
from harness.recipes.reading import FileModel, one_of
from harness.recipes.recipe import Request

OptionValue = str | int | float | bool | tuple[str, ...]

_FOR_RECIPE = ("recipe", "recipe_name", "model_recipe", "model_recipe_name")  # what people write for the recipe's name


class _Options(FileModel):
    """Options of a `Request`; an option that is not set says nothing."""

    @property
    def said(self) -> dict[str, OptionValue]:
        """The options that are given."""
        return self.model_dump(exclude_unset=True)

    @classmethod
    def remedy_for(cls, key: str) -> str:
        """People write `recipe` for the recipe's name."""
        return "did you mean 'model_recipe_name'?" if key in _FOR_RECIPE else ""


def _field(name: str, hint: object) -> tuple[Any, None]:
    """The type of an option in a file, and None for an option that says nothing. A file does not write null."""
    arms = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    annotation: Any = Union[tuple(arm for arm in arms if arm is not type(None))]  # noqa: UP007 (of a tuple)
    return (Annotated[annotation, one_of(KNOWN_NAMES[name])] if name in KNOWN_NAMES else annotation), None


if TYPE_CHECKING:
    Options = _Options
else:
    _FIELDS = {name: _field(name, hint) for name, hint in get_type_hints(Request).items() if name != "recipes_dir"}
    Options = create_model("Options", __base__=_Options, **_FIELDS)


class FileWithRequest(FileModel):
    """A mapping with a ``request``: what belongs into it is sent there."""

    @classmethod
    def remedy_for(cls, key: str) -> str:
        """Options that stand beside `request`."""
        if key in _FOR_RECIPE:
            return "write model_recipe_name under request"
        return "write it under request" if key in Options.model_fields else ""


def as_texts(value: object) -> tuple[str, ...]:
    """One value or a list of them as on the command line; empty where one of them is no single value."""
    values = value if isinstance(value, tuple) else (value,)
    if any(each is None or each == "" or isinstance(each, tuple | dict) for each in values):
        return ()
    return tuple(str(each).lower() if isinstance(each, bool) else str(each) for each in values)


def request_of(options: Options) -> Request:
    """A request that says what ``options`` of a file say, and nothing else."""
    return Request(**{"model_recipe_name": "", "gpu": "", **options.said})  # type: ignore[arg-type]


def laid_over(base: Request, given: Request) -> Request:
    """``base`` with what ``given`` says over it, option by option.

    Recompute is one value: whoever says anything about it says all. ``env`` and ``set_values`` meet name by name.
    """
    said = {name: value for name, value in vars(given).items() if value not in (None, "", ())}
    if any(name in said for name in RECOMPUTE_OPTIONS):
        base = replace(base, **dict.fromkeys(RECOMPUTE_OPTIONS))  # type: ignore[arg-type]
    for name in ("env", "set_values"):
        said[name] = _assignments(getattr(base, name), getattr(given, name))
    return replace(base, **said)


def _assignments(base: tuple[str, ...], given: tuple[str, ...]) -> tuple[str, ...]:
    names = {text.partition("=")[0].strip() for text in given}
    return (*(text for text in base if text.partition("=")[0].strip() not in names), *given)
