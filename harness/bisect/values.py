"""The files of a bisect, its answer, and its JSON."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from harness.bisect.search import Found
from harness.errors import ExitCode
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.frozen import Frozen
from harness.records.rank import SCHEMA_VERSION, SchemaVersion
from harness.show.json import Document, Shown, Text, at

Metric = Literal["recompute", "memory", "work", "time"]
TRACED: tuple[Metric, ...] = ("recompute", "memory", "work")
"""Figures that a trace shows, without training."""

PLAN = "bisect.json"


class Revision(Frozen):
    """A commit of the repository. ``subject``: the first line of its message."""

    sha: str
    subject: str

    @property
    def name(self) -> str:
        return self.sha[:10]


class BisectPlan(Frozen):
    """``bisect.json``. ``revisions``: good first, bad last. ``metric`` None: what differs between traces, else time."""

    schema_version: SchemaVersion = SCHEMA_VERSION
    bisect_id: str
    case: str
    spec: ExperimentSpec
    sources: dict[str, str]
    repo: str
    revisions: tuple[Revision, ...]
    metric: Metric | None
    max_runs: int
    command: tuple[str, ...]
    started_at: str
    mbr_perf: str


class Measured(Frozen):
    """A line of ``events.jsonl``: a trace or a run of the revision at ``place``.

    ``problem``: why it has no figures. Then the revision is skipped. ``suspect``: why the run does not count.
    """

    place: int
    kind: Literal["trace", "run"]
    number: int
    seconds: float | None = None
    peak_bytes: int | None = None
    flops: int | None = None
    recompute: str | None = None
    problem: str = ""
    suspect: str = ""

    def figure(self, metric: Metric) -> float | str | None:
        """Return the figure that the search compares."""
        match metric:
            case "memory":
                return self.peak_bytes
            case "work":
                return self.flops
            case "recompute":
                return self.recompute
            case "time":
                return self.seconds


@dataclass(frozen=True)
class Side:
    """A revision beside the change. ``figures``: of each of its runs or traces."""

    revision: Revision
    figures: tuple[float | str, ...]


@dataclass(frozen=True)
class Answer:
    """The end of a bisect. ``found`` None: ``reason`` says why. ``between``: commits that the search cannot tell apart.

    ``change``: relative, bad from good; None for texts. ``lines``: changed lines about memory and recompute.
    """

    plan: BisectPlan
    folder: Path
    metric: Metric
    found: Found | None
    reason: str
    sides: tuple[Side, ...] = ()
    change: float | None = None
    between: tuple[Revision, ...] = ()
    lines: tuple[str, ...] = ()
    skipped: tuple[tuple[Revision, str], ...] = ()
    num_measured: int = 0
    exit_code: ExitCode = ExitCode.OK


class SkippedRow(Shown):
    """A revision that could not be measured, and why."""

    revision: Revision
    reason: str


class BisectDocument(Document):
    """``mbr-perf bisect --json``. ``first_bad`` null: ``reason`` says why. ``between``: it is one of these commits."""

    bisect_id: str = at("plan", "bisect_id")
    folder: Path
    case: str = at("plan", "case")
    metric: Metric
    exit_code: int
    first_bad: Revision | None
    between: tuple[Revision, ...]
    probability: float | None = at("found", "probability")
    change: float | None
    sides: tuple[Side, ...]
    changed_lines: tuple[str, ...] = at("lines")
    skipped: tuple[SkippedRow, ...]
    num_revisions: int
    num_measured: int
    reason: Text

    @classmethod
    def of_answer(cls, answer: Answer) -> Self:
        """Return the document of an answer."""
        first = answer.plan.revisions[answer.found.place] if answer.found else None
        skipped = [SkippedRow(revision=each, reason=why) for each, why in answer.skipped]
        return cls.of(answer, first_bad=first, skipped=skipped, num_revisions=len(answer.plan.revisions) - 1)


def of_kind(measured: Iterable[Measured], metric: Metric) -> list[Measured]:
    """Return the traces or the runs, whichever show ``metric``, without those that do not count."""
    kind = "trace" if metric in TRACED else "run"
    return [each for each in measured if each.kind == kind and not each.suspect]
