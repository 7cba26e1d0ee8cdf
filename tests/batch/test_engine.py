"""The engine with recorded runs: when an entry is closed, when time is up, and runs that cannot start."""

import shutil
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from harness.batch.engine import LocalRuns, TimeLimit, play
from harness.batch.plan import Batch, DueRun, PlannedRun
from harness.errors import BadRequestError
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
        self.heard.append(("interrupted", due.entry.name))

    def out_of_time(self, due, reason):
        self.heard.append(("out of time", [(run.entry.name, run.number) for run in due]))


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


def played(batch, **more):
    """The lines that were shown, after all rounds."""
    shown = Lines()
    assert play(batch, LocalRuns(batch, lambda _: nullcontext(shown), **more)) is None
    return shown.lines


def started(batch):
    return [(name, number) for what, name, *number in batch.heard if what == "starts" for number in number]


def test_repeats_take_turns_and_a_bad_run_ends_its_entry_alone(batch):
    recorded = batch("killed", "ok")
    lines = played(recorded)
    assert started(recorded) == [("killed", 0), ("ok", 0), ("ok", 1)]
    assert "killed: not started, because an earlier run of it failed" in lines


def test_an_unbroken_batch_and_a_resumed_one_are_the_same(batch, tmp_path):
    recorded = batch("ok")
    played(recorded)
    shutil.rmtree(tmp_path / "ok" / "1")
    recorded.heard.clear()
    played(recorded)
    assert started(recorded) == [("ok", 1)]
    assert recorded.due() == []


def test_what_a_run_teaches_closes_another_entry_in_the_same_round(batch):
    recorded = batch("ok", "truncated", repeats=1, lessons={"ok": (("truncated", "it needs more"),)})
    lines = played(recorded)
    assert started(recorded)[0] == ("ok", 0)
    assert lines[1:3] == [
        "  truncated: skipped, it needs more",
        "truncated: not started, because it would run out of memory",
    ]


def test_no_run_is_started_once_time_is_up_and_the_batch_hears_which(batch):
    recorded, limit = batch("ok"), TimeLimit(minutes=1.0)
    limit.took(120.0)
    (line,) = played(recorded, limit=limit)
    assert "--max_minutes 1" in line
    assert recorded.heard == [("out of time", [("ok", 0), ("ok", 1)])]


def test_a_run_that_would_end_in_time_is_started():
    limit = TimeLimit(minutes=1.0)
    assert limit.why_over() == ""
    limit.took(30.0)
    assert limit.why_over() == ""
    limit.took(100.0)
    assert "a run takes about 1.1" in limit.why_over()


def test_a_run_that_cannot_start_ends_the_batch_or_is_recorded_as_failed(batch):
    class Missing(Recorded):
        def recorded(self, due):
            return REPLAYS / "nowhere"

    class Outliving(Missing):
        outlives_failed_starts = True

    made = batch("ok", repeats=1)
    missing = Missing(made.folder, made.host, made.entries, repeats=1)
    with pytest.raises(BadRequestError, match="nowhere is not a run folder"):
        played(missing)
    outliving = Outliving(made.folder, made.host, made.entries, repeats=1)
    played(outliving)
    (record,) = outliving.records(made.entries[0])
    assert record.status == "failed"
    assert "nowhere is not a run folder" in record.failure
