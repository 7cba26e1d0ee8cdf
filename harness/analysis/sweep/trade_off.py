"""What a GiB costs: milliseconds per step for each GiB that a setting saves."""

from dataclasses import dataclass

from harness.analysis.memory_saving import MemorySaving
from harness.analysis.welch import TimeChange
from harness.units import GIB, format_bytes


@dataclass(frozen=True)
class TradeOff:
    """``ms_per_gib_saved`` and its 95 % interval where the time has one. None with the reason in ``undefined``.

    Negative: the cell saves memory and time.
    """

    ms_per_gib_saved: float | None
    interval: tuple[float, float] | None = None
    undefined: str = ""


def trade_off(time: TimeChange | None, memory: MemorySaving | None) -> TradeOff:
    """Seconds over bytes; undefined unless memory is saved beyond noise. The interval is that of the time alone."""
    if time is None or memory is None:
        missing = "time" if time is None else "memory"
        return TradeOff(None, undefined=f"no {missing} to compare")
    if memory.saved_bytes <= memory.noise_bytes:
        return TradeOff(None, undefined=_too_little(memory))
    per_gib = 1000 / (memory.saved_bytes / GIB)
    interval = None
    if time.interval is not None and time.fraction:
        control_s = time.seconds / time.fraction
        interval = (time.interval[0] * control_s * per_gib, time.interval[1] * control_s * per_gib)
    return TradeOff(time.seconds * per_gib, interval)


def _too_little(memory: MemorySaving) -> str:
    noise = format_bytes(memory.noise_bytes)
    if memory.saved_bytes < -memory.noise_bytes:
        return f"it takes {format_bytes(-memory.saved_bytes)} more memory"
    return f"it saves {format_bytes(memory.saved_bytes)}, no more than identical runs differ by ({noise})"
