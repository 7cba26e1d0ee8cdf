"""Night folders on disk: made exclusively, written down before the first run, read back whatever ended them."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.records.batches import NIGHT_FOLDERS, Purpose, read_events
from harness.records.night import Case, NightEvent, NightPlan
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_record
from harness.records.strict_json import read_document

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
