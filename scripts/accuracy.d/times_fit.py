"""Fits seconds to measured steps, leaves each model out in turn, and takes ranges from what is then left."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log, sqrt
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from page import data_text
from times_steps import SCATTER, Step

from harness.predict import step_ranges, time_model
from harness.predict.calibration import least_squares
from harness.predict.ranges import ENOUGH_ROWS, borrowed
from harness.predict.step_ranges import STEPS_WIDENED, step_spread
from harness.predict.time_model import LIKELY, Efficiency, StepTime, base_of, kind_of_error
from harness.records.store import write_atomically
from harness.units import grouped

FILE = Path(step_ranges.__file__).with_name("fitted_times.json")

# Where the fit starts: at the values that other GPUs keep. Collectives without NVLS, which the settings of the rows turn off,
# start lower. The seconds of the host are guesses to start from: an operation of torch with its autograd node, and a call of a module
# of transformer-engine, which has several of them.
START = replace(LIKELY, link=0.6, exposed=0.3, launch_s=20e-6, call_s=160e-6)
BOUNDS: dict[str, tuple[float, float]] = {
    "gemm_bf16": (0.3, 0.95), "gemm_low_precision": (0.3, 0.95), "memory": (0.3, 0.95), "link": (0.2, 0.95),
    "exposed": (0.01, 1.0), "launch_s": (1e-6, 1e-3), "call_s": (1e-6, 1e-3), "norm": (1.2, 20.0),
}  # fmt: skip
MEANING = {
    "gemm_bf16": "share of the data sheet's BF16 peak that a matrix product of full waves reaches, without its bytes",
    "gemm_low_precision": "the same of FP8",
    "memory": "share of the memory bandwidth that kernels bound by memory reach",
    "link": "share of NVLink's rate that collectives reach",
    "exposed": "share of a communication beside computation that still makes the step longer",
    "launch_s": "seconds of the host per simple operation, eager",
    "call_s": "seconds of the host per matrix product or attention, which a module starts from Python",
    "norm": "the seconds of GPU and host add up to this power; a large one leaves the slower of the two",
}
# What steps of other generations determine; the rest is Hopper's, or before Hopper fixed. Then what steps of one GPU type do: Blackwell's
# differ in power, and Blackwell Ultra's exponentials, which attention waits for, are twice as fast.
OWN = {"8.x": ("gemm_bf16",), "10.x": ("gemm_bf16", "gemm_low_precision", "fp4_of_fp8", "attention", "memory")}
OWN_OF_TYPES = dict.fromkeys(("gb200", "gb300"), ("gemm_low_precision", "attention"))
BOUNDS_OF_OTHERS = (0.2, 1.0)
# A constant that is off its start by a fifth costs as much as a published step that is off by this share.
_PULL = 0.09
# Errors beyond this many times their scatter count linearly, so that one odd row does not bend all constants.
_LINEAR_FROM = 1.5
_ROUNDS = 25
FEW_MODELS = 4


@dataclass(frozen=True)
class Compared:
    """A step with its prediction by constants that were fitted without its model, and by all rows' constants."""

    step: Step
    time: StepTime
    fitted_s: float
    kind: str

    @property
    def error(self) -> float:
        """Signed, as a share of what was measured."""
        return self.time.likely_s / self.step.seconds - 1

    @property
    def ratio(self) -> float:
        return self.step.seconds / self.time.likely_s


