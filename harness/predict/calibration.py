"""Fits the planner's constants to measured runs by least squares."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import median

from harness.experiment.experiment import ExperimentSpec
from harness.predict.compose import ChunkCost
from harness.predict.ledger import stage_memory
from harness.predict.model_states import Adam
from harness.predict.prediction import BOUNDS, BUILT_IN, EFFICIENCIES, HOST_SECONDS, Constants, calibrated
from harness.predict.time_model import Clock, Efficiency
from harness.records.calibration import PROBED, FittedConstant

Residuals = Callable[[Sequence[float]], list[float]]

_OUTSIDE = "outside_allocator_bytes"

_STEP = 1e-4


def least_squares(
    residuals: Residuals, start: Sequence[float], bounds: Sequence[tuple[float, float]], max_rounds: int | None = None
) -> tuple[float, ...]:
    """Find the positive parameters with the least squares of ``residuals``, from ``start``, within ``bounds``."""
    from scipy import optimize

    found = optimize.least_squares(
        lambda at: residuals([exp(x) for x in at]),
        [log(value) for value in start],
        bounds=tuple(zip(*(map(log, each) for each in bounds), strict=True)),
        jac=lambda at: list(zip(*slopes(residuals, [exp(x) for x in at]), strict=True)),
        method="dogbox",
        ftol=1e-14,
        xtol=1e-12,
        gtol=1e-12,
        max_nfev=max_rounds,
    )
    return tuple(min(max(exp(x), low), high) for x, (low, high) in zip(found.x, bounds, strict=True))


def slopes(residuals: Residuals, at: Sequence[float]) -> list[list[float]]:
    """Return the slope of each residual in each parameter's logarithm: one column per parameter."""
    here, columns = residuals(at), []
    for index in range(len(at)):
        moved = residuals([x * exp(_STEP * (index == i)) for i, x in enumerate(at)])
        columns.append([(there - now) / _STEP for there, now in zip(moved, here, strict=True)])
    return columns


# A constant must move the step time of some run by this share of its own change, apart from the effect of the others.
_LEAST_SLOPE = 0.05


