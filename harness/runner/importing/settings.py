"""The settings that logs are given, ``mlp,core_attn pp=8``, as values of the axes of a sweep."""

import shlex
from collections.abc import Mapping, Sequence

from harness.errors import BadRequestError, ManyProblemsError
from harness.runner.sweep.axes import RECOMPUTE, SweptAxis
from harness.runner.sweep.over import read_axes

Values = Mapping[str, str]


def setting_of(label: str) -> dict[str, str]:
    """``mlp,core_attn pp=8`` as values by axis; a word without ``=`` is the recompute setting."""
    try:
        words = shlex.split(label)
    except ValueError as error:
        raise BadRequestError(f"--log {label}: {error}", remedy="quote values that hold blanks") from error
    pairs = [word.partition("=") if "=" in word else (RECOMPUTE, "=", word) for word in words]
    names = [name for name, _, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise BadRequestError(f"--log {label}: {twice} is given twice", remedy="commas join modules: mlp,core_attn")
    return {name: value for name, _, value in pairs}


def axes_of(labels: Sequence[Values]) -> tuple[SweptAxis, ...]:
    """Every axis that a label names, with its values in their order. BadRequestError for what cannot be varied."""
    names = dict.fromkeys(name for values in labels for name in values)
    given = [(name, tuple(dict.fromkeys(v[name] for v in labels if name in v))) for name in names]
    try:
        return read_axes(given)
    except BadRequestError as error:
        found = error.problems if isinstance(error, ManyProblemsError) else [error]
        told = [BadRequestError(one.message.replace("--over", "--log", 1), remedy=one.remedy) for one in found]
        raise ManyProblemsError(told) from error


def canonical(labels: Sequence[Values], axes: tuple[SweptAxis, ...]) -> list[Values]:
    """The labels with every name and value in its one spelling, as the axes have them."""
    names = dict.fromkeys(name for values in labels for name in values)
    spelled = dict[tuple[str, str], tuple[str, str]]()
    for name, axis in zip(names, axes, strict=True):
        written = dict.fromkeys(values[name] for values in labels if name in values)
        spelled |= {(name, value): (axis.name, one) for value, one in zip(written, axis.values, strict=True)}
    return [dict(spelled[pair] for pair in values.items()) for values in labels]
