"""Problems of a results folder are named; nothing is changed."""

import json

import pytest

from harness.launch.processes import claim, this_process
from harness.records.batches import NIGHT_FOLDERS, SWEEP_FOLDERS
from harness.records.inventory import inventory
from harness.records.night import NightPlan, PlannedCase
from harness.records.night import run_dir_of as night_run_dir
from harness.records.rank import OWNER
from harness.records.store import new_run_dir, write_record
from harness.records.strict_json import read_document
from harness.records.sweep import SweepPlan, run_dir_of
from harness.results.housekeeping import examine_results


@pytest.fixture(name="results")
def _results(tmp_path):
    return tmp_path / "results"


def killed(folder):
    """Make the owner of the folder a process that has ended: another process has its id."""
    owner = this_process().model_copy(update={"start_ticks": 1})
    (folder / OWNER).write_text(owner.model_dump_json())
    return folder


def problems(results):
    return [(ailment.kind, ailment.path.name) for ailment in examine_results(results)]


def rewritten(run_dir, change):
    record = run_dir / "record.json"
    record.chmod(0o600)
    record.write_text(json.dumps(change(json.loads(record.read_text()))))


def without_steps_in_the_window(document):
    document["spec"]["measure"] |= {"max_steps": 12, "eval_time_start_step": 9, "eval_time_end_step": 3}
    return document


UNREADABLE = [
    (lambda _: [], "damaged"),
    (lambda document: document | {"schema_version": 99}, "rejected"),
    (lambda document: document | {"a_key_of_tomorrow": 1}, "rejected"),
    (without_steps_in_the_window, "rejected"),
]


def test_committed_runs_have_no_problems(results, make_record):
    run_dir = killed(new_run_dir(results, "a"))
    write_record(run_dir, make_record())
    for folder in ("golden", "calibration", "benchmarks", "accuracy", "gpu", "history", "sweeps"):
        (results / folder).mkdir()
    (results / "README.md").touch()
    assert examine_results(results) == ()


def test_a_run_without_a_record_is_incomplete_unless_its_process_runs(results):
    run_dir = new_run_dir(results, "a")
    assert [(found.kind, found.process) for found in examine_results(results)] == [("incomplete", "unknown")]
    killed(run_dir)
    assert [(found.kind, found.process) for found in examine_results(results)] == [("incomplete", "dead")]
    claim(run_dir)
    assert examine_results(results) == ()


@pytest.mark.parametrize(("change", "kind"), UNREADABLE)
def test_a_record_that_cannot_be_read_is_named_with_the_reason(results, make_record, change, kind):
    run_dir = killed(new_run_dir(results, "a"))
    write_record(run_dir, make_record())
    rewritten(run_dir, change)
    assert problems(results) == [(kind, run_dir.name)]


@pytest.mark.parametrize(("change", "kind"), UNREADABLE)
def test_of_a_sweep_only_the_run_that_cannot_be_read_is_named(results, sweep, make_record, change, kind):
    for cell, repeat in ((0, 0), (0, 1), (1, 0), (1, 1)):
        run_dir = ran(sweep, make_record, cell, repeat)
    rewritten(run_dir, change)
    [found] = examine_results(results)
    assert (found.kind, found.path) == (kind, run_dir)
    assert (f"mbr-perf sweep --resume {sweep}" in found.remedy) == (kind == "damaged")


def test_an_incomplete_file_of_a_killed_process_is_temporary(results, make_record):
    run_dir = killed(new_run_dir(results, "a"))
    write_record(run_dir, make_record())
    (run_dir / ".record.json.0123456789ab.tmp").write_text("{")
    (run_dir / "logs" / "mine.tmp").write_text("not ours")
    assert problems(results) == [("temporary", ".record.json.0123456789ab.tmp")]


@pytest.fixture(name="sweep")
def _sweep(results, make_spec, make_cell, make_sweep):
    """A sweep of two cells, two repeats each, whose process ended before the first run."""
    cells = [make_cell(text, [], spec=make_spec(gpu="cpu", recompute=text), fate="not_run") for text in ("none", "mlp")]
    folder = SWEEP_FOLDERS.new_dir(results, "llama3_8b")
    made = make_sweep(cells, sweep_id=folder.name, recipe="llama3_8b", gpu="cpu", repeats=2, capacity_bytes=None)
    SWEEP_FOLDERS.write_plan(folder, made.plan)
    return killed(folder)


def ran(sweep, make_record, cell, repeat, **changes):
    folder = run_dir_of(sweep, cell, repeat)
    folder.mkdir(parents=True)
    write_record(folder, make_record(read_document(sweep / "sweep.json", SweepPlan).cells[cell].spec, **changes))
    return folder


def test_a_sweep_with_cells_to_run_is_unfinished(results, sweep, make_record):
    for repeat in (0, 1):
        ran(sweep, make_record, 0, repeat)
    [ailment] = examine_results(results)
    assert (ailment.kind, ailment.path, ailment.remedy) == ("unfinished", sweep, f"mbr-perf sweep --resume {sweep}")


def test_a_sweep_is_finished_when_only_bad_runs_were_not_repeated(results, sweep, make_record):
    for repeat in (0, 1):
        ran(sweep, make_record, 0, repeat)
    ran(sweep, make_record, 1, 0, status="oom")
    assert examine_results(results) == ()
    [entry] = inventory(results)
    assert (entry.kind, entry.state) == ("sweep", "finished")


def test_an_attempt_that_a_resumed_sweep_set_aside_is_named(results, sweep, make_record):
    for cell, repeat in ((0, 0), (0, 1), (1, 0), (1, 1)):
        ran(sweep, make_record, cell, repeat)
    run_dir_of(sweep, 0, 0).with_name("0.incomplete-1").mkdir()
    assert problems(results) == [("attempt", "0.incomplete-1")]


def test_a_sweep_that_was_killed_before_its_plan_was_written_is_incomplete(results):
    folder = killed(SWEEP_FOLDERS.new_dir(results, "llama3_8b"))
    assert problems(results) == [("incomplete", folder.name)]


def test_a_night_is_named_with_the_command_that_resumes_it(tmp_path, make_spec):
    night = NIGHT_FOLDERS.new_dir(tmp_path, "smoke")
    case = PlannedCase(name="dense", spec=make_spec(gpu="cpu"), repeats=2)
    plan = NightPlan(night_id=night.name, suite="smoke", title="Smoke", cases=(case,), confirm=2, retries=1,
                     command=("mbr-perf",), started_at="2026-01-02T03:04:05Z", mbr_perf="0.1.0")  # fmt: skip
    NIGHT_FOLDERS.write_plan(night, plan)
    (ailment,) = examine_results(tmp_path)
    assert (ailment.kind, ailment.remedy) == ("unfinished", f"mbr-perf nightly --resume {night}")
    run_dir = night_run_dir(night, "dense", 0)
    run_dir.mkdir(parents=True)
    (run_dir / "record.json").write_text("{")
    assert ("damaged", run_dir.name) in problems(tmp_path)
