"""Which efficiencies a set of runs can tell: those on which step times depend, each in a way of its own."""

from collections.abc import Callable, Sequence
from math import sqrt

from harness.planning.constants import BUILT_IN, EFFICIENCIES
from harness.planning.least_squares import Residuals, slopes

# A constant has to move some run's step time by this share of its own change, beside all that others explain.
_LEAST_SLOPE = 0.05


def determined(
    num_runs: int, errors_of: Callable[[Sequence[str]], Residuals]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Names of the efficiencies that can be fitted, and for the others why not.

    One run tells one of them; several runs tell fewer than there are runs, so that some error is left to be seen. The
    most telling one is taken first, then the one that tells most beside it (Gram-Schmidt with pivoting).
    """
    if not num_runs:
        return (), dict.fromkeys(EFFICIENCIES, "no run has a step time that is predicted")
    start = [BUILT_IN.value_of(name) for name in EFFICIENCIES]
    plain = dict(zip(EFFICIENCIES, slopes(errors_of(EFFICIENCIES), start), strict=True))
    rest = dict(plain)
    chosen: list[str] = []
    most = max(1, num_runs - 1)
    while rest and len(chosen) < most:
        best = max(rest, key=lambda name: _largest(rest[name]))
        if _largest(rest[best]) < _LEAST_SLOPE:
            break
        axis = _unit(rest.pop(best))
        rest = {name: _without(column, axis) for name, column in rest.items()}
        chosen.append(best)
    few = f"more than {num_runs} run{'s' * (num_runs > 1)} needed to tell it apart from {', '.join(chosen)}"
    alike = "its share of a step goes with another constant's in all runs: add runs of other shapes"
    return tuple(chosen), {
        name: few if len(chosen) == most and _largest(plain[name]) >= _LEAST_SLOPE else _reason(plain[name], alike)
        for name in rest
    }


def _reason(plain: list[float], alike: str) -> str:
    share = _largest(plain)
    return alike if share >= _LEAST_SLOPE else f"at most {share * 100:.1f} % of a step depends on it"


def _largest(column: list[float]) -> float:
    return max(abs(value) for value in column)


def _unit(column: list[float]) -> list[float]:
    length = sqrt(sum(value * value for value in column))
    return [value / length for value in column]


def _without(column: list[float], axis: list[float]) -> list[float]:
    along = sum(value * direction for value, direction in zip(column, axis, strict=True))
    return [value - along * direction for value, direction in zip(column, axis, strict=True)]
