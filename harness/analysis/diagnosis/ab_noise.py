"""Whether B differs from A by more than equal runs do."""

from collections.abc import Iterable

from harness.analysis.sweep.values import CellVerdict
from harness.analysis.welch import MIN_RUNS, TimeChange
from harness.spec.gpu import GpuType
from harness.units import format_bytes, format_percent

_REPEAT = f"--repeats {MIN_RUNS} gives an interval"


def change_told(a: CellVerdict, b: CellVerdict, gpu: GpuType) -> str:
    """Time and memory of B against A, the control, each with what is noise; empty where nothing is known of them."""
    versus = b.vs_control
    if versus is None:
        return b.no_comparison and f"not compared: {b.no_comparison}"
    told = []
    if versus.time is not None:
        told.append(
            f"{format_percent(versus.time.fraction)} step time ({_time(versus.time, (_spread(a), _spread(b)), gpu)})"
        )
    if versus.memory is not None:
        noise = f" (within the noise: equal runs differ by {format_bytes(versus.memory.noise_bytes)})"
        saved = versus.memory.saved_bytes
        more = f"{format_bytes(abs(saved))} {'less' if saved > 0 else 'more'} peak memory" if saved else "the same peak"
        told.append(f"{more}{noise if saved and versus.memory.is_noise else ''}")
    return ", ".join(told)


def _time(change: TimeChange, spreads: Iterable[float | None], gpu: GpuType) -> str:
    if change.interval is not None:
        low, high = (format_percent(end) for end in change.interval)
        side = "beyond the noise" if change.is_settled else "within the noise"
        return f"{side}: the 95 % interval is {low} to {high}"
    known = [(spread, "steps or runs of one side spread by") for spread in spreads if spread is not None]
    known += [(gpu.timing_threshold, "equal runs on a CPU differ by up to")] if gpu.is_cpu else []
    if not known:
        return f"too few runs to tell it from noise: {_REPEAT}"
    noise, basis = max(known)
    if abs(change.fraction) <= noise:
        return f"within the noise: {basis} {noise * 100:.1f} %; {_REPEAT}"
    return f"more than the noise that is known: {basis} {noise * 100:.1f} %; {_REPEAT}"


def _spread(cell: CellVerdict) -> float | None:
    """Relative spread over steps; where there are several runs, over their medians."""
    summary = cell.metrics.step_time_s if cell.metrics else None
    return summary.stdev / summary.mean if summary and summary.stdev is not None and summary.mean else None
