"""GPU clocks by NVML: the sampler's raw samples, and one rank's figures over its window of steps."""

from typing import Literal

from harness.experiment.gpu import Frozen

# NVML's bits for a lowered clock (nvml.h, nvmlClocksEventReasons). Idle, set clocks and display do not disturb a run.
POWER_CAP = 0x04
CLOCK_REASONS = {
    POWER_CAP: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
IDLE = 0x01
# A GPU that trains at full load works at its power limit; that is its normal state. The other reasons are disturbances.
SLOWDOWNS = tuple(name for bit, name in CLOCK_REASONS.items() if bit != POWER_CAP)


class ClockSamples(Frozen):
    """Every sample of one GPU's clock, in columns of equal length, in order of time.

    ``times_s`` are of the node's monotonic clock, which ranks use for their steps as well. ``sm_clocks_mhz`` and
    ``reasons`` (NVML's bits) are None where NVML refused to answer.
    """

    times_s: tuple[float, ...]
    sm_clocks_mhz: tuple[int | None, ...]
    reasons: tuple[int | None, ...]


class RankClocks(Frozen):
    """The clocks of one rank's GPU over the window of steps.

    ``sm_clock_mhz`` is the median and ``power_cap_share`` the part under the power cap (0 to 1), both over samples at
    which the GPU was busy. ``over`` is ``run`` where the times of steps or samples were not recorded: the figures then
    cover the whole run. ``longest_gap_s``: the longest stretch of the window without a sample; ``interval_s``: the usual
    time between two samples.
    """

    over: Literal["window", "run"]
    num_samples: int
    num_busy_samples: int | None = None
    sm_clock_mhz: float | None = None
    power_cap_share: float | None = None
    slowdowns: tuple[str, ...] = ()
    window_s: float | None = None
    longest_gap_s: float | None = None
    interval_s: float | None = None
