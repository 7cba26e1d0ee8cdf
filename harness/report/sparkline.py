"""A series as one line of text."""

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """A bar per value from the least to the most, a blank where there is none; of more than ``width`` the newest.

    Equal values are bars of middle height.
    """
    shown = list(values)[-width:]
    present = [value for value in shown if value is not None]
    if not present:
        return ""
    low, high = min(present), max(present)
    return "".join(" " if value is None else _BARS[_height(value, low, high)] for value in shown)


def _height(value: float, low: float, high: float) -> int:
    return len(_BARS) // 2 if high == low else round((value - low) / (high - low) * (len(_BARS) - 1))
