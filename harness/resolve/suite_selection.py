"""Selects cases of a suite."""

import re
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from harness.errors import Problems, closest
from harness.resolve.suite import Suite

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


def _near(pattern: str, names: Sequence[str]) -> str:
    close = closest(re.sub(r"[*?\[\]]", "", pattern), names, 3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    more = len(names) - _NAMED_AT_MOST
    return f"cases: {', '.join(names[:_NAMED_AT_MOST])}{f' and {more} more' if more > 0 else ''}"
