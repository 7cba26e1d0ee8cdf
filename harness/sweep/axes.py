"""The axes of a sweep and the cells that follow: one change at a time from the control, or every combination."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import get_type_hints

from pydantic import TypeAdapter, ValidationError

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import shown_setting
from harness.resolve.options import LEAF_OF_OPTION
from harness.resolve.recipe import Request
from harness.resolve.sweep_file import RECOMPUTE_OPTIONS
from harness.units import GIB

RECOMPUTE, AUTO, UNSET = "recompute", "auto", "unset"
PYTHON, OWN = "python", "own"
"""The axis of Python environments for the ranks, and its value for the one that runs mbr-perf."""

MOST_CELLS = 1_000  # days of runs; checking so many takes some seconds

_TYPES = get_type_hints(Request)
_LEAVES = LEAF_OF_OPTION | {"cuda_graph_scope": "cuda_graph.scope", "memory_limit": "measure.memory_limit_bytes"}


@dataclass(frozen=True)
class SweptAxis:
    """One axis. ``name`` appears in the names of cells; ``target``: an option, ``env.NAME`` or ``section.field``."""

    name: str
    target: str
    values: tuple[str, ...]

    @property
    def leaf(self) -> str:
        """The path in an ExperimentSpec that it sets; the target itself if that is no leaf, such as ``variant``."""
        return _LEAVES.get(self.target, self.target)

    def ask(self, asked: Request, value: str) -> Request:
        """Return ``asked`` with this axis set to ``value``."""
        if self.target == PYTHON:
            return asked
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
        """Return the value in ``spec``, as a user writes it."""
        if self.leaf == RECOMPUTE:
            return spec.recompute.text
        if self.target == PYTHON:
            return OWN
        if self.leaf.startswith("env."):
            return spec.env.get(self.leaf.removeprefix("env."), UNSET)
        value: object = spec
        for name in self.leaf.split("."):
            value = getattr(value, name, None)
        return f"{value / GIB:g}" if self.target == "memory_limit" and isinstance(value, int) else as_text(value)


def _without(assignments: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(text for text in assignments if text.partition("=")[0].strip() != name)


def typed(option: str, value: str, place: str) -> int | float | str:
    """Convert the text to the type of a Request field. BadRequestError, opened by ``place``, if it does not fit."""
    try:
        read: int | float | str = TypeAdapter(_TYPES[option]).validate_strings(value)
    except ValidationError as error:
        raise BadRequestError(f"{place}: {value!r} is no value of {option}", remedy=error.errors()[0]["msg"]) from error
    return read


def as_text(value: object) -> str:
    """Return a leaf as a user writes it on the command line."""
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


@dataclass(frozen=True)
class AskedCell:
    """The values of a cell by axis; a missing axis has the value of the request."""

    values: Mapping[str, str]
    asked: Request


@dataclass(frozen=True)
class Expansion:
    """How axes become cells of one request. ``control``: its values. ``every_setting``: those of `auto`."""

    asked: Request
    axes: tuple[SweptAxis, ...]
    control: Mapping[str, str]
    every_setting: Callable[[Request], tuple[str, ...]]

    def cells(self, *, grid: bool) -> tuple[AskedCell, ...]:
        """Return the control first, then the others, each once. BadRequestError for more than ``MOST_CELLS`` cells."""
        sizes = [len(axis.values) for axis in self.axes]
        if (count := prod(sizes) if grid else sum(sizes)) > MOST_CELLS:
            remedy = (
                f"a sweep has at most {MOST_CELLS:,}: name fewer values{', or vary one axis at a time' if grid else ''}"
            )
            raise BadRequestError(f"{count:,} cells are too many", remedy=remedy)
        found = {tuple(sorted(self.control.items())): self.control}
        one_at_a_time = (
            {**self.control, axis.name: value} for axis in self.axes for value in self._values(axis, self.control)
        )
        for values in self._grid() if grid else one_at_a_time:
            found.setdefault(tuple(sorted(values.items())), values)
        return tuple(AskedCell(values, self._asked(values)) for values in found.values())

    def _grid(self) -> list[dict[str, str]]:
        """Return every combination. The settings of `auto` depend on the other values, so recompute varies fastest."""
        found: list[dict[str, str]] = [{}]
        for axis in sorted(self.axes, key=lambda axis: axis.target == RECOMPUTE):
            found = [{**values, axis.name: value} for values in found for value in self._values(axis, values)]
        return found

    def _values(self, axis: SweptAxis, around: Mapping[str, str]) -> Iterator[str]:
        for value in axis.values:
            if value == AUTO and axis.target == RECOMPUTE:
                yield from self.every_setting(self._asked(around))
            else:
                yield value

    def _asked(self, values: Mapping[str, str]) -> Request:
        chosen = [axis for axis in self.axes if axis.name in values]
        return reduce(lambda asked, axis: axis.ask(asked, values[axis.name]), chosen, self.asked)


def control_values(axes: tuple[SweptAxis, ...], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the control's values: the chosen ones, no recompute if recompute is varied, else the request's."""
    swept = any(axis.target == RECOMPUTE for axis in axes)
    return ({RECOMPUTE: "none"} if swept else {}) | dict(chosen)


def values_of(axes: tuple[SweptAxis, ...], cell: AskedCell, spec: ExperimentSpec | None) -> dict[str, str]:
    """Return the cell's value of every axis as text; a value from the request is read from its spec."""
    return {axis.name: cell.values.get(axis.name) or (axis.read(spec) if spec else "as asked") for axis in axes}


def name_of(changes: Mapping[str, str], control: Mapping[str, str] | None) -> str:
    """Join the values that differ from the control's; all values of the control: ``tp=8``, ``none tp=4 pp=8``."""
    differing = {name: value for name, value in changes.items() if control is None or control.get(name) != value}
    return " ".join(
        shown_setting(value) if name == RECOMPUTE else f"{name}={value}"
        for name, value in (differing or changes).items()
    )
