"""The folder of a sweep, a night or a bisect: its plan, its events and its entries."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.frozen import Frozen
from harness.experiment.rules.rule import Finding
from harness.experiment.software import Software
from harness.records.folders import new_folder, results_dir
from harness.records.gating import LaunchSettings
from harness.records.prediction import PredictionRecord
from harness.records.reading import Model
from harness.records.references import MARKS, Kind, folder_of
from harness.records.store import write_once
from harness.records.strict_json import read_lines

EVENTS = "events.jsonl"


@dataclass(frozen=True)
class BatchFolders:
    """One kind of batch. ``entries``: the noun for the items of its plan, and the folder that holds their runs."""

    what: Kind
    entries: str

    @property
    def parent(self) -> str:
        return f"{self.what}s"

    @property
    def mark(self) -> str:
        return MARKS[self.what]

    def new_dir(self, results: Path, label: str) -> Path:
        """Make the folder of a batch, with the folder of its runs, as :func:`new_folder`."""
        return new_folder(results / self.parent, label, (self.entries,))

    def write_plan(self, folder: Path, plan: Frozen) -> None:
        """Write the plan atomically. FileExistsError if the folder already has a plan."""
        write_once(folder / self.mark, plan)

    def home(self, folder: Path, results: Path | None) -> Path:
        """Return the absolute results folder of a batch; for a copied batch, ``results`` or the default folder."""
        named = folder.absolute()
        return named.parents[1] if named.parent.name == self.parent else results_dir(results).absolute()

    def folder_of(self, reference: str | Path, results: Path | None = None) -> Path:
        """Return the folder of a batch, as :func:`references.folder_of`. BadRequestError also without a plan in it."""
        folder = folder_of(reference, self.what, results)
        if (folder / self.mark).is_file():
            return folder
        raise BadRequestError(
            f"{folder}: no {self.mark}: not the folder of a {self.what}, or the {self.what} was killed before its plan",
            remedy=f"name a folder in {self.parent}/, or start the {self.what} again",
        )


SWEEP_FOLDERS, NIGHT_FOLDERS = BatchFolders("sweep", "cells"), BatchFolders("night", "cases")
BISECT_FOLDERS = BatchFolders("bisect", "runs")


def append_event(folder: Path, event: Frozen) -> None:
    """Append a line to ``events.jsonl``. First end a line that a kill left half-written."""
    with (folder / EVENTS).open("ab+") as stream:
        if stream.tell():
            stream.seek(-1, 2)
            if stream.read(1) != b"\n":
                stream.write(b"\n")
        stream.write(event.model_dump_json().encode() + b"\n")


def read_events(folder: Path, schema: type[Model]) -> tuple[Model, ...]:
    """Read the events in order. Skip invalid lines."""
    return read_lines(folder / EVENTS, schema)[0]


Purpose = Literal["repeat", "retry", "confirm", "pair"]
"""Why a run of an entry was started."""


class EntryWords(Frozen):
    """The fields that every entry of a plan has. ``sources`` and ``notes`` go into its runs."""

    name: str
    spec: ExperimentSpec | None = None
    sources: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    prediction: PredictionRecord | None = None
    no_prediction: str = ""


class PlannedEntry(EntryWords):
    """An entry that can run: no rule forbids it, and its experiment is known."""

    spec: ExperimentSpec

    @property
    def force(self) -> tuple[str, ...]:
        return tuple(finding.id for finding in self.findings if finding.overridden)


class Build(Frozen):
    """The Python of ranks in place of mbr-perf's own. ``path``: folders before the shell's PYTHONPATH."""

    python: str
    path: str = ""
    software: Software = Software()


class BatchLaunch(LaunchSettings):
    """How to launch the runs of a batch. Of several nodes, ranks meet at the address and port."""

    nnodes: int = 1
    master_addr: str | None = None
    master_port: int | None = None