@dataclass(frozen=True)
class Fit:
    """Constants by generation, fitted on all its steps, and every step as seen by a fit without its model.

    ``without_type``: steps of GPU types other than H100, as seen by a fit without their type.
    """

    constants: Mapping[str, Mapping[str, float]]
    compared: tuple[Compared, ...]
    without_type: tuple[Compared, ...] = ()

    @cached_property
    def spreads(self) -> dict[str, tuple[float, float, int]]:
        """Return by class: the low and high end of measured over predicted seconds, and the number of rows."""
        return spreads(self.compared)

    @cached_property
    def errors(self) -> dict[str, dict[str, tuple[float, int]]]:
        """Return by GPU type, and by precision and class: the mean error as a share, and the number of rows."""
        by_gpu = sorted(self.compared, key=lambda row: row.step.spec.gpu)
        kinds = grouped((row.step.spec.gpu, (kind_of_error(row.step.spec, row.time), abs(row.error))) for row in by_gpu)
        return {gpu: {kind: (mean(of), len(of)) for kind, of in grouped(rows).items()} for gpu, rows in kinds.items()}

    @cached_property
    def transfer(self) -> tuple[float, float, int]:
        """Return the ends of what types have measured over what is predicted without them, and the number of rows."""
        return _transfer(self.without_type)

    def borrowed_range_of(self, row: Compared) -> tuple[float, float]:
        """Return the seconds that a type without rows gets, from rows of other types."""
        gpu = row.step.spec.gpu
        compared, without_type = (
            [x for x in of if x.step.spec.gpu != gpu] for of in (self.compared, self.without_type)
        )
        low, high = borrowed(step_spread(row.kind, spreads(compared))[:2], _transfer(without_type))
        return row.time.likely_s * low, row.time.likely_s * high

    def range_of(self, row: Compared) -> tuple[float, float]:
        """Seconds that hold nine of ten steps, from residuals of other models' rows."""
        others = spreads(each for each in self.compared if each.step.model != row.step.model)
        low, high, _ = step_spread(row.kind, others)
        return row.time.likely_s * min(1.0, low), row.time.likely_s * max(1.0, high)


def fit(steps: Sequence[Step]) -> Fit:
    """Fit Hopper's steps, then what others determine; each generation again without each of its models."""
    hopper, rows = START, []
    found: dict[str, dict[str, float]] = {}
    for generation in ("9.x", *OWN):
        own = [step for step in steps if step.generation == generation]
        whole = _by_type(own, generation, base_of(generation, hopper))
        for key, each in whole.items():
            found[key] = {name: getattr(each, name) for name in OWN_OF_TYPES.get(key) or OWN.get(key, tuple(BOUNDS))}
        hopper = whole[generation] if generation == "9.x" else hopper
        for model in dict.fromkeys(step.model for step in own):
            without = _by_type([step for step in own if step.model != model], generation, whole[generation])
            for step in (step for step in own if step.model == model):
                other, likely = (every.get(step.spec.gpu, every[generation]) for every in (without, whole))
                rows.append(Compared(step, step.time(other), step.predicted(likely), step.kind(other)))
    return Fit(found, tuple(rows), tuple(_without_type(steps, hopper)))


def _without_type(steps: Sequence[Step], hopper: Efficiency) -> Iterator[Compared]:
    """Predict each GPU type's steps from those of its generation's other types, or from Hopper's alone."""
    for generation in OWN:
        alike = [step for step in steps if step.generation == generation]
        for gpu in dict.fromkeys(step.spec.gpu for step in alike):
            others, known = [step for step in alike if step.spec.gpu != gpu], base_of(generation, hopper)
            known = _by_type(others, generation, known)[generation] if others else known
            for step in (step for step in alike if step.spec.gpu == gpu):
                yield Compared(step, time := step.time(known), time.likely_s, step.kind(known))


def _by_type(steps: Sequence[Step], generation: str, start: Efficiency) -> dict[str, Efficiency]:
    """Fit a generation's constants, and then those of its GPU types that have rows."""
    every = _fitted(steps, start, OWN.get(generation, tuple(BOUNDS)))
    own = {gpu: [step for step in steps if step.spec.gpu == gpu] for gpu in OWN_OF_TYPES}
    return {generation: every} | {gpu: _fitted(rows, every, OWN_OF_TYPES[gpu]) for gpu, rows in own.items() if rows}


