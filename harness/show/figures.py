"""Formats figures and CSV cells for people."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence

from harness.judge.gate import Finding
from harness.records.metrics import Metric, RunClocks, Summary
from harness.records.rank import RankClocks
from harness.units import format_bytes, format_percent, format_seconds

ABSENT = "-"

_PREFIXES = ((1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"))


def figure(metric: Metric, value: float | None) -> str:
    """Return a metric's value; the title of the metric names the unit where the value does not."""
    return ABSENT if value is None else _BY_UNIT.get(metric.unit, format_rate)(value)


def format_rate(value: float) -> str:
    """Five significant digits, from ten thousand on whole numbers: ``709.93``, ``8192``, ``12,345``, ``0.065123``."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.5g}"


def format_flops(value: float) -> str:
    """FLOPs with the largest prefix that keeps a digit before the point: ``57.982 GFLOP``."""
    for size, unit in _PREFIXES:
        if value >= size:
            return f"{value / size:.3f} {unit}"
    return f"{value:.0f} FLOP"


_BY_UNIT: Mapping[str, Callable[[float], str]] = {
    "bytes": format_bytes, "s": format_seconds, "FLOP/step": format_flops,
    "fraction": lambda value: f"{value * 100:.1f} %",
}  # fmt: skip


def spread(summary: Summary) -> str:
    """Return the standard deviation as a share of the mean."""
    share = summary.relative_spread
    return ABSENT if share is None else f"{share * 100:.1f} %"


def clock_figure(clocks: RunClocks | RankClocks | None) -> str:
    """Return the median SM clock: ``1395 MHz``."""
    return ABSENT if clocks is None or clocks.sm_clock_mhz is None else f"{clocks.sm_clock_mhz:.0f} MHz"


def cap_figure(clocks: RunClocks | RankClocks | None) -> str:
    """Return the share of time under the power cap: ``82 %``."""
    return ABSENT if clocks is None or clocks.power_cap_share is None else f"{clocks.power_cap_share * 100:.0f} %"


def clock_line(clocks: RunClocks | None) -> str:
    """Return the clocks that decide the pace of a run, in one line; empty where no GPU was sampled."""
    if clocks is None:
        return ""
    slowest, capped = clocks.slowest_rank, clocks.most_capped_rank
    parts = [] if slowest is None else [f"SM {clock_figure(clocks)} (rank {slowest}, the lowest median)"]
    parts += [] if capped is None else [f"power cap {cap_figure(clocks)} of busy time (rank {capped}, the most)"]
    return f"Clocks over the {clocks.over}: {'; '.join(parts)}"


def allowed_change(metric: Metric, finding: Finding) -> str:
    """Return the threshold with the sign of a worsening; nothing where nothing was gated."""
    if finding.threshold is None:
        return ABSENT
    if metric.better == "equal":
        return "must be equal"
    if metric.gate == "exact":  # a limit of the figure, not of its change
        return figure(metric, finding.threshold)
    return format_percent(-finding.threshold if metric.better == "higher" else finding.threshold)


def change(finding: Finding) -> str:
    """Return the signed change against the golden."""
    return ABSENT if finding.change is None else format_percent(finding.change)


# What a spreadsheet would run as a formula when a text begins with it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

Value = str | float | int | bool | None


def csv_text(titles: Sequence[str], rows: Iterable[Iterable[Value]]) -> str:
    """Return header and rows. Absent: an empty field; what a spreadsheet would run begins with an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_safe(title) for title in titles)
    writer.writerows([_safe(value) for value in row] for row in rows)
    return out.getvalue()


def _safe(value: Value) -> Value:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return value
