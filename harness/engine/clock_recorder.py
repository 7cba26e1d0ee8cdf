"""Samples of a GPU's clock over time, in bounded number for a run of any length."""

from statistics import median

from harness.records.clocks import CLOCK_REASONS, IDLE, POWER_CAP, ClockSamples

MAX_SAMPLES = 2048
_SLOWDOWN_BITS = sum(CLOCK_REASONS) - POWER_CAP

_Look = tuple[float, int | None, int | None]


class ClockRecorder:
    """Keeps samples ``every_s`` apart. Past :data:`MAX_SAMPLES` it drops every second sample and doubles the distance.

    Of two samples it keeps the slowed one, so that no slowdown is lost.
    """

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self.due_s = 0.0
        self._looks: list[_Look] = []

    def add(self, time_s: float, sm_clock_mhz: int | None, reasons: int | None) -> None:
        """Add a sample; the next is due ``every_s`` later."""
        self._looks.append((time_s, sm_clock_mhz, reasons))
        self.due_s = time_s + self.every_s
        if len(self._looks) > MAX_SAMPLES:
            pairs = (self._looks[place : place + 2] for place in range(0, len(self._looks), 2))
            self._looks = [max(pair, key=_is_slowed) for pair in pairs]
            self.every_s *= 2

    def samples(self) -> ClockSamples | None:
        """Return the samples so far; None without any."""
        if not self._looks:
            return None
        times_s, clocks, reasons = zip(*self._looks, strict=True)
        return ClockSamples(times_s=tuple(round(at, 3) for at in times_s), sm_clocks_mhz=clocks, reasons=reasons)

    def median_busy_mhz(self) -> float | None:
        """Return the median over samples of a busy GPU: an idle clock says nothing about the run."""
        busy = [clock for _, clock, reasons in self._looks if clock is not None and not (reasons or 0) & IDLE]
        return float(median(busy)) if busy else None

    def reasons_seen(self) -> tuple[str, ...]:
        """Return the names of all reasons for a lowered clock in any sample."""
        seen = 0
        for _, _, reasons in self._looks:
            seen |= reasons or 0
        return tuple(name for bit, name in CLOCK_REASONS.items() if seen & bit)


def _is_slowed(look: _Look) -> bool:
    return bool((look[2] or 0) & _SLOWDOWN_BITS)
