"""Night folders on disk: made exclusively, written down before the first run, read back whatever ended them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.errors import BadRequestError
from harness.records.atomic import write_once
from harness.records.event_log import EVENTS, append_line, read_lines
from harness.records.folders import folder_meant, new_folder
from harness.records.night import NightEvent, NightPlan, PlannedCase, Purpose
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_record, results_dir
from harness.records.strict_json import read_document
from harness.records.sweeps import SWEEP

NIGHTS, NIGHT, CASES = "nights", "night.json", "cases"


@dataclass(frozen=True)
class NightRun:
    """A run of a case that was started at least once. ``record`` None: it was never committed.

    ``cancelled``: why it is no run, where somebody ended its job by hand and it was not started again since.

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

    planned: PlannedCase
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


def new_night_dir(results: Path, suite: str, *, now: datetime | None = None) -> Path:
    """Make ``nights/<UTC time>-<suite>-<8 hex>`` with its ``cases``; the name is the night's id.

    BadRequestError where the folder cannot be made.
    """
    return new_folder(results / NIGHTS, suite, (CASES,), now=now)


def write_plan(night_dir: Path, plan: NightPlan) -> Path:
    """``night.json``, whole and once: FileExistsError where there is one already."""
    path = night_dir / NIGHT
    write_once(path, plan.model_dump_json(indent=1) + "\n")
    return path


def append_event(night_dir: Path, event: NightEvent) -> None:
    """One more line of ``events.jsonl``."""
    append_line(night_dir / EVENTS, event)


def run_dir_of(night_dir: Path, case: str, number: int) -> Path:
    """Where a case's run lies; runs are counted from 0."""
    return night_dir / CASES / case / str(number)


def run_id_of(night_id: str, case: str, number: int) -> str:
    """The id in the record of a case's run, fit for a file's name: what is not (a comma, say) becomes its hex code."""
    name = re.sub(r"[^A-Za-z0-9._-]", lambda found: f"-{ord(found[0]):x}-", case)
    return f"{night_id}.{name}.{number}"


def night_dir_of(reference: str | Path, results: Path | None = None) -> Path:
    """The folder that ``reference`` means: itself, that of a ``night.json``, or the start of an id under ``results``.

    BadRequestError for a reference that names none or several, or something else, and for a folder without ``night.json``.
    """
    night_dir = folder_meant(reference, results_dir(results) / NIGHTS, "night", NIGHT)
    if not (night_dir / NIGHT).is_file():
        if any((night_dir / name).is_file() for name in (RECORD, SWEEP, "spec.json")):
            raise BadRequestError(f"{night_dir}: no night", remedy=f"mbr-perf results show {night_dir}")
        raise BadRequestError(
            f"{night_dir}: no {NIGHT}: no night's folder, or of one that was killed before it had decided on its cases",
            remedy="nothing of it had started; start the night again",
        )
    return night_dir


def read_night(reference: str | Path, results: Path | None = None) -> NightData:
    """Plan, runs and events of a night. Touches nothing on disk.

    BadRequestError as for :func:`night_dir_of`, and for a file that is corrupt or newer than this program.
    """
    night_dir = night_dir_of(reference, results)
    plan, events = read_document(night_dir / NIGHT, NightPlan), read_lines(night_dir / EVENTS, NightEvent)
    cases = tuple(_case(night_dir, case, events) for case in plan.cases)
    return NightData(night_dir, plan, cases, events)


def _case(night_dir: Path, planned: PlannedCase, events: Iterable[NightEvent]) -> NightCase:
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
