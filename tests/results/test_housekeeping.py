"""Problems of a results folder are named; only unneeded files are moved."""

import json
import subprocess

import pytest

from harness.launch.processes import claim, this_process
from harness.records.batches import SWEEP_FOLDERS
from harness.records.inventory import inventory
from harness.records.rank import OWNER
from harness.records.store import new_run_dir, write_record
from harness.records.strict_json import read_document
from harness.records.sweep import PlannedCell, SweepPlan, run_dir_of
from harness.results.housekeeping import examine_results, move_to_trash
from tests.commands import ROOT


@pytest.fixture(name="results")
def _results(tmp_path):
    return tmp_path / "results"


def killed(folder):
    """Make the owner of the folder a process that has ended: another process has its id."""
    owner = this_process().model_copy(update={"start_ticks": 1})
    (folder / OWNER).write_text(owner.model_dump_json())
    return folder


def problems(results):
    return [(ailment.kind, ailment.path.name, ailment.movable) for ailment in examine_results(results)]


def test_a_missing_folder_has_no_problems(results):
    assert examine_results(results) == ()


def test_committed_runs_have_no_problems(results, make_record):
    run_dir = killed(new_run_dir(results, "a"))
    write_record(run_dir, make_record())
    for folder in ("golden", "calibration", "benchmarks", "accuracy", "gpu", "history", "trash", "sweeps"):
        (results / folder).mkdir()
    (results / "README.md").touch()
    assert examine_results(results) == ()


def test_a_run_of_a_running_process_has_no_problems(results):
    claim(new_run_dir(results, "a"))
    assert examine_results(results) == ()


def test_a_run_whose_process_ended_goes_to_the_trash(results):
    run_dir = killed(new_run_dir(results, "a"))
    (run_dir / "ranks" / "rank_000.progress.jsonl").write_text("{}\n")
    assert problems(results) == [("incomplete", run_dir.name, True)]
    [moved] = move_to_trash(examine_results(results), results)
    assert not run_dir.exists()
    assert (moved.moved_to / "ranks" / "rank_000.progress.jsonl").read_text() == "{}\n"
    assert moved.moved_to.relative_to(results).parts[0] == "trash"
    assert examine_results(results) == ()


def test_a_run_whose_process_is_unknown_stays(results):
    run_dir = new_run_dir(results, "a")
    assert problems(results) == [("incomplete", run_dir.name, False)]
    move_to_trash(examine_results(results), results)
    assert run_dir.is_dir()


def test_a_damaged_record_goes_to_the_trash_with_its_run(results):
    run_dir = killed(new_run_dir(results, "a"))
    (run_dir / "record.json").write_text("{")
    assert problems(results) == [("damaged", run_dir.name, True)]
    [moved] = move_to_trash(examine_results(results), results)
    assert (moved.moved_to / "record.json").read_text() == "{"


@pytest.mark.parametrize("change", [{"schema_version": 99}, {"a_key_of_tomorrow": 1}])
def test_a_record_of_a_newer_version_is_named_and_stays(results, make_record, change):
    run_dir = killed(new_run_dir(results, "a"))
    write_record(run_dir, make_record())
    record = run_dir / "record.json"
    record.chmod(0o600)
    record.write_text(json.dumps(json.loads(record.read_text()) | change))
    assert problems(results) == [("newer", run_dir.name, False)]
    move_to_trash(examine_results(results), results)
    assert run_dir.is_dir()


def with_a_window_that_holds_no_step(run_dir):
    """Write the record of a version that accepted such a window."""
    record = run_dir / "record.json"
    record.chmod(0o600)
    document = json.loads(record.read_text())
    document["spec"]["measure"] |= {"max_steps": 12, "eval_time_start_step": 9, "eval_time_end_step": 3}
    record.write_text(json.dumps(document))


def test_a_complete_record_that_this_version_rejects_is_named_and_stays(results, make_record):
    run_dir = killed(new_run_dir(results, "a"))
    write_record(run_dir, make_record())
    with_a_window_that_holds_no_step(run_dir)
    assert problems(results) == [("rejected", run_dir.name, False)]
    [ailment] = move_to_trash(examine_results(results), results)
    assert "the window [9, 3) of 12 steps has no steps" in ailment.message
    assert run_dir.is_dir()


def test_a_run_of_a_sweep_that_this_version_rejects_is_named_and_stays(results, sweep, make_record):
    for cell, repeat in ((0, 0), (0, 1), (1, 0), (1, 1)):
        run_dir = ran(sweep, make_record, cell, repeat)
    with_a_window_that_holds_no_step(run_dir)
    assert problems(results) == [("rejected", run_dir.name, False)]
    move_to_trash(examine_results(results), results)
    assert run_dir.is_dir()


@pytest.mark.parametrize("change", [{"schema_version": 99}, {"a_key_of_tomorrow": 1}])
def test_a_run_of_a_newer_version_in_a_sweep_is_named_and_stays(results, sweep, make_record, change):
    for cell, repeat in ((0, 0), (0, 1), (1, 0), (1, 1)):
        run_dir = ran(sweep, make_record, cell, repeat)
    record = run_dir / "record.json"
    record.chmod(0o600)
    record.write_text(json.dumps(json.loads(record.read_text()) | change))
    assert problems(results) == [("newer", run_dir.name, False)]
    move_to_trash(examine_results(results), results)
    assert run_dir.is_dir()


