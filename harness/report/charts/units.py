"""The unit of an axis, chosen once for all of its values."""

from collections.abc import Sequence

from harness.units import GIB, MIB


def memory_unit(values: Sequence[float]) -> tuple[str, float]:
    """Name and bytes of the unit in which the largest value has a digit before the point."""
    return ("GiB", float(GIB)) if max(values, default=0) >= GIB else ("MiB", float(MIB))


def time_unit(values: Sequence[float]) -> tuple[str, float]:
    """Name and seconds of the unit."""
    return ("s", 1.0) if max(values, default=0) >= 1 else ("ms", 0.001)
