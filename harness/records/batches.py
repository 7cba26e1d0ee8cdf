"""Folders of sweeps and nights on disk: made once, the plan written before the first run, events added as they happen."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from harness.errors import BadRequestError
from harness.records.atomic import write_once
from harness.records.folders import folder_meant, new_folder
from harness.records.store import RECORD, results_dir
from harness.spec.frozen import Frozen

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
