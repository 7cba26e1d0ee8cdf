"""`mbr-perf compare` without a golden: a requested comparison never passes."""

import pytest

from harness.records.store import write_record

RUN_ID = "20260102T030405Z-llama3_70b-0a1b2c3d"


@pytest.fixture(name="compare")
def _compare(mbr_perf, tmp_path, make_record):
    def call(*arguments, **changes):
        run_dir = tmp_path / "results" / "runs" / RUN_ID
        run_dir.mkdir(parents=True)
        write_record(run_dir, make_record(run_id=RUN_ID, **changes))
        (tmp_path / "empty").mkdir()
        return mbr_perf("compare", RUN_ID, *arguments, "--results_dir", tmp_path / "results")

    return call


def test_a_named_folder_without_the_golden_is_inconclusive(compare, tmp_path):
    answer = compare(tmp_path / "empty")
    assert answer.code == 6
    assert "Not compared: no golden for these settings" in answer.out


@pytest.mark.parametrize("status", ["oom", "failed", "interrupted"])
def test_a_run_that_ended_badly_does_not_pass_without_a_golden(compare, tmp_path, status, make_spec):
    answer = compare(status=status, failure="rank 3 gave up", spec=make_spec(num_gpus=16, batch={
        "micro_batch_size": 1, "global_batch_size": 16, "seq_length": 4096}))  # fmt: skip
    assert answer.code == 6
    assert f"Not compared: the run ended as {status}; no golden for these settings" in answer.out


def test_a_window_that_holds_no_step_is_a_wrong_request(compare):
    answer = compare("--eval_time_start_step", "50")
    assert answer.code == 2
    assert "--eval_time_start_step: Value error, the window [50, 50) of 50 steps has no steps" in answer.err
