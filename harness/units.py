"""Conversions, formatting and the order of versions. Inside the program, values are bytes, seconds, FLOP and UTC."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from typing import Any, TypeVar

from packaging.version import Version

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


def command_text(*words: object) -> str:
    """Return a command of mbr-perf, quoted for a shell."""
    return shlex.join(["mbr-perf", *map(str, words)])


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def grouped(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    """Return the values of each key; keys and values keep their order."""
    found: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def walked(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value in nested mappings that is no mapping, by its dotted path."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, inner in value.items():
        yield from walked(inner, f"{path}.{key}" if path else str(key))


def first_line(text: str | None, otherwise: str = "") -> str:
    """Return the first line that is not blank; ``otherwise`` without one. Failures quote pages of libraries' text."""
    return next((line.strip() for line in (text or "").splitlines() if line.strip()), otherwise)


def sentence(text: str) -> str:
    """Return the text with a capital letter at its beginning; other letters stay."""
    return text[:1].upper() + text[1:]


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ``rank 4`` or ``ranks 0-3, 7`` for ranks in ascending order."""
    in_a_row = groupby(enumerate(ranks), lambda each: each[1] - each[0])
    runs = [[rank for _, rank in run] for _, run in in_a_row]
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
    return f"{fraction * 100 + 0.0:+.1f} %"


def format_share(fraction: float) -> str:
    """Format a fraction of at least 0 as percent, to two figures: ``0.21 %``, ``3.5 %``, ``104 %``."""
    percent = fraction * 100
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def four_figures(value: float) -> str:
    """Format four significant figures without an exponent: ``12.35``, ``-164,400``."""
    return f"{float(f'{value:.4g}'):,.12g}"


def utc_now() -> str:
    """Return the time as records have it: ISO-8601 in UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def utc_time(text: str) -> datetime:
    """Parse an ISO-8601 date or time; without a zone it is UTC. ValueError if the text is not a time."""
    when = datetime.fromisoformat(text)
    try:
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r} is out of the calendar in UTC") from error


@cache
def parse_version(text: str) -> Version:
    """Read ``1.2.3``, ``0.18rc1`` or ``2.7.0.post1+cu128``, without its local part; ValueError for anything else.

    >>> parse_version("0.18.0rc2") < parse_version("0.18") < parse_version("0.18.0.post1+cu128")
    True
    """
    try:
        return Version(Version(text).public)
    except ValueError:
        raise ValueError(f"{text!r} is not a version such as 0.16.1, 0.18rc1 or 0.20.0dev0") from None
