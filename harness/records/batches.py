"""What lies in a folder of many runs: its plan, its events and its entries."""

import math
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
from harness.records.launch import HANG_TIMEOUT_S, SAMPLE_INTERVAL_MS
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

    def home(self, folder: Path, results: Path | None) -> Path:
        """The results folder that a batch lies in, absolute; ``results``, or the usual one, where it was copied elsewhere."""
        named = folder.absolute()
        return named.parents[1] if named.parent.name == self.parent else results_dir(results).absolute()

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


class LaunchSettings(Frozen, allow_inf_nan=True):
    """How a run is launched, in the words of `mbr-perf run`; ``pass_env`` holds names, never values.

    ``replay_from``: the recorded run folder of the replay launcher. ``timeout_s`` None: as long as it takes.
    ``hang_timeout_s`` is the floor of the watchdog's patience. ``sample_interval_ms`` 0: no GPU memory sampler, and no
    figure of the memory in use on the device.
    """

    launcher: str = "torchrun"
    replay_from: Path | None = None
    timeout_s: float | None = None
    hang_timeout_s: float = HANG_TIMEOUT_S
    sample_interval_ms: int = SAMPLE_INTERVAL_MS
    pass_env: tuple[str, ...] = ()

    @property
    def problems(self) -> list[BadRequestError]:
        """Limits of a run that are none."""
        limits = (
            ("--timeout", self.timeout_s, "seconds above 0, or leave it out"),
            ("--hang_timeout", self.hang_timeout_s, "seconds above 0"),
        )
        problems = [
            BadRequestError(
                f"{option} {value:g} must be above 0{'' if math.isfinite(value) else ' and finite'}", remedy=remedy
            )
            for option, value, remedy in limits
            if value is not None and not (value > 0 and math.isfinite(value))
        ]
        if self.sample_interval_ms < 0:
            told = f"--sample_interval_ms {self.sample_interval_ms} must not be below 0"
            problems.append(BadRequestError(told, remedy="20 to 200 is sensible; 0 switches the sampler off"))
        return problems


class BatchLaunch(LaunchSettings):
    """How the runs of a batch are launched.

    With several nodes the others follow the first through the shared folder; address and port are where they meet.
    """

    nnodes: int = 1
    master_addr: str | None = None
    master_port: int | None = None
