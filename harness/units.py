"""Conversions and formatting. Inside the program, values are bytes, seconds, FLOP and UTC."""

from collections.abc import Sequence
from datetime import UTC, datetime

GIB = 1024**3
MIB = 1024**2
GB = 10**9
TERA = 10**12


def counted(number: int, noun: str, ending: str = "s") -> str:
    """Return ``1 case`` or ``2 cases``; ``ending`` is the plural ending."""
    return f"{number} {noun}{ending * (number != 1)}"


def shortened(text: str, most: int = 60) -> str:
    """Return the text in at most ``most`` characters; a longer one ends in ``...``."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ``rank 4`` or ``ranks 0-3, 7`` for ranks in ascending order."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    listed = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rank{'s' * (len(ranks) != 1)} {listed}"


def format_bytes(value: float) -> str:
    """Format bytes in the largest binary unit that keeps a digit before the point, e.g. ``1.50 GiB``."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", 1024)):
        if abs(value) >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f} B"


def format_seconds(value: float) -> str:
    """Format seconds: ``12.3 ms``, ``1.234 s``, ``2 min 05 s``."""
    if value < 1:
        return f"{value * 1000:.1f} ms"
    if value < 120:
        return f"{value:.3f} s"
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes} min {seconds:02d} s"


def format_percent(fraction: float) -> str:
    """Format a signed fraction as percent: ``-3.1 %``."""
    return f"{fraction * 100:+.1f} %"


def format_share(fraction: float) -> str:
    """Format a fraction of at least 0 as percent, to two figures: ``0.21 %``, ``3.5 %``, ``104 %``."""
    percent = fraction * 100
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def four_figures(value: float) -> str:
    """Format four significant figures without an exponent: ``12.35``, ``-164,400``."""
    return f"{float(f'{value:.4g}'):,.12g}"


def utc_time(text: str) -> datetime:
    """Parse an ISO-8601 date or time; without a zone it is UTC. ValueError if the text is not a time."""
    when = datetime.fromisoformat(text)
    try:
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r} is out of the calendar in UTC") from error
