"""Selects cases of a suite."""

import re
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from harness.errors import BadRequestError, Problems, closest
from harness.resolve.suite import Suite
from harness.units import counted

_SHARD = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")
_NAMED_AT_MOST = 12


def only(suite: Suite, patterns: Sequence[str]) -> Suite:
    """Select the cases whose names match any of the shell ``patterns``, in the suite's order; all without a pattern.

    BadRequestError naming every pattern that matches no case.
    """
    if not patterns:
        return suite
    names, problems = [case.name for case in suite.cases], Problems()
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            problems.add(f"--only {pattern}: no case of suite {suite.name} matches", _near(pattern, names))
    problems.raise_if_any()
    chosen = (case for case in suite.cases if any(fnmatchcase(case.name, pattern) for pattern in patterns))
    return replace(suite, cases=tuple(chosen))


def shard(suite: Suite, text: str) -> Suite:
    """Select shard ``i/n``: every n-th case from the i-th on, so that each case is in exactly one shard.

    Shards differ by at most one case. BadRequestError for anything but 1 <= i <= n, and for a shard without cases.
    """
    match = _SHARD.fullmatch(text)
    if match is None:
        raise BadRequestError(f"--shard {text!r}: not of the form i/n", remedy="e.g. --shard 1/4, the first of four")
    number, of = int(match[1]), int(match[2])
    if not 1 <= number <= of:
        raise BadRequestError(f"--shard {text}: there is no such shard", remedy="shards count from 1/n to n/n")
    cases = suite.cases[number - 1 :: of]
    if suite.cases and not cases:
        message = f"--shard {text}: holds no case: there are {counted(len(suite.cases), 'case')}"
        raise BadRequestError(message, remedy="fewer shards")
    return replace(suite, cases=cases)


def _near(pattern: str, names: Sequence[str]) -> str:
    close = closest(re.sub(r"[*?\[\]]", "", pattern), names, 3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    more = len(names) - _NAMED_AT_MOST
    return f"cases: {', '.join(names[:_NAMED_AT_MOST])}{f' and {more} more' if more > 0 else ''}"
