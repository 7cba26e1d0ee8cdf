"""Which cells a sweep has: one change at a time from the control, or every combination."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import product

from harness.recipes.request import Request
from harness.runner.sweep.axes import AUTO, RECOMPUTE, SweptAxis
from harness.spec.experiment import ExperimentSpec

# Every recompute setting that differs in effect, for a request; what `auto` stands for.
EverySetting = Callable[[Request], tuple[str, ...]]


@dataclass(frozen=True)
class AskedCell:
    """The values of a cell by axis; an axis that is not there is as the request has it."""

    values: Mapping[str, str]
    asked: Request


@dataclass(frozen=True)
class Expansion:
    """How axes become cells of one request. ``control``: values of its cell, by axis."""

    asked: Request
    axes: tuple[SweptAxis, ...]
    control: Mapping[str, str]
    every_setting: EverySetting

    def cells(self, *, grid: bool) -> tuple[AskedCell, ...]:
        """The control first, then the others in the order of axes and values, each once."""
        found: list[Mapping[str, str]] = [self.control]
        for values in self._grid() if grid else self._one_at_a_time():
            if values not in found:
                found.append(values)
        return tuple(AskedCell(values, self._asked(values)) for values in found)

    def _one_at_a_time(self) -> Iterator[Mapping[str, str]]:
        for axis in self.axes:
            for value in self._values(axis, self.control):
                yield {**self.control, axis.name: value}

    def _grid(self) -> Iterator[Mapping[str, str]]:
        """Recompute varies fastest: what `auto` stands for depends on the other values."""
        others = [axis for axis in self.axes if axis.target != RECOMPUTE]
        recompute = [axis for axis in self.axes if axis.target == RECOMPUTE]
        for chosen in product(*(axis.values for axis in others)):
            values = dict(zip((axis.name for axis in others), chosen, strict=True))
            if not recompute:
                yield values
            for axis in recompute:
                yield from ({**values, axis.name: setting} for setting in self._values(axis, values))

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
    """Values of the control: those chosen, no recompute where recompute is varied, else what the request has."""
    swept = any(axis.target == RECOMPUTE for axis in axes)
    return ({RECOMPUTE: "none"} if swept else {}) | dict(chosen)


def told(axes: tuple[SweptAxis, ...], cell: AskedCell, spec: ExperimentSpec | None) -> dict[str, str]:
    """The cell's value of every axis as text; what it leaves to the request is read from its spec."""
    return {axis.name: cell.values.get(axis.name) or (axis.read(spec) if spec else "as asked") for axis in axes}


def name_of(changes: Mapping[str, str], control: Mapping[str, str] | None) -> str:
    """Values that differ from the control's, of the control all: ``mlp,core_attn``, ``tp=8``, ``none tp=4 pp=8``."""
    differing = {name: value for name, value in changes.items() if control is None or control.get(name) != value}
    return " ".join(value if name == RECOMPUTE else f"{name}={value}" for name, value in (differing or changes).items())
