"""The range of a predicted peak, by class of job, and the error of predicted costs: nine of ten lie in it.

The figures are in `ranges.json`, which `scripts/accuracy ranges` writes from the comparisons in `results/accuracy`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import exp, hypot, log
from pathlib import Path
from typing import Literal

from harness.experiment.experiment import ExperimentSpec

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

    ``least_bytes``: how far the range goes at least, either way. ``tenths``: below which parts of the way to its upper
    end one, two, up to nine of ten measured peaks lie.
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
    """How far predicted costs are from measured ones: as a ``share`` of the cost, and the ``least`` of small ones."""

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
