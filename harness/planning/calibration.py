"""Fits the planner's constants, and nothing else, to measured runs of one GPU type."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import median

from harness.planning.compose import ChunkCost
from harness.planning.constants import BOUNDS, BUILT_IN, EFFICIENCIES, Constants, calibrated
from harness.planning.determined import determined
from harness.planning.least_squares import least_squares
from harness.planning.ledger import stage_memory
from harness.planning.time_model import likely_seconds
from harness.records.calibration import FittedConstant
from harness.spec.experiment import ExperimentSpec

# From this many runs on each is also predicted by a fit to the others.
NUM_FOR_LEAVING_OUT = 3
# A range narrower than this claims more than a few runs can show.
LEAST_SPREAD = 0.05


@dataclass(frozen=True)
class Observation:
    """One measured run.

    ``peaks``: allocated bytes of the worst rank by pipeline stage. ``outside``: device less reserved bytes of every rank
    that knows both. ``step_s`` is None where there is no time to compare. ``torch_adam`` as in `model_states`.
    """

    name: str
    spec: ExperimentSpec
    costs: tuple[tuple[ChunkCost, ...], ...]
    peaks: Mapping[int, int]
    outside: tuple[int, ...] = ()
    step_s: float | None = None
    torch_adam: bool = False

    def predicted_peaks(self, constants: Constants) -> dict[int, int]:
        """Peaks of the stages that were measured."""
        stages = (
            stage_memory(self.spec, pp_rank, self.costs[pp_rank], torch_adam=self.torch_adam) for pp_rank in self.peaks
        )
        return {stage.pp_rank: constants.added_to(stage).total for stage in stages}

    def peak_error(self, constants: Constants) -> float | None:
        """Predicted over measured peak of the worst stage, less one."""
        if not self.peaks:
            return None
        return max(self.predicted_peaks(constants).values()) / max(self.peaks.values()) - 1

    def time_error(self, constants: Constants) -> float | None:
        """Predicted over measured step time, less one."""
        if self.step_s is None:
            return None
        return likely_seconds(self.spec, self.costs, constants.likely) / self.step_s - 1


def fit(observations: Sequence[Observation]) -> tuple[FittedConstant, ...]:
    """Every constant: its fitted value, or why these runs do not determine it."""
    return (
        _median_constant("allocator_bytes", _beside_the_model(observations), "no run measured allocated bytes"),
        _median_constant(
            "outside_allocator_bytes",
            [size for run in observations for size in run.outside],
            "no rank measured both device and reserved bytes",
        ),
        *_efficiencies([run for run in observations if run.step_s is not None]),
    )


def left_out(observations: Sequence[Observation]) -> tuple[Constants | None, ...]:
    """For every run the constants fitted to the others; None for all where there are too few."""
    if len(observations) < NUM_FOR_LEAVING_OUT:
        return (None,) * len(observations)
    return tuple(calibrated(fit([other for other in observations if other is not run])) for run in observations)


def _beside_the_model(observations: Sequence[Observation]) -> list[int]:
    """Measured less predicted bytes, one figure per run, so that a run of many stages has no more say."""
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
        name=name, built_in=BUILT_IN.value_of(name), value=value, bounds=(low, high),
        reason=problem if value is None else _at_bound(value, (low, high)),
    )  # fmt: skip


def _efficiencies(runs: Sequence[Observation]) -> tuple[FittedConstant, ...]:
    """Those on which the step times of these runs depend, each in its own way."""
    names, reasons = determined(len(runs), lambda chosen: _log_errors(runs, chosen))
    values: dict[str, float] = {}
    if names:
        start = [BUILT_IN.value_of(name) for name in names]
        found = least_squares(_log_errors(runs, names), start, [BOUNDS[name] for name in names])
        values = dict(zip(names, found, strict=True))
    return tuple(
        FittedConstant(
            name=name, built_in=BUILT_IN.value_of(name), value=values.get(name), bounds=BOUNDS[name],
            reason=_at_bound(values[name], BOUNDS[name]) if name in values else reasons[name],
        )
        for name in EFFICIENCIES
    )  # fmt: skip


def _log_errors(runs: Sequence[Observation], names: Sequence[str]) -> Callable[[Sequence[float]], list[float]]:
    """Logarithms of predicted over measured step times as a function of the named efficiencies."""

    def errors(values: Sequence[float]) -> list[float]:
        likely = replace(BUILT_IN.likely, **dict(zip(names, values, strict=True)))
        return [log(likely_seconds(run.spec, run.costs, likely) / (run.step_s or 1)) for run in runs]

    return errors


def _at_bound(value: float, bounds: tuple[float, float]) -> str:
    low, high = bounds
    near = 1e-6 * (high - low)
    return "at its bound: something else is wrong" if value - low < near or high - value < near else ""
