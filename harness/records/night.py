"""The files of a night: ``night.json``, events that say why runs began, and runs in ``cases/<case>/<number>``."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from harness.errors import BadRequestError
from harness.experiment.frozen import Frozen
from harness.experiment.software import Software
from harness.records.batches import NIGHT_FOLDERS, BatchLaunch, Build, EntryWords, PlannedEntry, Purpose, read_events
from harness.records.job import JobOptions
from harness.records.rank import Recorded
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_record
from harness.records.strict_json import read_document
from harness.units import command_text


class ExpectedFailureRecord(Frozen):
    """An expected failure of the suite. ``until``: ISO-8601, the last day on which it counts."""

    outcome: Literal["oom", "failed", "regression", "inconclusive"]
    until: str
    reason: str


class _CaseWords(EntryWords):
    """How often the suite runs a case, and how it is judged."""

    repeats: int
    thresholds: dict[str, float] = Field(default_factory=dict)
    owner: str = ""
    expected: ExpectedFailureRecord | None = None
    is_golden_required: bool = True
    timeout_s: float | None = None


class PlannedCase(PlannedEntry, _CaseWords):
    """A case that can run."""

    refused: Literal[""] = ""


class RefusedCase(_CaseWords):
    """A case that cannot run, and why: a rule, a recipe or the machine. ``spec`` is None if it was not resolved."""

    refused: str = Field(min_length=1)


def _kind(case: object) -> str:
    refused = case.get("refused") if isinstance(case, dict) else getattr(case, "refused", "")
    return "refused" if refused else "planned"


Case = Annotated[Annotated[PlannedCase, Tag("planned")] | Annotated[RefusedCase, Tag("refused")], Discriminator(_kind)]


class Against(Frozen):
    """The old build of ``num_pairs`` pairs of runs, as :func:`pair_label` orders them. ``source``: its name."""

    source: str
    num_pairs: int
    build: Build


def pair_label(place: int) -> str:
    """Order the builds old, new, new, old, so that a steady drift cancels; ``place`` counts from 0."""
    return OLD if place % 4 in (0, 3) else NEW


OLD, NEW = "old", "new"


class NightPlan(Recorded):
    """``night.json``. ``confirm``: further runs of a suspicious case. ``retries``: restarts after machines' faults."""

    night_id: str
    suite: str
    title: str
    cases: tuple[Case, ...]
    confirm: int
    retries: int
    only: tuple[str, ...] = ()
    launch: BatchLaunch = BatchLaunch()
    cluster: JobOptions | None = None
    software: dict[str, Software] = Field(default_factory=dict)
    golden_dir: str | None = None
    accept_differences: tuple[str, ...] = ()
    fail_on_improvement: bool = False
    against: Against | None = None
    no_pairs: str = ""
    python: str = ""
    notes: tuple[str, ...] = ()
    command: tuple[str, ...]
    started_at: str
    mbr_perf: str

    @property
    def planned(self) -> tuple[PlannedCase, ...]:
        return tuple(case for case in self.cases if isinstance(case, PlannedCase))


class NightEvent(Frozen):
    """A line of ``events.jsonl``: run ``number`` of ``case`` began for ``purpose``, or how it was ended."""

    time: str
    kind: Literal["started", "interrupted", "cancelled", "finished"]
    case: str = ""
    number: int | None = None
    purpose: Purpose | None = None
    reason: str = ""


REPORT, JUDGED = "report", "night.json"
"""The folder of a night's reports, and its JSON report."""

NIGHTS, NIGHT, CASES = NIGHT_FOLDERS.parent, NIGHT_FOLDERS.mark, NIGHT_FOLDERS.entries


@dataclass(frozen=True)
class NightRun:
    """A run that was started. ``record`` None: never committed. ``cancelled``: why it does not count."""

    number: int
    purpose: Purpose
    reason: str
    run_dir: Path
    record: RunRecord | None
    cancelled: str = ""


