"""The engine with recorded runs: when an entry is closed, and runs that cannot start."""

import os
import shutil
import signal
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness.batch.batch import BatchDisplay, _refused_by, ask_megatron, drafted, run_of
from harness.batch.engine import LocalRuns, play
from harness.errors import BadRequestError
from harness.experiment.rules.rule import Finding
from harness.launch.environment import this_host
from harness.measure.launched import Ran
from harness.measure.understanding import RunRequest
from harness.resolve.recipe import Request
from tests.batch.conftest import REPLAYS, Lines, Recorded


def played(batch):
    """The lines that were shown, after all rounds."""
    shown = Lines()
    assert play(batch, LocalRuns(batch, lambda _: nullcontext(shown)).run) is None
    return shown.lines


def started(batch):
    return [(name, number) for what, name, *number in batch.heard if what == "starts" for number in number]


def test_repeats_take_turns_and_a_bad_run_ends_its_entry_alone(batch):
    recorded = batch("killed", "ok")
    lines = played(recorded)
    assert started(recorded) == [("killed", 0), ("ok", 0), ("ok", 1)]
    assert [line.partition(":")[0] for line in lines] == ["failed", "ok", "killed", "ok"]


def test_an_unbroken_batch_and_a_resumed_one_are_the_same(batch, tmp_path):
    recorded = batch("ok")
    played(recorded)
    shutil.rmtree(tmp_path / "ok" / "1")
    recorded.heard.clear()
    played(recorded)
    assert started(recorded) == [("ok", 1)]
    assert recorded.due() == []


def test_what_a_run_teaches_closes_another_entry_in_the_same_round(batch):
    recorded = batch("ok", "truncated", repeats=1, lessons={"ok": (("truncated", "lesson"),)})
    lines = played(recorded)
    assert started(recorded)[0] == ("ok", 0)
    assert lines[1].startswith("  truncated: ") and lines[1].endswith(" lesson")
    assert lines[2].startswith("truncated: not started")


def test_a_signal_that_comes_while_a_run_ends_starts_no_other(batch, make_record):
    recorded = batch("ok")

    def run_here(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        return Ran(make_record(), recorded.folder, None)

    recorded.run_here = run_here
    assert play(recorded, LocalRuns(recorded, lambda _: nullcontext(Lines())).run) == signal.SIGTERM
    assert started(recorded) == [("ok", 0)]


def test_a_signal_between_two_rounds_ends_the_batch(batch):
    recorded = batch("ok")
    runs = recorded.due()

    def due():
        os.kill(os.getpid(), signal.SIGTERM)
        return runs

    recorded.due = due
    assert play(recorded, LocalRuns(recorded, lambda _: nullcontext(Lines())).run) == signal.SIGTERM
    assert [heard[:2] for heard in recorded.heard] == [("interrupted", None)]


@pytest.mark.parametrize(
    ("failure", "number", "reason", "ends"), [("lost", 15, "lost", 15), (None, None, "interrupted", 2)]
)
def test_an_interrupted_run_ends_the_batch(batch, make_record, failure, number, reason, ends):
    recorded, shown = batch("ok"), Lines()
    record = make_record(status="interrupted", failure=failure)
    recorded.run_here = lambda *_: Ran(record, recorded.folder, number)
    assert play(recorded, LocalRuns(recorded, lambda _: nullcontext(shown)).run) == ends
    assert recorded.heard == [("starts", "ok", 0), ("interrupted", "ok", reason)]


def test_a_signal_after_a_good_run_ends_the_batch_too(batch, make_record):
    recorded = batch("ok")
    recorded.run_here = lambda *_: Ran(make_record(), recorded.folder, 15)
    assert play(recorded, LocalRuns(recorded, lambda _: nullcontext(Lines())).run) == 15
    assert recorded.heard == [("starts", "ok", 0)]


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


def test_only_a_run_of_several_is_counted():
    assert [run_of("mlp", 0, 1), run_of("mlp", 1, 3)] == ["mlp", "mlp, run 2 of 3"]


def test_what_a_batch_waits_for_goes_to_stderr_and_the_batch_files_of_a_dry_run_to_stdout(capsys):
    BatchDisplay().narrate("waiting")
    assert tuple(capsys.readouterr()) == ("", "waiting\n")
    BatchDisplay().batch_files([SimpleNamespace(render=lambda: "#!/bin/bash\n", submit_command=("sbatch", "a b"))])
    assert capsys.readouterr().out.split("\n")[1:] == ["#!/bin/bash", "", "sbatch 'a b'", ""]


def draft(gpu):
    asked = Request(model_recipe_name=str(REPLAYS / "replayed.yaml"), gpu=gpu)
    return drafted("x", RunRequest(asked=asked), this_host(), str)


@pytest.mark.parametrize(("severity", "may_run"), [("error", False), ("warning", True)])
def test_a_draft_that_megatron_core_refuses_may_not_run_and_one_that_it_notes_may(severity, may_run):
    found = Finding(id="MCORE", severity=severity, message="no", fix="")
    assert (draft("cpu").may_run, _refused_by(None, draft("cpu")).may_run) == (True, True)
    assert _refused_by(found, draft("cpu")).may_run is may_run


def test_megatron_core_is_asked_about_what_may_run_on_gpus():
    drafts = [draft("h100"), draft("cpu"), replace(draft("h100"), problem="no"), draft("unknown")]
    assert [each.asks_megatron for each in drafts] == [True, False, False, False]
    found, notes = ask_megatron([draft("cpu")], replace(this_host(), python="/no/python"))
    assert ([each.may_run for each in found], notes) == ([True], ())
