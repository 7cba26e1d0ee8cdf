"""Nonlinear least squares for a handful of positive parameters within bounds (Levenberg 1944, Marquardt 1963)."""

from collections.abc import Callable, Sequence
from math import exp, log

Residuals = Callable[[Sequence[float]], list[float]]

_STEP = 1e-4
_ENOUGH = 1e-14
_MAX_ROUNDS = 60


def least_squares(
    residuals: Residuals, start: Sequence[float], bounds: Sequence[tuple[float, float]]
) -> tuple[float, ...]:
    """Parameters that make the sum of squared ``residuals`` smallest, sought from ``start`` in their logarithms.

    All values are positive; a parameter that wants to leave its bounds stays on the bound.
    """
    limits = [(log(low), log(high)) for low, high in bounds]
    at = [log(value) for value in start]
    here = residuals([exp(x) for x in at])
    damping = 1e-3
    for _ in range(_MAX_ROUNDS):
        columns = _slopes(residuals, at, here)
        step = _solved(_normal(columns, damping), [-_dot(column, here) for column in columns])
        tried = [min(max(x + d, low), high) for x, d, (low, high) in zip(at, step, limits, strict=True)]
        there = residuals([exp(x) for x in tried])
        gained = _dot(here, here) - _dot(there, there)
        if gained > 0:
            at, here, damping = tried, there, damping / 5
            if gained < _ENOUGH:
                break
        elif damping > 1e9:
            break
        else:
            damping *= 10
    return tuple(exp(x) for x in at)


def slopes(residuals: Residuals, at: Sequence[float]) -> list[list[float]]:
    """By how much each residual grows per unit of each parameter's logarithm: a column per parameter."""
    logs = [log(value) for value in at]
    return _slopes(residuals, logs, residuals(list(at)))


def _slopes(residuals: Residuals, at: list[float], here: list[float]) -> list[list[float]]:
    columns = []
    for index in range(len(at)):
        moved = [exp(x + _STEP * (index == i)) for i, x in enumerate(at)]
        columns.append([(there - now) / _STEP for there, now in zip(residuals(moved), here, strict=True)])
    return columns


def _normal(columns: list[list[float]], damping: float) -> list[list[float]]:
    rows = [[_dot(one, other) for other in columns] for one in columns]
    for index, row in enumerate(rows):
        row[index] += damping * max(row[index], 1e-12)
    return rows


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss with the largest pivot; the damped normal equations are never singular."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, size):
            factor = rows[r][i] / rows[i][i]
            rows[r] = [value - factor * above for value, above in zip(rows[r], rows[i], strict=True)]
    out = [0.0] * size
    for i in reversed(range(size)):
        out[i] = (rows[i][-1] - _dot(rows[i][i + 1 : size], out[i + 1 :])) / rows[i][i]
    return out
