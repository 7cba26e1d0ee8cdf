"""A suite: the cases that a nightly job runs, as one value."""

from dataclasses import dataclass, field
from datetime import date
from typing import Literal

from harness.recipes.request import Request

ExpectedOutcome = Literal["oom", "failed", "regression", "inconclusive"]
THRESHOLD_METRICS = ("tflops_per_gpu", "peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes")
"""Metrics whose allowed worsening a case may set: those that are gated by a fraction."""


@dataclass(frozen=True, kw_only=True)
class ExpectedFailure:
    """A bad outcome that is known and does not make the night red, up to and including the day ``until`` (UTC)."""

    outcome: ExpectedOutcome
    until: date
    reason: str


@dataclass(frozen=True, kw_only=True)
class SuiteCase:
    """One case. ``name`` is unique in the suite and safe as a folder's; ``request.gpu`` may be empty.

    ``thresholds``: allowed relative worsening by metric name (a row of `analysis.metrics` that is gated), where it is
    not the GPU row's. ``is_golden_required``: without a golden the case is inconclusive, else it passes and says so.
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
