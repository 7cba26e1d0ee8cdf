"""What a nightly job leaves behind: ``night.json``, its cases before the first run, and events as they happen.

A case's runs are ordinary run folders under ``cases/<case>/<number>``; their ``record.json`` is what commits them. Why a
run was started (a repeat, a retry, a confirmation) is an event, written before it starts. What became of a case is
derived from these files on reading.
"""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from harness.experiment.gpu import Frozen
from harness.experiment.software import Software
from harness.records.batches import BatchLaunch, EntryWords, PlannedEntry, Purpose
from harness.records.job import SlurmOptions
from harness.records.rank import SCHEMA_VERSION


class ExpectedFailureRecord(Frozen):
    """As the suite says it; ``until`` is ISO-8601, the last day on which it counts."""

    outcome: Literal["oom", "failed", "regression", "inconclusive"]
    until: str
    reason: str


class _CaseWords(EntryWords):
    """How often a case runs and how it is judged, as the suite says it."""

    repeats: int
    thresholds: dict[str, float] = Field(default_factory=dict)
    owner: str = ""
    expected: ExpectedFailureRecord | None = None
    is_golden_required: bool = True
    timeout_s: float | None = None


class PlannedCase(PlannedEntry, _CaseWords):
    """A case that is to run."""

    refused: Literal[""] = ""


class RefusedCase(_CaseWords):
    """A case that cannot run at all, and why: a rule, a recipe, the machine. ``spec`` is None if it was not resolved."""

    refused: str = Field(min_length=1)


def _kind(case: object) -> str:
    """Which of the two a case is: files have no other mark than the reason."""
    refused = case.get("refused") if isinstance(case, dict) else getattr(case, "refused", "")
    return "refused" if refused else "planned"


Case = Annotated[Annotated[PlannedCase, Tag("planned")] | Annotated[RefusedCase, Tag("refused")], Discriminator(_kind)]


class AaPlan(Frozen):
    """The A/A of a night: one case, run under two labels of the same setting beside its own runs.

    The labels take turns as A A' A' A, so that a drift of the machine falls on both alike; by an odd number of pairs all
    but what it is over one pair.
    """

    case: str
    num_pairs: int


def aa_label(place: int) -> str:
    """Which of the two the A/A run at ``place`` is, counted from 0."""
    return "A" if place % 4 in (0, 3) else "A'"


class NightPlan(Frozen):
    """``night.json``: all that was decided before the first run. Times are UTC ISO-8601.

    ``confirm``: further runs of a case that looks like a regression; ``retries``: most runs of a case that are started
    again after a named infrastructure fault. ``shard``: ``i/n`` where this night runs a part of the suite only.
    ``slurm``: what Slurm is asked for, where every case is a job of it. ``software``: by GPU type, what the cases were
    judged for and are to run with. ``aa``: the A/A that the night must hold before its times are judged; None: none.
    """

    schema_version: int = SCHEMA_VERSION
    night_id: str
    suite: str
    title: str
    cases: tuple[Case, ...]
    confirm: int
    retries: int
    shard: str = ""
    only: tuple[str, ...] = ()
    launch: BatchLaunch = BatchLaunch()
    slurm: SlurmOptions | None = None
    software: dict[str, Software] = Field(default_factory=dict)
    golden_dir: str | None = None
    accept_differences: tuple[str, ...] = ()
    fail_on_improvement: bool = False
    aa: AaPlan | None = None
    notes: tuple[str, ...] = ()
    command: tuple[str, ...]
    started_at: str
    mbr_perf: str

    @property
    def planned(self) -> tuple[PlannedCase, ...]:
        """The cases that are to run."""
        return tuple(case for case in self.cases if isinstance(case, PlannedCase))

    def aa_numbers(self, case: Case) -> range:
        """Numbers of the A/A runs of ``case``, in their order, after those of its repeats; none where it has no A/A."""
        num_runs = 2 * self.aa.num_pairs if self.aa and self.aa.case == case.name else 0
        return range(case.repeats, case.repeats + num_runs)


class NightEvent(Frozen):
    """A line of ``events.jsonl``. ``started``: run ``number`` of ``case`` is about to start, for ``purpose``, because.

    ``interrupted``: a signal ended the night while it ran. ``cancelled``: someone else ended its job, which fails the
    case as long as it is not resumed. ``finished``: every case has what it needs.
    """

    time: str
    kind: Literal["started", "interrupted", "cancelled", "finished"]
    case: str = ""
    number: int | None = None
    purpose: Purpose | None = None
    reason: str = ""