def _fitted(steps: Sequence[Step], start: Efficiency, names: Sequence[str]) -> Efficiency:
    alike = Counter(_layout(step) for step in steps)
    weights = [SCATTER["published"] / SCATTER[step.origin] / sqrt(alike[_layout(step)]) for step in steps]
    bounds = [BOUNDS.get(name, BOUNDS_OF_OTHERS) for name in names]

    def errors(values: Sequence[float]) -> list[float]:
        tried = replace(start, **dict(zip(names, values, strict=True)))
        apart = (log(step.predicted(tried) / step.seconds) for step in steps)
        pulls = [
            _PULL / log(1.2) * log(value / getattr(START, name)) for name, value in zip(names, values, strict=True)
        ]
        return [w * _tamed(x) for w, x in zip(weights, apart, strict=True)] + pulls

    found = least_squares(errors, [getattr(start, name) for name in names], bounds, _ROUNDS)
    return replace(start, **dict(zip(names, found, strict=True)))


def _layout(step: Step) -> object:
    """Return what steps share that say the same thing twice: published ones differ in the number of GPUs, and batch."""
    spec = step.spec
    if step.origin != "published":
        return spec.fingerprint
    batch = spec.batch.micro_batch_size
    return step.model, spec.gpu, spec.compute_dtype, spec.parallelism, spec.recompute.text, batch


def _tamed(error: float) -> float:
    """Pseudo-Huber: quadratic for small errors, linear for large ones."""
    scale = _LINEAR_FROM * SCATTER["published"]
    size = scale * sqrt(2 * (sqrt(1 + (error / scale) ** 2) - 1))
    return size if error > 0 else -size


def spreads(rows: Iterable[Compared]) -> dict[str, tuple[float, float, int]]:
    """Return the range of each class of rows."""
    groups = grouped((row.kind, row) for row in rows)
    own = {
        kind: _spread([row.ratio for row in found], len({row.step.spec.model for row in found}))
        for kind, found in groups.items()
    }
    return {kind: _floored(own, kind, len({row.step.model for row in found})) for kind, found in groups.items()}


def _transfer(rows: Sequence[Compared]) -> tuple[float, float, int]:
    return _spread([row.ratio for row in rows], len({row.step.spec.gpu for row in rows}))


def _floored(own: Mapping[str, tuple[float, float, int]], kind: str, num_models: int) -> tuple[float, float, int]:
    """Return a range at least as wide as that of dense models, where rows are of few models with experts."""
    low, high, num_rows = own[kind]
    near = own.get(kind.replace("experts", "dense"))
    if num_models >= ENOUGH_ROWS or near is None:
        return low, high, num_rows
    return min(low, near[0]), max(high, near[1]), num_rows


def _spread(ratios: Sequence[float], num_alike: int) -> tuple[float, float, int]:
    """Return percentiles, wider where the rows are of few models, or types of GPU: rows of one err alike.

    Of fewer than :data:`FEW_MODELS`, which may all err one way, the wider end counts both ways. Layouts of one model are one.
    """
    low, high = min(1.0, percentile(ratios, 0.05)), max(1.0, percentile(ratios, 0.95))
    if num_alike < ENOUGH_ROWS:
        low, high = 1 / (1 + STEPS_WIDENED * (1 / low - 1)), 1 + STEPS_WIDENED * (high - 1)
    if num_alike < FEW_MODELS:
        low, high = min(low, 1 / high), max(high, 1 / low)
    return low, high, len(ratios)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of all lies, between neighbours in proportion."""
    return float(np.quantile(values, share))


def write(found: Fit) -> None:
    """Keep constants and ranges where the planner reads them."""
    document: dict[str, Any] = {
        "constants": {
            generation: {name: float(f"{value:.4g}") for name, value in own.items()}
            for generation, own in found.constants.items()
        },
        "spreads": {name: [round(low, 3), round(high, 3), n] for name, (low, high, n) in sorted(found.spreads.items())},
        "errors": {
            gpu: {kind: [round(share, 3), n] for kind, (share, n) in sorted(kinds.items())}
            for gpu, kinds in found.errors.items()
        },
        "transfer": [round(end, 3) for end in found.transfer],
        "written_by": "scripts/accuracy time --fit",
    }
    write_atomically(FILE, data_text(document))
    step_ranges.fitted.cache_clear()
    time_model.typical.cache_clear()
