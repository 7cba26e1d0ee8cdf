"""Lists suites and selects cases."""

import re
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from typing_extensions import TypedDict

from harness.errors import BadRequestError, Problems, closest
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import canonical_text
from harness.resolve.resolve import resolve
from harness.resolve.suite import ExpectedFailure, Suite, SuiteCase, recompute_of
from harness.resolve.suite_file import read_suite, suite_files
from harness.units import counted


class SuiteRow(TypedDict):
    """One suite of the list."""

    suite: str
    title: str
    source: str
    num_cases: int
    gpus: list[str]


class CaseRow(TypedDict):
    """One case. The machine decides each None; ``expected``: a known failure."""

    case: str
    recipe: str
    task: str | None
    gpu: str | None
    compute_dtype: str | None
    num_gpus: int | None
    variant: str | None
    recompute: str | None
    repeats: int
    thresholds: dict[str, float]
    golden: str
    golden_name: str | None
    timeout_s: float | None
    owner: str
    expected: ExpectedFailure | None


def suite_rows(directory: Path | None) -> list[SuiteRow]:
    """Read every suite of the directory. BadRequestError for a file with faults."""
    return [suite_row(read_suite(path.stem, directory)) for path in suite_files(directory)]


def suite_row(suite: Suite) -> SuiteRow:
    """Summarise a suite with its GPU types."""
    gpus = sorted({case.request.gpu for case in suite.cases if case.request.gpu})
    return {
        "suite": suite.name,
        "title": suite.title,
        "source": suite.source,
        "num_cases": len(suite.cases),
        "gpus": gpus,
    }


def case_rows(suite: Suite) -> list[CaseRow]:
    """Return every case, completed by its operating point if the GPU type is known.

    BadRequestError with every case that has no operating point, or asks for what its recipe refuses.
    """
    problems, rows = Problems(), list[CaseRow]()
    for case in suite.cases:
        raised = Problems()
        with raised.collecting():
            rows.append(_row(case, resolve(case.request).spec if case.request.gpu else None))
        for problem in raised.found:
            problems.add(f"suite {suite.name}: case {case.name}: {problem.message}", problem.remedy)
    problems.raise_if_any()
    return rows


def _row(case: SuiteCase, spec: ExperimentSpec | None) -> CaseRow:
    asked = case.request
    return {
        "case": case.name,
        "recipe": spec.recipe if spec else asked.model_recipe_name,
        "task": spec.task if spec else asked.task,
        "gpu": asked.gpu or None,
        "compute_dtype": spec.compute_dtype if spec else asked.compute_dtype,
        "num_gpus": spec.num_gpus if spec else asked.num_gpus,
        "variant": asked.variant,
        "recompute": canonical_text(spec.recompute) if spec else recompute_of(asked),
        "repeats": case.repeats,
        "thresholds": case.thresholds,
        "golden": "required" if case.is_golden_required else "optional",
        "golden_name": f"{spec.gpu}/{spec.slug}" if spec else None,
        "timeout_s": case.timeout_s,
        "owner": case.owner,
        "expected": case.expected,
    }


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
