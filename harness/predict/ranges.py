"""The ranges of predicted peaks and steps, by class, and the error of predicted costs: nine of ten lie in them.

The figures are in `ranges.json` and `fitted_times.json`, which `scripts/accuracy ranges` and `scripts/accuracy time
--fit` write from the comparisons in `results/accuracy`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import exp, hypot, log
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import GPUS
from harness.units import counted

DATA = Path(__file__).with_name("ranges.json")
# From this many measured cases on a class has quantiles of its own.
ENOUGH_ROWS = 10
# A smaller one takes the widest errors of itself and of its nearest class, by this factor.
WIDENED = 1.5
_SMALL_BYTES = 8_000_000_000

ClassName = Literal[
    "CPU runs", "CUDA graphs", "Megatron-FSDP", "offloading", "overlapped expert communication",
    "small models with experts", "models with experts", "dense models",
]  # fmt: skip


@dataclass(frozen=True)
class JobClass:
    """A class of jobs; the first that applies counts. ``nearest``: whose errors it takes where rows are few."""

    name: ClassName
    applies: Callable[[ExperimentSpec, int], bool]
    nearest: ClassName | None


CLASSES = (
    JobClass("CPU runs", lambda spec, _: spec.gpu_type.is_cpu, None),
    JobClass("CUDA graphs", lambda spec, _: spec.cuda_graph.impl != "none", "small models with experts"),
    JobClass("Megatron-FSDP", lambda spec, _: spec.ddp.use_megatron_fsdp, "dense models"),
    JobClass(
        "offloading",
        lambda spec, _: bool(spec.offload.offload_modules or spec.offload.cpu_offloading_num_layers),
        "small models with experts",
    ),
    JobClass(
        "overlapped expert communication",
        lambda spec, _: spec.model.moe is not None and spec.kernels.overlap_moe_expert_parallel_comm,
        "small models with experts",
    ),
    JobClass(
        "small models with experts",
        lambda spec, peak_bytes: spec.model.moe is not None and peak_bytes < _SMALL_BYTES,
        "dense models",
    ),
    JobClass("models with experts", lambda spec, _: spec.model.moe is not None, "small models with experts"),
    JobClass("dense models", lambda *_: True, None),
)


def class_of(spec: ExperimentSpec, peak_bytes: int) -> JobClass:
    """Return the class of a job with this predicted peak."""
    return next(row for row in CLASSES if row.applies(spec, peak_bytes))


@dataclass(frozen=True)
class Spread:
    """Where measured peaks of a class lie, as shares: of the predicted peak, and of the one with uneven routing.

    ``num_rows``: measured cases of the class itself. ``least_bytes``: how far from the predicted peak the range goes at
    least, either way. ``tenths``: below which parts of the way from the predicted peak to the upper end of the range
    one, two, up to nine of ten measured peaks lie.
    """

    num_rows: int
    lower: float
    higher: float
    higher_uneven: float
    tenths: tuple[float, ...] = ()
    least_bytes: int = 0

    def around(self, peak_bytes: int, uneven_bytes: int) -> tuple[int, int]:
        """Return both ends of the range. ``uneven_bytes``: the peak with uneven routing; the peak itself without."""
        low, high = peak_bytes * (1 + self.lower), peak_bytes * (1 + self.higher)
        if uneven_bytes > peak_bytes:
            high = max(peak_bytes, uneven_bytes * (1 + self.higher_uneven))
        return round(min(low, peak_bytes - self.least_bytes)), round(max(high, peak_bytes + self.least_bytes))

    def num_of_ten(self, part: float) -> int:
        """How many of ten measured peaks lie below ``part`` of the way from the predicted peak to the upper end."""
        return sum(each <= part for each in self.tenths)


@cache
def spreads() -> dict[str, Spread]:
    """Return the spread of every class, from the generated file."""
    rows = json.loads(DATA.read_text())["classes"]
    return {name: Spread(**row | {"tenths": tuple(row["tenths"])}) for name, row in rows.items()}


def spread_of(spec: ExperimentSpec, peak_bytes: int) -> tuple[ClassName, Spread]:
    """Return the name of the job's class, and its spread."""
    name = class_of(spec, peak_bytes).name
    return name, spreads()[name]


@dataclass(frozen=True)
class CostError:
    """How far predicted costs of settings are from measured ones, both as shares of a step's time.

    ``share``: of the cost itself. ``least``: for settings that cost almost nothing. ``num_rows``: costs of both kinds.
    """

    share: float
    least: float
    num_rows: int

    def between(self, first: float, second: float) -> float:
        """Return below which difference two costs are the same: that share of the higher: 0.2 and 0.3 at 9 %, 0.027."""
        return max(self.least, self.share * max(first, second))


def borrowed(ends: tuple[float, float], transfer: tuple[float, float, int]) -> tuple[float, float]:
    """Return a class's range on a type without such steps: errors' logarithms add as squares, 0.9 and 0.8: 0.781."""
    low, high = (hypot(log(own), log(other)) for own, other in zip(ends, transfer[:2], strict=True))
    return exp(-low), exp(high)


@cache
def cost_error() -> CostError:
    """Return the error of predicted costs, from the generated file."""
    return CostError(**json.loads(DATA.read_text())["costs"])


@dataclass(frozen=True)
class RatioError:
    """How far predicted ratios of two layouts' times are from ``num_rows`` measured ones, as a share."""

    share: float
    num_rows: int

    def hides(self, fastest: float, other: float) -> bool:
        """Return whether ``other`` may equal the shorter time ``fastest`` within this error; false without times."""
        return fastest > 0 and other <= fastest * (1 + self.share)


@cache
def ratio_error() -> RatioError:
    """Return the error of two layouts' predicted times, from the generated file."""
    return RatioError(**json.loads(DATA.read_text())["layouts"])


STEPS_WIDENED = 1.25
_REPEATS = 0.02  # results/accuracy/time.md, noise of published runs


@dataclass(frozen=True)
class Fitted:
    """What `scripts/accuracy time --fit` wrote.

    ``constants``: by generation of GPUs, or GPU type, by field of `time_model.Efficiency`; Hopper's hold nearly all.
    ``spreads``: by class of rows, between which multiples of the predicted seconds nine of ten measured ones are, and
    the number of rows. ``errors``: by GPU type and kind (:func:`sources_of`), mean share and steps, without its model.
    ``transfer``: as ``spreads``, of steps that are predicted without any row of their GPU type.
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
    """What the seconds of a step come from; ``text``: in words.

    ``kind``: steps ``measured`` on this GPU type, ``borrowed`` from the nearest ones, or constants of a ``probe`` or of
    ``runs``. ``gpus``, ``rows`` and ``error``: those measured steps, and by which share predictions were off.
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
