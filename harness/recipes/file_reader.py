"""Reads a file of settings and collects all that is wrong in it."""

import types
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Literal, Union, get_args, get_origin, get_type_hints

from harness.recipes.problems import Problems, nearest
from harness.recipes.recipe import Request
from harness.recipes.strict_yaml import Node, Scalar, Table, plain

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


FOR_RECIPE = ("recipe", "recipe_name", "model_recipe", "model_recipe_name")
"""What people write for the recipe's name."""

OPTIONS = {name: hint for name, hint in get_type_hints(Request).items() if name != "recipes_dir"}
"""Fields of a `Request` that a file may give, and their types."""


class FileReader:
    """One pass over the tree of a file called ``label``; collects problems instead of stopping at the first.

    ``where`` opens a message about a key: empty for the file itself, else the path of its table and a dot.
    """

    def __init__(self, label: str, problems: Problems) -> None:
        self.label, self.problems = label, problems

    def refuse(self, line: int, message: str, remedy: str) -> None:
        """Note one fault at its line."""
        self.problems.add(f"{self.label}:{line}: {message}", remedy)

    @contextmanager
    def collecting(self, line: int, prefix: str = "") -> Iterator[None]:
        """Keep what the block raises as wrong request, at this line."""
        raised = Problems()
        with raised.collecting():
            yield
        for problem in raised.found:
            self.refuse(line, prefix + problem.message, problem.remedy)

    def table(self, node: Node, where: str) -> Table | None:
        """The node where it is a mapping."""
        if isinstance(node, Table):
            return node
        self.refuse(node.line, f"{where}: must be a mapping", "write key: value pairs")
        return None

    def require_known(self, table: Table, keys: Collection[str], where: str = "") -> None:
        """Refuse keys that there are not; what belongs to the request is sent there."""
        for key, line in table.key_lines.items():
            if key in keys:
                continue
            remedy = nearest(key, keys)
            if "request" in keys and key in FOR_RECIPE:
                remedy = "write model_recipe_name under request"
            elif "request" in keys and key in OPTIONS:
                remedy = "write it under request"
            self.refuse(line, f"{where}{key}: no such setting", remedy)

    def text(self, table: Table, key: str, where: str = "") -> str:
        """Text; empty where it is not given."""
        node = table.entries.get(key)
        value = plain(node) if node is not None else ""
        if isinstance(value, str):
            return value
        self.refuse(table.key_lines[key], f"{where}{key}: must be text, is {value!r}", "quote it")
        return ""

    def flag(self, table: Table, key: str) -> bool:
        """True or false; false where it is not given."""
        value = plain(table.entries[key]) if key in table.entries else False
        if isinstance(value, bool):
            return value
        self.refuse(table.key_lines[key], f"{key}: must be true or false, is {value!r}", "write true or false")
        return False

    def count(self, table: Table, key: str, where: str = "") -> int:
        """A count of at least 1; 1 where it is not given."""
        value = plain(table.entries[key]) if key in table.entries else 1
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        self.refuse(table.key_lines[key], f"{where}{key}: must be a count of at least 1, is {value!r}", "e.g. 3")
        return 1

    def options(self, table: Table, where: str) -> dict[str, OptionValue]:
        """Options of `mbr-perf run` by their long names; ``where`` is the path of their table."""
        given: dict[str, OptionValue] = {}
        for key, value in table.entries.items():
            if key not in OPTIONS:
                remedy = "did you mean 'model_recipe_name'?" if key in FOR_RECIPE else nearest(key, OPTIONS)
                self.refuse(table.key_lines[key], f"{where}.{key}: no such option", remedy)
                continue
            read = option_value(value, OPTIONS[key])
            if read is None:
                says = f"{where}.{key}: must be {kind_of(OPTIONS[key])}, is {plain(value)!r}"
                self.refuse(table.key_lines[key], says, "write it as on the command line")
            else:
                given[key] = read
        return given
