"""Sweep folders: made exclusively, read back whatever ended the sweep."""

import pytest

from harness.records.batches import SWEEP_FOLDERS, append_event
from harness.records.store import write_record
from harness.records.strict_json import read_document
from harness.records.sweep import PlannedCell, RefusedCell, SweepEvent, SweepPlan, num_missing, read_sweep, run_dir_of
from tests.commands import refused


@pytest.fixture(name="sweep")
def _sweep(tmp_path, make_spec):
    """A folder with two cells to run, one pruned and one inert, two repeats each, nothing run yet."""
    cells = tuple(
        (PlannedCell if fate == "run" else RefusedCell)(
            index=i, name=text, changes={"recompute": text}, recompute=text, fate=fate, reason=reason,
            spec=make_spec(gpu="cpu", recompute=text))
        for i, (text, fate, reason) in enumerate((
            ("none", "run", ""), ("mlp", "run", ""), ("core_attn", "pruned", "needs 90 GiB"),
            ("layernorm", "skipped_inert", "equals none"),
        ))
    )  # fmt: skip
    folder = SWEEP_FOLDERS.new_dir(tmp_path, "llama3_8b")
    plan = SweepPlan(sweep_id=folder.name, title="t", recipe="llama3_8b", gpu="cpu", control="none", axes=(), grid=False,
                     repeats=2, cells=cells, command=("mbr-perf",), started_at="2026-03-04T05:06:07Z", mbr_perf="0.1.0")  # fmt: skip
    SWEEP_FOLDERS.write_plan(folder, plan)
    return folder


def commit(sweep, cell, repeat, record):
    folder = run_dir_of(sweep, cell, repeat)
    folder.mkdir(parents=True)
    write_record(
        folder, record.model_copy(update={"spec": read_document(sweep / "sweep.json", SweepPlan).cells[cell].spec})
    )


def event(kind, cell, reason="why", by=None):
    return SweepEvent(time="2026-03-04T05:06:07Z", kind=kind, cell=cell, reason=reason, by=by)


def fates(sweep):
    return {cell.planned.name: (len(cell.runs), cell.fate, cell.reason) for cell in read_sweep(sweep).cells}


def test_a_sweep_in_which_nothing_ran_reads_as_planned(sweep):
    found = fates(sweep)
    assert [found.pop(name)[:2] for name in ("none", "mlp")] == [(0, "not_run")] * 2
    assert found == {"core_attn": (0, "pruned", "needs 90 GiB"), "layernorm": (0, "skipped_inert", "equals none")}


def test_committed_runs_are_read_in_order_of_repeat_and_anything_else_is_passed_over(sweep, make_record):
    for repeat in (1, 0):
        commit(sweep, 0, repeat, make_record(run_id=f"run-{repeat}"))
    (run_dir_of(sweep, 1, 0) / "ranks").mkdir(parents=True)
    read = read_sweep(sweep)
    assert [run.run_id for run in read.cells[0].runs] == ["run-0", "run-1"]
    assert (read.cells[0].fate, read.cells[0].reason) == ("run", "")
    assert read.cells[1].fate == "not_run"
    assert read.control is read.cells[0]


def test_what_an_oom_taught_is_pruned_and_what_a_signal_left_out_was_not_run(sweep):
    append_event(sweep, event("taught", "mlp", "as none", by="none"))
    append_event(sweep, event("interrupted", "none", "a signal came"))
    assert fates(sweep)["mlp"] == (0, "pruned", "as none")
    assert fates(sweep)["none"] == (0, "not_run", "a signal came")


def test_a_cell_with_fewer_runs_than_asked_for_says_why(sweep, make_record):
    commit(sweep, 0, 0, make_record())
    commit(sweep, 1, 0, make_record(status="oom"))
    append_event(sweep, event("interrupted", "none", "a signal came"))
    assert fates(sweep)["none"] == (1, "run", "1 of 2 runs: a signal came")
    num_runs, fate, reason = fates(sweep)["mlp"]
    assert (num_runs, fate) == (1, "run") and reason.startswith("1 of 2 runs: ") and " oom " in reason


def test_the_folder_of_a_run_is_recognised(sweep, make_record):
    commit(sweep, 0, 0, make_record())
    refused(lambda: read_sweep(run_dir_of(sweep, 0, 0)), str(run_dir_of(sweep, 0, 0)), "a run,")


def test_an_interrupted_run_is_announced_as_repeated(sweep, make_record):
    commit(sweep, 0, 0, make_record())
    commit(sweep, 0, 1, make_record(status="interrupted"))
    num_runs, fate, reason = fates(sweep)["none"]
    assert (num_runs, fate) == (2, "run") and reason.startswith("1 of 2 runs: ") and "--resume" in reason
    assert [num_missing(cell, 2) for cell in read_sweep(sweep).cells[:3]] == [1, 2, 0]


def test_an_event_that_a_kill_cut_short_hurts_neither_those_before_nor_those_after(sweep):
    append_event(sweep, event("interrupted", "none"))
    with (sweep / "events.jsonl").open("a") as stream:
        stream.write('{"time":"2026-03-04T0')
    append_event(sweep, event("interrupted", "mlp"))
    assert [e.cell for e in read_sweep(sweep).events] == ["none", "mlp"]


def test_a_sweep_is_found_by_folder_file_start_and_end_of_its_id(sweep, tmp_path):
    for reference in (sweep, sweep / "sweep.json"):
        assert read_sweep(reference).sweep_dir == sweep
    for reference in (sweep.name[:12], sweep.name[-8:]):
        assert read_sweep(reference, tmp_path).sweep_dir == sweep


def test_a_results_folder_is_no_sweep_and_the_advice_fits_it(tmp_path):
    [problem] = refused(lambda: read_sweep(tmp_path), str(tmp_path), "no sweep.json: ")
    assert "sweeps/" in problem.remedy
