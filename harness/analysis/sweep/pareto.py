"""The settings that no other setting beats in time and in memory."""

from collections.abc import Mapping


def pareto(points: Mapping[str, tuple[float, float]]) -> tuple[str, ...]:
    """Names of the points, less being better in both coordinates, that no other dominates; in order of the first.

    One point dominates another when it is no worse in both and better in one; equal points are all kept.
    """
    front = [name for name, point in points.items() if not any(_dominates(other, point) for other in points.values())]
    return tuple(sorted(front, key=lambda name: points[name]))


def _dominates(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one != other and one[0] <= other[0] and one[1] <= other[1]