def determined(
    num_runs: int, errors_of: Callable[[Sequence[str]], Residuals], built_in: Efficiency, names: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the efficiencies that these runs determine, and for each other efficiency why they do not.

    One run determines one. N runs determine at most N - 1, so that the fit still shows an error: those with the largest
    remaining effect (Gram-Schmidt with pivoting).
    """
    if not num_runs:
        return (), dict.fromkeys(names, "no run has a step time that is predicted")
    import numpy as np

    start = [getattr(built_in, name) for name in names]
    rest = dict(zip(names, map(np.array, slopes(errors_of(names), start)), strict=True))
    chosen: list[str] = []
    most = max(1, num_runs - 1)
    while rest and len(chosen) < most:
        best = max(rest, key=lambda name: _largest(rest[name]))
        if _largest(rest[best]) < _LEAST_SLOPE:
            break
        column = rest.pop(best)
        axis = column / np.linalg.norm(column)
        rest = {name: column - (column @ axis) * axis for name, column in rest.items()}
        chosen.append(best)
    return tuple(chosen), dict.fromkeys(rest, "not separable by these runs: add runs of other shapes")


def _largest(column: Iterable[float]) -> float:
    return max(map(abs, column))


# From this many runs on each is also predicted by a fit to the others.
NUM_FOR_LEAVING_OUT = 3
# A range narrower than this claims more than a few runs can show.
LEAST_SPREAD = 0.05


@dataclass(frozen=True)
class Observation:
    """One measured run.

    ``peaks``: allocated bytes of the worst rank by pipeline stage. ``outside``: device less reserved bytes by rank.
    ``busiest``: the costs of the rank with the most tokens on average (`at_pace`); None where routing is even.
    """

    name: str
    spec: ExperimentSpec
    costs: tuple[tuple[ChunkCost, ...], ...]
    peaks: Mapping[int, int]
    outside: tuple[int, ...] = ()
    step_s: float | None = None
    busiest: tuple[tuple[ChunkCost, ...], ...] | None = None
    adam: Adam = "fused"

    def predicted_s(self, efficiency: Efficiency) -> float:
        """Return the predicted step time at these efficiencies, in seconds."""
        return Clock(self.spec, efficiency).step(self.busiest or self.costs).likely_s

    def predicted_peaks(self, constants: Constants) -> dict[int, int]:
        """Return the predicted peak in bytes of each measured stage."""
        stages = (stage_memory(self.spec, pp_rank, self.costs[pp_rank], adam=self.adam) for pp_rank in self.peaks)
        return {stage.pp_rank: constants.added_to(stage).whole_run for stage in stages}

    def peak_error(self, constants: Constants) -> float | None:
        """Return predicted over measured peak of the worst stage, minus 1."""
        if not self.peaks:
            return None
        return max(self.predicted_peaks(constants).values()) / max(self.peaks.values()) - 1

    def time_error(self, constants: Constants) -> float | None:
        """Return predicted over measured step time, minus 1."""
        if self.step_s is None:
            return None
        return self.predicted_s(constants.efficiency(self.spec.gpu)) / self.step_s - 1


def fit(
    gpu: str, observations: Sequence[Observation], probed: Mapping[str, float] | None = None
) -> tuple[FittedConstant, ...]:
    """Return for every constant its fitted value, or why these runs determine none; ``probed`` ones keep theirs."""
    speeds, outside = dict(probed or {}), [size for run in observations for size in run.outside]
    context = speeds.pop(_OUTSIDE, None)
    beside = _median_constant(_OUTSIDE, outside, "no rank measured both device and reserved bytes")
    return (
        _median_constant("allocator_bytes", _beside_the_model(observations), "no run measured allocated bytes"),
        beside if context is None else beside.model_copy(update={"value": context, "reason": PROBED}),
        *_efficiencies(gpu, [run for run in observations if run.step_s is not None], speeds),
    )


def left_out(
    gpu: str, observations: Sequence[Observation], probed: Mapping[str, float] | None = None
) -> tuple[Constants | None, ...]:
    """Return for every run the constants fitted to the other runs; None for each if there are too few."""
    if len(observations) < NUM_FOR_LEAVING_OUT:
        return (None,) * len(observations)
    return tuple(
        calibrated(fit(gpu, [other for other in observations if other is not run], probed)) for run in observations
    )


def _beside_the_model(observations: Sequence[Observation]) -> list[int]:
    """Return measured minus predicted bytes, one figure per run, so that every run has the same weight."""
    sizes = []
    for run in observations:
        predicted = run.predicted_peaks(BUILT_IN)
        if run.peaks:
            sizes.append(round(median(measured - predicted[pp_rank] for pp_rank, measured in run.peaks.items())))
    return sizes


def _median_constant(name: str, sizes: Sequence[int], problem: str) -> FittedConstant:
    low, high = BOUNDS[name]
    value = min(max(median(sizes), low), high) if sizes else None
    return FittedConstant(
        name=name,
        built_in=getattr(BUILT_IN, name),
        value=value,
        bounds=(low, high),
        reason=problem if value is None else _at_bound(value, (low, high)),
    )


def _efficiencies(gpu: str, runs: Sequence[Observation], probed: Mapping[str, float]) -> tuple[FittedConstant, ...]:
    """Fit the efficiencies on which the step times of these runs depend independently."""
    built_in = BUILT_IN.efficiency(gpu)
    free = [name for name in (*EFFICIENCIES, *(["step_s"] if probed else [])) if name not in probed]
    known = replace(built_in, **probed)
    names, reasons = determined(len(runs), lambda chosen: _log_errors(runs, chosen, known), known, free)
    values = dict(probed)
    if names:
        start = [getattr(known, name) for name in names]
        found = least_squares(_log_errors(runs, names, known), start, [BOUNDS[name] for name in names])
        values |= dict(zip(names, found, strict=True))
    reasons |= {name: _at_bound(values[name], BOUNDS[name]) for name in names} | dict.fromkeys(probed, PROBED)
    return tuple(
        FittedConstant(
            name=name,
            built_in=getattr(built_in, name),
            value=values.get(name),
            bounds=BOUNDS[name],
            reason=reasons[name],
        )
        for name in (*EFFICIENCIES, *(name for name in HOST_SECONDS if name in reasons))
    )


def _log_errors(runs: Sequence[Observation], names: Sequence[str], known: Efficiency) -> Residuals:
    """Return a function from the named efficiencies to the logarithms of predicted over measured step times."""

    def errors(values: Sequence[float]) -> list[float]:
        likely = replace(known, **dict(zip(names, values, strict=True)))
        return [log(run.predicted_s(likely) / (run.step_s or 1)) for run in runs]

    return errors


def _at_bound(value: float, bounds: tuple[float, float]) -> str:
    low, high = bounds
    near = 1e-6 * (high - low)
    return "at its bound: something else is wrong" if value - low < near or high - value < near else ""
