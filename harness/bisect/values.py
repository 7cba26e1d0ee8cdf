"""The files of a bisect, and its answer, which is its JSON."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.errors import ExitCode
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.frozen import Frozen
from harness.judge.gate import Code, OptionalText
from harness.records.rank import Recorded
from harness.show.json import Document, Shown, at
from harness.units import format_bytes, format_seconds

Metric = Literal["recompute", "memory", "work", "time"]
TRACED: tuple[Metric, ...] = ("recompute", "memory", "work")
"""Figures that a trace shows, without training."""


class Revision(Frozen):
    """A commit of the repository. ``subject``: the first line of its message."""

    sha: str
    subject: str

    @property
    def name(self) -> str:
        return self.sha[:10]


class BisectPlan(Recorded):
    """``bisect.json``. ``revisions``: good first, bad last. ``metric`` None: what differs between traces, else time."""

    bisect_id: str
    case: str
    spec: ExperimentSpec
    sources: dict[str, str]
    repo: str
    pins: str | None = None
    revisions: tuple[Revision, ...]
    metric: Metric | None
    max_runs: int
    command: tuple[str, ...]
    started_at: str
    mbr_perf: str

    @property
    def num_revisions(self) -> int:
        return len(self.revisions) - 1


class Measured(Frozen):
    """A trace or run of the revision at ``place``. ``problem``: why it has no figures. Suspect ones do not count."""

    place: int
    kind: Literal["trace", "run"]
    number: int
    seconds: float | None = None
    peak_bytes: int | None = None
    flops: int | None = None
    recompute: str | None = None
    problem: str = ""
    suspect: str = ""

    @property
    def text(self) -> str:
        """Return the main figure in words, or why there is none."""
        if self.problem or self.suspect:
            return self.problem or f"does not count: {self.suspect}"
        return (
            format_bytes(self.peak_bytes or 0) if self.seconds is None else f"{format_seconds(self.seconds)} per step"
        )

    def figure(self, metric: Metric) -> float | str | None:
        """Return the figure that the search compares."""
        figures = {"memory": self.peak_bytes, "work": self.flops, "recompute": self.recompute, "time": self.seconds}
        return figures[metric]


@dataclass(frozen=True)
class Side:
    """A revision beside the change. ``figures``: of each of its runs or traces."""

    revision: Revision
    figures: tuple[float | str, ...]


class Skipped(Shown):
    """A revision that could not be measured, and why."""

    revision: Revision
    reason: str


class BisectAnswer(Document):
    """``mbr-perf bisect --json``. ``first_bad`` null: ``reason`` says why, ``advice`` what to do.

    ``metric`` null: interrupted before it was chosen. ``between``: it is one of these commits. ``levels``: the figure
    before and after; for time the means of all runs on either side; empty for texts and where a side has no figure.
    ``change``: relative, of the levels; null without them.
    """

    plan: BisectPlan = Field(exclude=True)
    bisect_id: str = at("plan", "bisect_id")
    folder: Path
    case: str = at("plan", "case")
    metric: Metric | None
    exit_code: Code = ExitCode.OK
    first_bad: Revision | None = None
    between: tuple[Revision, ...] = ()
    probability: float | None = None
    levels: tuple[float, ...] = ()
    change: float | None = None
    sides: tuple[Side, ...] = ()
    lines: tuple[str, ...] = Field(default=(), serialization_alias="changed_lines")
    skipped: tuple[Skipped, ...] = ()
    num_revisions: int = at("plan", "num_revisions")
    num_measured: int = 0
    reason: OptionalText = ""
    advice: OptionalText = ""


def of_kind(measured: Iterable[Measured], metric: Metric) -> list[Measured]:
    """Return the traces or the runs, whichever show ``metric``, without those that do not count."""
    kind = "trace" if metric in TRACED else "run"
    return [each for each in measured if each.kind == kind and not each.suspect]
