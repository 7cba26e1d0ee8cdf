"""Values of options as files write them: of the type that the option has on the command line."""

import types
from typing import Literal, Union, get_args, get_origin

from harness.recipes.strict_yaml import Node, Scalar, plain

OptionValue = str | int | float | bool | tuple[str, ...]


def as_text(node: Node) -> str | None:
    """A scalar as on the command line; None for a list, a mapping or nothing."""
    value = node.value if isinstance(node, Scalar) else None
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None or value == "" else str(value)


def option_value(node: Node, hint: object) -> OptionValue | None:
    """The value where it is of the option's type, else None."""
    value = plain(node)
    arms = _arms(hint)
    if isinstance(value, tuple) and get_origin(arms[0]) is tuple and all(isinstance(item, str) for item in value):
        return tuple(str(item) for item in value)
    if isinstance(value, bool):
        return value if bool in arms else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value if int in arms else float(value) if float in arms else None
    if isinstance(value, float):
        return value if float in arms else None
    words = [word for arm in arms if get_origin(arm) is Literal for word in get_args(arm)]
    return value if isinstance(value, str) and (str in arms or value in words) else None


def _arms(hint: object) -> tuple[object, ...]:
    """Types of an option's values without None."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(arm for arm in get_args(hint) if arm is not type(None))
    return (hint,)


def kind_of(hint: object) -> str:
    """What an option of this type takes, in words."""
    names = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
    kinds = [names.get(arm) if isinstance(arm, type) else None for arm in _arms(hint)]
    words = [word for arm in _arms(hint) if get_origin(arm) is Literal for word in get_args(arm)]
    return " or ".join([*(kind for kind in kinds if kind), *words]) or "a list of texts"
