"""What a sweep can vary: one axis, how a value of it is asked for, and how it is read back from a spec."""

from dataclasses import dataclass, replace
from types import UnionType
from typing import Union, get_args, get_origin, get_type_hints

from harness.errors import BadRequestError
from harness.recipes.axes import RECOMPUTE_OPTIONS
from harness.recipes.options import LEAF_OF_OPTION
from harness.recipes.request import Request
from harness.spec.experiment import ExperimentSpec
from harness.units import GIB

RECOMPUTE, AUTO, UNSET = "recompute", "auto", "unset"

_TYPES = get_type_hints(Request)
_LEAVES = LEAF_OF_OPTION | {"cuda_graph_scope": "cuda_graph.scope", "memory_limit": "measure.memory_limit_bytes"}
_READ: dict[type[int | float | str], str] = {int: "a whole number", float: "a number", str: "a text"}


@dataclass(frozen=True)
class SweptAxis:
    """One axis. ``name`` is how cells are named by it; ``target`` an option, ``env.NAME`` or ``section.field``.

    Of ``recompute``, the value ``auto`` stands for every setting that differs in effect.
    """

    name: str
    target: str
    values: tuple[str, ...]

    @property
    def leaf(self) -> str:
        """The path in an ExperimentSpec that it decides; itself for what is no leaf, such as ``variant``."""
        return _LEAVES.get(self.target, self.target)

    def ask(self, asked: Request, value: str) -> Request:
        """``asked`` with this axis at ``value``, whatever it said about it before."""
        if self.target == RECOMPUTE:
            return replace(asked, **dict.fromkeys(RECOMPUTE_OPTIONS) | {RECOMPUTE: value})  # type: ignore[arg-type]
        if "." not in self.target:
            return replace(asked, **{self.target: typed(self.target, value, self.name)})  # type: ignore[arg-type]
        set_values = (*_without(asked.set_values, self.target), f"{self.target}={value}")
        env = asked.env
        if self.target.startswith("env."):
            env = _without(env, self.target.removeprefix("env."))
        return replace(asked, env=env, set_values=set_values)

    def read(self, spec: ExperimentSpec) -> str:
        """The value that ``spec`` has, as a person would write it."""
        if self.leaf == RECOMPUTE:
            return spec.recompute.text
        if self.leaf.startswith("env."):
            return spec.env.get(self.leaf.removeprefix("env."), UNSET)
        value: object = spec
        for name in self.leaf.split("."):
            value = getattr(value, name, None)
        return f"{value / GIB:g}" if self.target == "memory_limit" and isinstance(value, int) else as_text(value)


def _without(assignments: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(text for text in assignments if text.partition("=")[0].strip() != name)


def typed(option: str, value: str, place: str) -> int | float | str:
    """The text as the type of a Request field. BadRequestError, opened by ``place``, where it is none."""
    kinds = _kinds(_TYPES[option])
    if value == "none" and option == "virtual_pipeline_model_parallel_size":
        return value
    kind = next(kind for kind in _READ if kind in kinds)
    try:
        return kind(value)
    except ValueError as error:
        raise BadRequestError(
            f"{place}: {value!r} is not {_READ[kind]}", remedy=f"{option} takes {_READ[kind]}"
        ) from error


def _kinds(annotation: object) -> tuple[object, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def as_text(value: object) -> str:
    """A leaf as a person would write it on the command line."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case tuple():
            return ",".join(map(as_text, value)) or "none"
        case _:
            return str(value)
