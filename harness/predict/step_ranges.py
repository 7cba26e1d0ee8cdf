"""The range of a step, by class, and the measured steps that it is from, as `scripts/accuracy time --fit` wrote."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from harness.experiment.gpu import GPUS
from harness.predict.ranges import ENOUGH_ROWS
from harness.units import counted

STEPS_WIDENED = 1.25
_REPEATS = 0.02  # results/accuracy/time.md, noise of published runs


@dataclass(frozen=True)
class Fitted:
    """What `scripts/accuracy time --fit` wrote.

    ``constants``: by generation or type of GPUs, by field of `time_model.Efficiency`. ``spreads``: by class of rows,
    between which multiples of the predicted seconds nine of ten measured ones are. ``errors``: mean share and steps by
    GPU type and kind. ``transfer``: as ``spreads``, of steps predicted without any row of their GPU type.
    """

    constants: Mapping[str, Mapping[str, float]]
    spreads: Mapping[str, tuple[float, float, int]]
    errors: Mapping[str, Mapping[str, tuple[float, int]]]
    transfer: tuple[float, float, int]


@cache
def fitted() -> Fitted:
    """Read the file beside this module."""
    found = json.loads(Path(__file__).with_name("fitted_times.json").read_text())
    return Fitted(**{name: found[name] for name in ("constants", "spreads", "errors", "transfer")})


def generation_of(gpu: str) -> str:
    """Return ``8.x``, ``9.x`` or ``10.x``: the first number of the GPU's compute capability, within these."""
    return f"{min(max((GPUS[gpu].capability or (8, 0))[0], 8), 10)}.x"


@cache
def sources_of(gpu: str, kind: str) -> dict[tuple[str, str], tuple[float, int]]:
    """Return the nearest measured steps of a class by GPU type and kind, which is as ``fp8 short dense``.

    Its own; else those of its generation, whose constants it has; else of others; its precision before another. Where
    none is measured anywhere, those that the same part of the machine makes slow: ``host-bound experts``.
    """

    def distance(where: tuple[str, str]) -> tuple[bool, bool, bool]:
        return generation_of(where[0]) != generation_of(gpu), where[1] != kind, where != (gpu, kind)

    rows = {(name, each): row for name, kinds in fitted().errors.items() for each, row in kinds.items()}
    of = kind.partition(" ")[2]
    alike = {where: row for where, row in rows.items() if where[1].partition(" ")[2] == of}
    alike = alike or {where: row for where, row in rows.items() if where[1].split()[1] == of.split()[0]}
    nearest = min(map(distance, alike))
    return {where: row for where, row in alike.items() if distance(where) == nearest}


@dataclass(frozen=True)
class StepSource:
    """What the seconds are from: steps ``measured`` on this GPU type or ``borrowed``, a ``probe`` or ``runs``.

    ``gpus``, ``rows`` and ``error``: those measured steps, and by which share predictions were off.
    """

    kind: Literal["measured", "borrowed", "probe", "runs"]
    gpus: tuple[str, ...]
    rows: int
    error: float
    text: Annotated[str, Field(exclude=True)]


@cache
def source_of(gpu: str, kind: str) -> StepSource:
    """Return how far predictions of such steps were off; if none is measured on this GPU type, where they are from."""
    found = sources_of(gpu, kind)
    rows = sum(num for _, num in found.values())
    error = round(sum(share * num for share, num in found.values()) / rows, 4)
    names = tuple(dict.fromkeys(name for name, _ in found))
    if (gpu, kind) in found:
        text = f"{counted(rows, f'measured {gpu} {kind} step')}: predictions were {error * 100:.1f} % off on average"
        return StepSource("measured", names, rows, error, text)
    steps = (f"{counted(n, f'{name} {its} step')} ({e * 100:.1f} % off)" for (name, its), (e, n) in found.items())
    text = f"borrowed from {', '.join(steps)}: no {gpu} {kind} step is measured (see mbr-perf probe)"
    return StepSource("borrowed", names, rows, error, text)


def step_spread(kind: str, spreads: Mapping[str, tuple[float, float, int]]) -> tuple[float, float, int]:
    """Return how far the seconds of a class of steps go, low and high, and the number of rows that say so.

    A class with few rows takes the widest residuals of its generation's classes, or of the same class of others, times
    :data:`STEPS_WIDENED`. No range is narrower than runs of equal settings differ.
    """
    generation, _, own = kind.partition(" ")
    low, high, num_rows = spreads.get(kind, (1.0, 1.0, 0))
    if num_rows >= ENOUGH_ROWS or not spreads:
        return min(low, 1 - _REPEATS), max(high, 1 + _REPEATS), num_rows
    alike = {name: row for name, row in spreads.items() if ("short" in name) == ("short" in kind)}
    near = [row for name, row in alike.items() if name.split()[0] == generation or name.partition(" ")[2] == own]
    near = near or list(spreads.values())
    low, high = min(row[0] for row in near), max(row[1] for row in near)
    return 1 / (1 + STEPS_WIDENED * (1 / low - 1)), 1 + STEPS_WIDENED * (high - 1), num_rows