def test_a_file_that_mbr_perf_did_not_write_is_named_and_stays(results):
    (results / "runs" / "my notes").mkdir(parents=True)
    (results / "runs" / "todo.txt").touch()
    (results / "runs" / "gpu-check-20260101T000000Z").mkdir()
    (results / "other").mkdir()
    (results / "runs" / "link").symlink_to(results / "other")
    expected = [("stray", name, False) for name in ("other", "link", "my notes", "todo.txt")]
    assert problems(results) == expected
    move_to_trash(examine_results(results), results)
    assert problems(results) == expected


def test_what_the_repository_keeps_below_results_is_no_stray(results):
    tracked = subprocess.run(
        ["git", "ls-files", "results"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for path in tracked:
        (results.parent / path).parent.mkdir(parents=True, exist_ok=True)
        (results.parent / path).touch()
    assert (results / "README.md").is_file()
    assert [problem for problem in problems(results) if problem[0] == "stray"] == []


def test_an_incomplete_file_of_a_committed_run_goes_to_the_trash(results, make_record):
    run_dir = killed(new_run_dir(results, "a"))
    write_record(run_dir, make_record())
    (run_dir / ".record.json.0123456789ab.tmp").write_text("{")
    (run_dir / "logs" / "mine.tmp").write_text("not ours")
    assert problems(results) == [("temporary", ".record.json.0123456789ab.tmp", True)]
    [moved] = move_to_trash(examine_results(results), results)
    assert moved.moved_to.parent.name == run_dir.name
    assert (run_dir / "record.json").is_file()


def test_a_nested_file_moves_with_its_folder(results):
    killed(run_dir := new_run_dir(results, "a"))
    (run_dir / "ranks" / "rank_000.json.tmp").write_text("{")
    moved = move_to_trash(examine_results(results), results)
    assert all(ailment.moved_to.exists() for ailment in moved)


@pytest.fixture(name="sweep")
def _sweep(results, make_spec):
    """A sweep of two cells, two repeats each, whose process ended before the first run."""
    cells = tuple(
        PlannedCell(index=i, name=text, changes={"recompute": text}, recompute=text, fate="run",
                    spec=make_spec(gpu="cpu", recompute=text))
        for i, text in enumerate(("none", "mlp"))
    )  # fmt: skip
    folder = SWEEP_FOLDERS.new_dir(results, "llama3_8b")
    plan = SweepPlan(sweep_id=folder.name, title="t", recipe="llama3_8b", gpu="cpu", control="none", axes=(), grid=False,
                     repeats=2, cells=cells, command=("mbr-perf",), started_at="2026-03-04T05:06:07Z", mbr_perf="0.1.0")  # fmt: skip
    SWEEP_FOLDERS.write_plan(folder, plan)
    return killed(folder)


def ran(sweep, make_record, cell, repeat, **changes):
    folder = run_dir_of(sweep, cell, repeat)
    folder.mkdir(parents=True)
    write_record(folder, make_record(read_document(sweep / "sweep.json", SweepPlan).cells[cell].spec, **changes))
    return folder


def test_a_sweep_with_cells_to_run_is_unfinished_and_stays(results, sweep, make_record):
    for repeat in (0, 1):
        ran(sweep, make_record, 0, repeat)
    [ailment] = examine_results(results)
    assert (ailment.kind, ailment.path, ailment.movable) == ("unfinished", sweep, False)
    assert ailment.message == "2 cells: 1 ok, 1 not_run"
    assert ailment.remedy == f"mbr-perf sweep --resume {sweep}"


def test_a_sweep_is_finished_when_only_bad_runs_were_not_repeated(results, sweep, make_record):
    for repeat in (0, 1):
        ran(sweep, make_record, 0, repeat)
    ran(sweep, make_record, 1, 0, status="oom")
    assert examine_results(results) == ()
    [entry] = inventory(results)
    assert (entry.kind, entry.state, entry.detail) == ("sweep", "finished", "2 cells: 1 ok, 1 oom")


def test_only_the_damaged_run_of_a_sweep_goes_to_the_trash(results, sweep, make_record):
    for cell, repeat in ((0, 0), (0, 1), (1, 0), (1, 1)):
        run_dir = ran(sweep, make_record, cell, repeat)
    (run_dir / "record.json").write_text("[]")
    assert [(row.kind, row.path, row.movable) for row in examine_results(results)] == [("damaged", run_dir, True)]
    move_to_trash(examine_results(results), results)
    assert [row.kind for row in examine_results(results)] == ["unfinished"]


def test_an_attempt_that_a_resumed_sweep_set_aside_goes_to_the_trash(results, sweep, make_record):
    for cell, repeat in ((0, 0), (0, 1), (1, 0), (1, 1)):
        ran(sweep, make_record, cell, repeat)
    attempt = run_dir_of(sweep, 0, 0).with_name("0.incomplete-1")
    attempt.mkdir()
    assert problems(results) == [("attempt", "0.incomplete-1", True)]
    move_to_trash(examine_results(results), results)
    assert not attempt.exists()
    assert examine_results(results) == ()


def test_a_running_sweep_has_no_problems(results, sweep):
    (sweep / ".x.json.0123456789ab.tmp").touch()
    claim(sweep)
    assert examine_results(results) == ()


def test_a_sweep_that_was_killed_before_its_plan_was_written_goes_to_the_trash(results):
    folder = killed(SWEEP_FOLDERS.new_dir(results, "llama3_8b"))
    assert problems(results) == [("incomplete", folder.name, True)]
