"""A suite of cases, the names in it, and a selection by name."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field

from harness.errors import BadRequestError, Problems, nearest
from harness.experiment.recompute import canonical_text, shown_setting
from harness.records.metrics import METRICS
from harness.records.refusing import FileModel, RefusedError
from harness.resolve.recipe import Request
from harness.resolve.recompute import recompute_policy

ExpectedOutcome = Literal["oom", "failed", "regression", "inconclusive"]
THRESHOLD_METRICS = tuple(metric.name for metric in METRICS if metric.gate in ("time", "memory"))
"""Metrics whose allowed worsening a case may set: those gated by a fraction."""


def _day(value: object) -> object:
    """Check a day as a file writes it: text, because YAML versions differ on dates."""
    try:
        return date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError as error:
        remedy = 'the last day that it counts, e.g. "2027-01-31"'
        raise RefusedError.at((), f"no date: {value!r}", remedy) from error


class ExpectedFailure(FileModel):
    """A bad outcome that is known and does not make the night red, up to and including the day ``until`` (UTC)."""

    outcome: ExpectedOutcome = Field(description=", ".join(f"`{name}`" for name in get_args(ExpectedOutcome)))
    until: Annotated[date, BeforeValidator(_day)] = Field(description="the last day that it counts, in UTC")
    reason: Annotated[str, Field(min_length=1, description="why it is known")]


@dataclass(frozen=True, kw_only=True)
class SuiteCase:
    """One case. ``name`` is unique in the suite and safe as a folder's; ``request.gpu`` may be empty.

    ``thresholds``: allowed relative worsening by metric name. ``is_golden_required``: without one it is inconclusive.
    """

    name: str
    request: Request
    repeats: int = 1
    thresholds: dict[str, float] = field(default_factory=dict)
    owner: str = ""
    expected: ExpectedFailure | None = None
    is_golden_required: bool = True
    timeout_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Cases in the file's order. ``name`` is the file's stem, ``source`` says where the cases are from."""

    name: str
    title: str
    cases: tuple[SuiteCase, ...]
    source: str = ""


_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,+=-]{0,99}")


def recompute_of(request: Request) -> str | None:
    """Return the recompute setting of the request's options, modules in order; None without any. BadRequestError."""
    policy = recompute_policy(request)
    return None if policy is None else canonical_text(policy)


def case_name(given: str, request: Request, recompute: str | None) -> str:
    """Return the given name; else join recipe, task, precision, GPUs and variant where given, like a golden's name.

    ``recompute`` ends it where it is not None, as in ``llama3_8b.8gpu.full-block-5``.
    """
    count = f"{request.num_gpus}gpu" if request.num_gpus is not None else None
    stem = Path(request.model_recipe_name).stem
    parts = (given,) if given else (stem, request.task, request.compute_dtype, count, request.variant)
    return ".".join(part for part in (*parts, shown_setting(recompute or "", 0).replace(":", "-")) if part)


def require_safe(name: str) -> str:
    """Return the name. BadRequestError if it cannot name a folder on every file system, or reads as an option."""
    if not _SAFE.fullmatch(name) or ".." in name or name.endswith("."):
        raise BadRequestError(
            f"{name!r} cannot be a folder's name",
            remedy="at most 100 letters, digits, _ . , + = -; neither . nor - first, no .. and no . at the end",
        )
    return name


def only(suite: Suite, patterns: Sequence[str]) -> Suite:
    """Select the cases whose names match any of the shell ``patterns``; all without one. BadRequestError."""
    if not patterns:
        return suite
    names, problems = [case.name for case in suite.cases], Problems()
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            plain = re.sub(r"[*?\[\]]", "", pattern)
            problems.add(f"--only {pattern}: no case of suite {suite.name} matches", nearest(plain, names, 3))
    problems.raise_if_any()
    chosen = (case for case in suite.cases if any(fnmatchcase(case.name, pattern) for pattern in patterns))
    return replace(suite, cases=tuple(chosen))
