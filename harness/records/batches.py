"""What lies in a folder of many runs: its plan, its events and its entries."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, ValidationError

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import Frozen
from harness.experiment.rules.rule import Finding
from harness.records.folders import folder_meant, new_folder
from harness.records.run import PredictionRecord
from harness.records.store import RECORD, results_dir, write_once

EVENTS = "events.jsonl"

Event = TypeVar("Event", bound=Frozen)


@dataclass(frozen=True)
class BatchFolders:
    """One kind of batch. ``what``: its name; ``parent``: its folder under the results; ``mark``: the file of its plan.

    ``entries``: what its plan lists, and the folder that holds their runs.
    """

    what: str
    parent: str
    mark: str
    entries: str

    def new_dir(self, results: Path, label: str, *, now: datetime | None = None) -> Path:
        """Make ``<parent>/<UTC time>-<label>-<8 hex>`` with the folder of its runs; the name is the batch's id.

        Two batches of one label in one second get two folders. BadRequestError where the folder cannot be made.
        """
        return new_folder(results / self.parent, label, (self.entries,), now=now)

    def write_plan(self, folder: Path, plan: Frozen) -> Path:
        """The plan, whole and once: FileExistsError where there is one already."""
        path = folder / self.mark
        write_once(path, plan.model_dump_json(indent=1) + "\n")
        return path

    def folder_of(self, reference: str | Path, results: Path | None = None) -> Path:
        """The folder that ``reference`` means: itself, that of its plan, or the start of an id under ``results``.

        BadRequestError for a reference that names none or several, or something else, and for a folder without a plan.
        """
        folder = folder_meant(reference, results_dir(results) / self.parent, self.what, self.mark)
        if (folder / self.mark).is_file():
            return folder
        other = next((what for mark, what in _MARKS.items() if (folder / mark).is_file()), None)
        if other:
            raise BadRequestError(f"{folder}: {other}, not a {self.what}", remedy=f"mbr-perf results show {folder}")
        raise BadRequestError(
            f"{folder}: no {self.mark}: not the folder of a {self.what}, or the {self.what} was killed before it had "
            f"decided on its {self.entries}",
            remedy=f"nothing of it had started; start the {self.what} again",
        )


SWEEP_FOLDERS = BatchFolders("sweep", "sweeps", "sweep.json", "cells")
NIGHT_FOLDERS = BatchFolders("night", "nights", "night.json", "cases")
_MARKS = {SWEEP_FOLDERS.mark: "a sweep", NIGHT_FOLDERS.mark: "a night", RECORD: "a run", "spec.json": "a run"}


def append_event(folder: Path, event: Frozen) -> None:
    """One more line of ``events.jsonl``; a line that a kill left half-written is closed first, so that it hurts none."""
    with (folder / EVENTS).open("ab+") as stream:
        if stream.tell():
            stream.seek(-1, 2)
            if stream.read(1) != b"\n":
                stream.write(b"\n")
        stream.write(event.model_dump_json().encode() + b"\n")


def read_events(folder: Path, schema: type[Event]) -> tuple[Event, ...]:
    """The events in order; none where there is no file. Skips a line that is no event: a kill cuts the last one short."""
    events = []
    path = folder / EVENTS
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            events.append(schema.model_validate_json(line))
        except ValidationError:
            continue
    return tuple(events)


Purpose = Literal["repeat", "retry", "confirm", "aa"]
"""What a run of an entry is for."""


class EntryWords(Frozen):
    """What a plan says of every entry, whether it may run or not. ``sources`` and ``notes`` are those of its runs."""

    name: str
    spec: ExperimentSpec | None = None
    sources: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    prediction: PredictionRecord | None = None
    no_prediction: str = ""


class PlannedEntry(EntryWords):
    """An entry that may run: no rule forbids it, and its experiment is known."""

    spec: ExperimentSpec

    @property
    def force(self) -> tuple[str, ...]:
        """The rules that were overridden for it."""
        return tuple(finding.id for finding in self.findings if finding.overridden)


class BatchLaunch(Frozen):
    """How the runs are launched, in the words of `mbr-perf run`; ``pass_env`` holds names, never values.

    With several nodes the others follow the first through the shared folder; address and port are where they meet.
    """

    launcher: str = "torchrun"
    replay_from: str | None = None
    timeout_s: float | None = None
    hang_timeout_s: float = 600.0
    sample_interval_ms: int = 50
    pass_env: tuple[str, ...] = ()
    nnodes: int = 1
    master_addr: str | None = None
    master_port: int | None = None


class BatchGate(Frozen):
    """How the runs are compared with golden values, in the words of `mbr-perf run`."""

    golden_values_path: str | None = None
    timing_threshold: float | None = None
    memory_threshold: float | None = None
    accept_differences: tuple[str, ...] = ()
    fail_on_improvement: bool = False
    require_golden: bool = False