@dataclass(frozen=True)
class NightCase:
    """A case and its runs so far, by number. ``pair_runs`` of old and new build are none of the case."""

    planned: Case
    runs: tuple[NightRun, ...]
    pair_runs: tuple[NightRun, ...] = ()


@dataclass(frozen=True)
class NightData:
    """A night read from disk, finished or not. Cases are in the plan's order, events in the order of writing."""

    night_dir: Path
    plan: NightPlan
    cases: tuple[NightCase, ...]
    events: tuple[NightEvent, ...]

    @property
    def is_finished(self) -> bool:
        return any(event.kind == "finished" for event in self.events)


def run_dir_of(night_dir: Path, case: str, number: int) -> Path:
    """Return the folder of a case's run; runs are counted from 0."""
    return night_dir / CASES / case / str(number)


def read_night(reference: str | Path, results: Path | None = None) -> NightData:
    """Read a night. BadRequestError as for :meth:`BatchFolders.folder_of`, and if a file is damaged."""
    night_dir = NIGHT_FOLDERS.folder_of(reference, results)
    plan, events = read_document(night_dir / NIGHT, NightPlan), read_events(night_dir, NightEvent)
    cases = tuple(_case(night_dir, case, events) for case in plan.cases)
    return NightData(night_dir, plan, cases, events)


def _case(night_dir: Path, planned: Case, events: Iterable[NightEvent]) -> NightCase:
    """Return a case with its runs. A restarted run keeps the purpose of its first start."""
    started: dict[int, NightEvent] = {}
    cancelled: dict[int, str] = {}
    for event in events:
        if event.case != planned.name or event.number is None:
            continue
        if event.kind == "started":
            started.setdefault(event.number, event)
            cancelled.pop(event.number, None)
        elif event.kind == "cancelled":
            cancelled[event.number] = event.reason
    runs, pairs = list[NightRun](), list[NightRun]()
    for number, event in sorted(started.items()):
        run_dir = run_dir_of(night_dir, planned.name, number)
        record = read_record(run_dir / RECORD) if (run_dir / RECORD).is_file() else None
        why = cancelled.get(number, "")
        run = NightRun(number, event.purpose or "repeat", event.reason, run_dir, record, why)
        (pairs if run.purpose == "pair" else runs).append(run)
    return NightCase(planned, tuple(runs), tuple(pairs))


def night_of(run_dir: Path) -> Path | None:
    """Return the night of a run in ``NIGHT/cases/<case>/<number>``; None for other runs."""
    night_dir = run_dir.parent.parent.parent
    return night_dir if run_dir.parent.parent.name == CASES and (night_dir / NIGHT).is_file() else None


class JudgedFinding(BaseModel):
    """A metric of a case in the report of a night."""

    metric: str
    verdict: str


class JudgedCase(BaseModel):
    """A case in the JSON report of a night: what other commands read of it."""

    name: str
    outcome: str
    reason: str | None = None
    golden_path: str | None = None
    comparison: tuple[JudgedFinding, ...] = ()


class JudgedNight(BaseModel):
    """The JSON report of a night: what other commands read of it."""

    outcome: str
    exit_code: int | None = None
    num_runs_missing: int | None = None
    cases: tuple[JudgedCase, ...] = ()


def read_judged(night_dir: Path) -> JudgedNight | None:
    """Read the report of a night; None before it has one. BadRequestError if it is damaged."""
    path = night_dir / REPORT / JUDGED
    if not path.exists():
        return None
    with suppress(BadRequestError):
        return read_document(path, JudgedNight)
    again = command_text("nightly", "--resume", night_dir)
    raise BadRequestError(f"judged, but {path} cannot be read: {again} writes it again")


def verdict_text(night_dir: Path) -> str:
    """Return ``judged inconclusive``; empty if there is no report yet. For an unreadable report, the text says so."""
    try:
        judged = read_judged(night_dir)
    except BadRequestError as error:
        return error.message
    return f"judged {judged.outcome}" if judged else ""
