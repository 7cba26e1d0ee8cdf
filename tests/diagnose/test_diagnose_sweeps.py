"""`mbr-perf diagnose SWEEP`: the outcome of an A/B, and the runs that failed."""

import json

import pytest

from harness.records.batches import SWEEP_FOLDERS
from harness.records.rank import Failure
from harness.records.store import write_record
from harness.records.sweep import run_dir_of
from tests.diagnose.conftest import FRAGMENTED, FULL


@pytest.fixture(name="sweep")
def _sweep(tmp_path, make_cell, make_sweep, make_record, make_rank, make_spec):
    """A sweep on disk: per value of the allocator's variable, seconds of each run or the text of its failure."""

    def write(cells):
        planned = []
        for value, ends in cells.items():
            spec = make_spec(env={"PYTORCH_CUDA_ALLOC_CONF": value})
            runs = []
            for end in ends:
                oom = make_rank(spec, 0, failure=Failure(kind="oom", message=str(end)))
                bad = {"status": "oom", "ranks": (oom,)} if isinstance(end, str) else {"seconds": end}
                runs.append(make_record(spec, run_id=f"s.{len(planned):03d}.{len(runs)}", **bad))
            planned.append(make_cell(value or "control", runs, spec=spec))
        data = make_sweep(planned, sweep_dir=tmp_path / "sweep")
        for cell in data.cells:
            for repeat, run in enumerate(cell.runs):
                run_dir = run_dir_of(data.sweep_dir, cell.planned.index, repeat)
                run_dir.mkdir(parents=True)
                write_record(run_dir, run)
        SWEEP_FOLDERS.write_plan(data.sweep_dir, data.plan)
        return data.sweep_dir

    return write


def test_an_a_b_whose_sides_ended_in_the_same_way_shows_its_conclusion(mbr_perf, sweep):
    folder = sweep({"": [2.0], "expandable_segments:True": [2.0]})
    answer = mbr_perf("diagnose", folder, "--no_plan")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0].endswith(": 2 ended well")
    assert "A and B ended in the same way." in lines
    assert lines[-1].endswith("without a failure the runs prove nothing.")
    assert "TFLOP/s/GPU," not in answer.out


def test_an_a_b_that_confirms_fragmentation_is_diagnosed_with_its_conclusion(mbr_perf, sweep):
    folder = sweep({"": [FRAGMENTED], "expandable_segments:True": [2.0]})
    document = json.loads(mbr_perf("diagnose", folder, "--no_plan", "--json").out)
    assert (document["verdict"]["class"], document["verdict"]["confirmed"]) == ("fragmentation", True)
    assert "A and B ended differently." in document["evidence"]


def test_an_a_b_is_inconclusive_if_one_side_did_not_run(mbr_perf, sweep):
    answer = mbr_perf("diagnose", sweep({"": [2.0], "expandable_segments:True": []}))
    assert (answer.code, answer.out.splitlines()[1:]) == (6, ["A/B: no conclusion, because A or B has not run."])


def test_failed_runs_of_a_sweep_are_listed_with_the_command_for_each(mbr_perf, sweep):
    folder = sweep({"": [2.0], "a": [FULL], "b": [FRAGMENTED]})
    answer = mbr_perf("diagnose", folder)
    run = run_dir_of(folder, 1, 0)
    assert answer.code == 0
    assert answer.out.splitlines()[0].endswith(": 1 ended well, 2 out of memory")
    assert answer.out.splitlines()[1:3] == [
        "a: out of memory on rank 0: capacity (high)",
        f"  mbr-perf diagnose {run}",
    ]
    assert json.loads(mbr_perf("diagnose", folder, "--json").out)["runs"][0]["run_dir"] == str(run)
    assert json.loads(mbr_perf("diagnose", run, "--no_plan", "--json").out)["verdict"]["class"] == "capacity"


def test_the_one_failed_run_of_a_sweep_is_diagnosed_itself(mbr_perf, sweep):
    folder = sweep({"": [2.0], "a": [2.0], "b": [FULL]})
    document = json.loads(mbr_perf("diagnose", folder, "--no_plan", "--json").out)
    assert (document["job"]["name"], document["verdict"]["class"]) == ("s.002.0", "capacity")
