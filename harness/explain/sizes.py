"""How much a difference is expected to change, where arithmetic can say so."""

from collections.abc import Callable
from dataclasses import dataclass

from harness.experiment.experiment import ExperimentSpec
from harness.explain.values import NONE_SEEN, Key, Side
from harness.planning import flops
from harness.units import format_percent


@dataclass(frozen=True)
class Estimate:
    """Relative changes that a cause would make on our side, with how that was reckoned.

    ``step_time``: None where arithmetic cannot say. ``*_sign``: +1 or -1 where only the direction is known.
    """

    text: str
    step_time: float | None = None
    step_time_sign: int | None = None
    memory_sign: int | None = None


Estimator = Callable[[Side, Side], Estimate | None]


def unknown(_ours: Side, _theirs: Side) -> Estimate | None:
    """Nothing that arithmetic could say."""
    return None


def disturbance(key: Key, what: str, *, adds_memory: bool = False) -> Estimator:
    """What lengthens the steps of the side that has it; with ``adds_memory`` its device memory is fuller, too."""

    def estimate(ours: Side, theirs: Side) -> Estimate | None:
        here, there = (side.facts.get(key, NONE_SEEN) != NONE_SEEN for side in (ours, theirs))
        if here == there:
            return None
        sign = 1 if here else -1
        text = f"{what} {'here' if here else 'there'}"
        return Estimate(text, step_time_sign=sign, memory_sign=sign if adds_memory else None)

    return estimate


_THROTTLED: Key = ("clocks", "throttling")


def products(ours: Side, theirs: Side) -> Estimate | None:
    """Step times in inverse proportion to the dense peaks of the two GPU types in our precision."""
    if ours.spec is None or theirs.spec is None:
        return None
    return _by_peak(_peak(ours.spec, ours.spec), _peak(theirs.spec, ours.spec))


def precisions(ours: Side, theirs: Side) -> Estimate | None:
    """Step times in inverse proportion to the dense peaks of our GPU type in the two precisions."""
    if ours.spec is None or theirs.spec is None:
        return None
    return _by_peak(_peak(ours.spec, ours.spec), _peak(ours.spec, theirs.spec))


def _peak(product: ExperimentSpec, precision: ExperimentSpec) -> float | None:
    return product.gpu_type.peak_flops.get(precision.precision.peak)


def _by_peak(here: float | None, there: float | None) -> Estimate | None:
    if here is None or there is None or here == there:
        return None
    text = f"dense peak {here / 1e12:.0f} TFLOP/s here, {there / 1e12:.0f} there"
    return Estimate(text, step_time=there / here - 1)


def work(ours: Side, theirs: Side) -> Estimate | None:
    """Step times in proportion to the model FLOPs of a step per GPU."""
    if ours.spec is None or theirs.spec is None:
        return None
    here, there = (flops.model_flops_per_step(spec) / spec.num_gpus for spec in (ours.spec, theirs.spec))
    if here == there:
        return None
    change = here / there - 1
    return Estimate(f"model FLOPs of a step per GPU {format_percent(change)}", step_time=change)


def recompute(ours: Side, theirs: Side) -> Estimate | None:
    """What is executed again, as a share of the model FLOPs; who executes more keeps less."""
    here, there = _again(ours), _again(theirs)
    if here is None or there is None:
        return None
    if here == there:
        return Estimate("as many FLOPs are executed again on both sides")
    text = f"recompute executes {here * 100:.1f} % of the model FLOPs again here, {there * 100:.1f} % there"
    return Estimate(text, step_time=(1 + here) / (1 + there) - 1, memory_sign=-1 if here > there else 1)


def _again(side: Side) -> float | None:
    if side.spec is None or side.effective is None:
        return None
    return flops.recompute_flops_per_step(side.spec, side.effective) / flops.model_flops_per_step(side.spec)


def clocks(ours: Side, theirs: Side) -> Estimate | None:
    """Steps wait for the slowest GPU, whose kernels take longer in proportion to its SM clock (most: compute-bound).

    Against a side without clocks the fastest GPU of the same run stands for what the clock should be.
    """
    here, there = ours.numbers.get("sm_clock_min_mhz"), theirs.numbers.get("sm_clock_min_mhz")
    whose = "there"
    if here is not None and there is None:
        there, whose = ours.numbers.get("sm_clock_max_mhz"), "on the fastest GPU of this run"
    if here is None or there is None or not here:
        return disturbance(_THROTTLED, "throttled")(ours, theirs)
    text = f"slowest SM clock {here:.0f} MHz here, {there:.0f} MHz {whose}"
    if abs(there / here - 1) < 0.01:
        return disturbance(_THROTTLED, f"{text}; throttled")(ours, theirs)
    return Estimate(text, step_time=there / here - 1)


def unsteadiness(ours: Side, theirs: Side) -> Estimate | None:
    """What makes single steps slow makes the others slower, if anything."""
    here, there = ours.numbers.get("spread_of_steps"), theirs.numbers.get("spread_of_steps")
    if here is None or there is None:
        return None
    return Estimate(f"less steady {'here' if here > there else 'there'}", step_time_sign=1 if here > there else -1)


def imbalance(ours: Side, theirs: Side) -> Estimate | None:
    """Every step ends with the slowest rank; without a reading of the other side it is taken for balanced."""
    here, there = ours.numbers.get("imbalance"), theirs.numbers.get("imbalance", 0.0)
    if here is None:
        return None
    change = (1 + here) / (1 + there) - 1
    return Estimate(f"the slowest rank is {here * 100:.1f} % behind the middle one here", step_time=change)


def threads(ours: Side, theirs: Side) -> Estimate | None:
    """More threads per rank make CPU steps shorter, as long as there are cores for them."""
    here, there = (side.facts.get(("environment", "OMP_NUM_THREADS"), "") for side in (ours, theirs))
    if not (here.isdigit() and there.isdigit()) or here == there:
        return None
    return Estimate(f"{here} threads per rank here, {there} there", step_time_sign=-1 if int(here) > int(there) else 1)
