"""What a nightly job leaves behind: ``night.json``, its cases before the first run, and events as they happen.

A case's runs are ordinary run folders under ``cases/<case>/<number>``; their ``record.json`` is what commits them. Why a
run was started (a repeat, a retry, a confirmation) is an event, written before it starts. What became of a case is
derived from these files on reading.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from harness.experiment.gpu import Frozen
from harness.experiment.software import Software
from harness.records.batches import NIGHT_FOLDERS, BatchLaunch, EntryWords, PlannedEntry, Purpose, read_events
from harness.records.job import SlurmOptions
from harness.records.rank import SCHEMA_VERSION
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_record
from harness.records.strict_json import read_document


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


REPORT, JUDGED = "report", "night.json"
"""The folder of a night's reports, and the report among them that is JSON."""

NIGHTS, NIGHT, CASES = NIGHT_FOLDERS.parent, NIGHT_FOLDERS.mark, NIGHT_FOLDERS.entries


@dataclass(frozen=True)
class NightRun:
    """A run of a case that was started at least once. ``record`` None: it was never committed.

    ``cancelled``: why it does not count: someone ended its job by hand, and it was not started again since.

    A run that a signal cut short has a record whose status is ``interrupted``, and is started again when the night is resumed.
    """

    number: int
    purpose: Purpose
    reason: str
    run_dir: Path
    record: RunRecord | None
    cancelled: str = ""


@dataclass(frozen=True)
class NightCase:
    """A case and its runs so far, by number. ``aa_runs``: those of the night's A/A, which are no runs of the case."""

    planned: Case
    runs: tuple[NightRun, ...]
    aa_runs: tuple[NightRun, ...] = ()


@dataclass(frozen=True)
class NightData:
    """A night as it lies on disk, finished or not; cases in the plan's order, events as they were written."""

    night_dir: Path
    plan: NightPlan
    cases: tuple[NightCase, ...]
    events: tuple[NightEvent, ...]

    @property
    def is_finished(self) -> bool:
        """Whether every case got what it needs."""
        return any(event.kind == "finished" for event in self.events)


def run_dir_of(night_dir: Path, case: str, number: int) -> Path:
    """Where a case's run lies; runs are counted from 0."""
    return night_dir / CASES / case / str(number)


def run_id_of(night_id: str, case: str, number: int) -> str:
    """The id in the record of a case's run, fit for a file's name: what is not (a comma, say) becomes its hex code."""
    name = re.sub(r"[^A-Za-z0-9._-]", lambda found: f"-{ord(found[0]):x}-", case)
    return f"{night_id}.{name}.{number}"


def read_night(reference: str | Path, results: Path | None = None) -> NightData:
    """Plan, runs and events of a night. Touches nothing on disk.

    BadRequestError as for :meth:`BatchFolders.folder_of`, and for a file that is corrupt or newer than this program.
    """
    night_dir = NIGHT_FOLDERS.folder_of(reference, results)
    plan, events = read_document(night_dir / NIGHT, NightPlan), read_events(night_dir, NightEvent)
    cases = tuple(_case(night_dir, case, events) for case in plan.cases)
    return NightData(night_dir, plan, cases, events)


def _case(night_dir: Path, planned: Case, events: Iterable[NightEvent]) -> NightCase:
    runs = _runs(night_dir, planned.name, events)
    return NightCase(
        planned,
        tuple(run for run in runs if run.purpose != "aa"),
        tuple(run for run in runs if run.purpose == "aa"),
    )


def _runs(night_dir: Path, case: str, events: Iterable[NightEvent]) -> tuple[NightRun, ...]:
    """A run that was started again counts for the reason of its first start."""
    started: dict[int, NightEvent] = {}
    cancelled: dict[int, str] = {}
    for event in events:
        if event.case != case or event.number is None:
            continue
        if event.kind == "started":
            started.setdefault(event.number, event)
            cancelled.pop(event.number, None)
        elif event.kind == "cancelled":
            cancelled[event.number] = event.reason
    return tuple(
        _run(night_dir, case, number, event, cancelled.get(number, "")) for number, event in sorted(started.items())
    )


def _run(night_dir: Path, case: str, number: int, event: NightEvent, cancelled: str) -> NightRun:
    run_dir = run_dir_of(night_dir, case, number)
    record = read_record(run_dir / RECORD) if (run_dir / RECORD).is_file() else None
    return NightRun(number, event.purpose or "repeat", event.reason, run_dir, record, cancelled)


def told_verdict(night_dir: Path) -> str:
    """``judged inconclusive: tonight's own A/A differs: ...``: the outcome, and what its A/A leaves in doubt, if anything.

    Empty where there is no report yet; one that cannot be read is said to be so.
    """
    path = night_dir / REPORT / JUDGED
    try:
        document = json.loads(path.read_bytes())
        outcome, aa = document["outcome"], document.get("aa")
        doubts = [*aa["doubts"].values()] if aa else []
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"judged, but {path} cannot be read: mbr-perf nightly --resume {night_dir} writes it anew"
    return ": ".join((f"judged {outcome}", *map(str, doubts[:1])))
