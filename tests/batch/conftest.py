"""A batch that replays recorded runs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from harness.batch.batch import Batch, DueRun, PlannedRun
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.software import Software
from harness.launch.environment import this_host
from harness.records.batches import BatchLaunch, PlannedEntry
from harness.records.store import RECORD, read_record

REPLAYS = Path(__file__).parents[1] / "data" / "replay"


@dataclass
class Recorded(Batch):
    """Entries that replay the recorded run of their name, ``repeats`` times each."""

    entries: tuple[PlannedEntry, ...]
    repeats: int = 2
    lessons: dict[str, tuple] = field(default_factory=dict)
    heard: list[tuple] = field(default_factory=list)
    command: ClassVar[str] = "sweep"

    def due(self):
        """Interleaved; what lies there needs not be done again, nor what a bad run closed."""
        bad = {entry.name for entry in self.entries for record in self.records(entry) if record.status != "ok"}
        runs = [DueRun(entry, number) for number in range(self.repeats) for entry in self.entries]
        return [run for run in runs if run.entry.name not in bad and not (self.planned(run).run_dir / RECORD).exists()]

    def records(self, entry):
        return [read_record(path) for path in self.folder.glob(f"{entry.name}/*/{RECORD}")]

    def planned(self, due):
        run_dir = self.folder / due.entry.name / str(due.number)
        return PlannedRun(
            run_dir, f"{due.entry.name}.{due.number}", due.entry.name, BatchLaunch(launcher="replay"), Software()
        )

    def recorded(self, due):
        return REPLAYS / due.entry.name

    def starts(self, due):
        self.heard.append(("starts", due.entry.name, due.number))

    def ended(self, due, ran):
        return self.lessons.get(due.entry.name, ())

    def interrupted(self, reason, due=None):
        self.heard.append(("interrupted", due and due.entry.name, reason))


class Lines:
    """The lines that are shown."""

    def __init__(self):
        self.lines = []

    def start(self, title, num_steps):
        return lambda *_: None

    def finish(self, line):
        self.lines.append(line)

    note = finish


@pytest.fixture(name="batch")
def _batch(tmp_path):
    def make(*names, **more):
        specs = {name: ExperimentSpec.model_validate_json((REPLAYS / name / "spec.json").read_text()) for name in names}
        entries = tuple(PlannedEntry(name=name, spec=spec) for name, spec in specs.items())
        return Recorded(tmp_path, this_host(), entries, **more)

    return make
