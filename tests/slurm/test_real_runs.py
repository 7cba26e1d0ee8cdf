"""`mbr-perf run --launcher slurm` on a real Slurm, over two nodes: what we say, what is on disk, what Slurm says."""

import json
import os
import signal
import time

import pytest

from harness.records.store import read_run

pytestmark = [pytest.mark.train, pytest.mark.slow]


def test_a_job_trains_commits_and_is_judged(slurm, results):
    done = slurm.mbr_perf(*results.run("-ms", "3", "--json"))
    assert done.returncode == 0, done.stderr
    [run_dir], job_id = results.runs, results.job_id()
    record, answer = read_run(run_dir), json.loads(done.stdout)
    assert (answer["outcome"], answer["run_id"]) == ("pass", record.run_id)
    assert [[step.step for step in rank.steps] for rank in record.ranks] == [[0, 1, 2], [0, 1, 2]]
    assert f"Slurm job {job_id} on n[1-2]" in record.notes
    assert not [
        name for name in record.provenance.environment if name.startswith("SLURM_")
    ]  # no two runs would be alike
    state = slurm.ended(job_id)
    assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0")

    committed = (run_dir / "record.json").read_bytes()
    later = slurm.mbr_perf("jobs", "wait", results.jobs[0], "--json")
    assert (later.returncode, json.loads(later.stdout)["metrics"]) == (0, answer["metrics"])
    assert (run_dir / "record.json").read_bytes() == committed


@pytest.mark.long
def test_a_run_that_fails_ends_the_job_and_slurm_sees_it(slurm, results):
    done = slurm.mbr_perf(*results.run("-ms", "4", "--set", "optimizer.lr=1.0e+30", "--repeats", "2"))
    [run_dir] = results.runs  # the second one never began
    record = read_run(run_dir)
    assert (done.returncode, record.status) == (3, "failed")
    assert " nan at step 1" in record.failure
    assert {rank.failure.kind for rank in record.ranks} == {"non_finite_loss"}
    state = slurm.ended(results.job_id())
    assert (state["JobState"], state["Reason"]) == ("FAILED", "NonZeroExitCode")


def test_a_killed_rank_ends_all_nodes_soon_and_is_named(slurm, results):
    with slurm.begin(*results.run("-ms", "100000")) as running:
        run_dir = results.with_steps()
        pids = results.rank_pids(run_dir)
        assert sorted(pids) == [0, 1]
        os.kill(pids[1], signal.SIGKILL)
        killed = time.monotonic()
        out, _ = running.communicate(timeout=90)
    record = read_run(run_dir)
    assert (running.returncode, out.splitlines()[0].split()[0]) == (3, "FAILED:")
    assert record.failure.startswith("rank 1 (stage 1) failed")
    assert "SIGKILL" in record.failure
    assert record.ranks[1].failure.kind == "signal"
    assert all(len(rank.steps) >= 2 for rank in record.ranks)
    assert time.monotonic() - killed < 60
    assert results.rank_pids(run_dir) == {}
    assert slurm.ended(results.job_id())["JobState"] == "FAILED"


@pytest.mark.long
def test_a_cancelled_job_is_interrupted_with_what_it_measured(slurm, results):
    submitted = slurm.mbr_perf(*results.run("-ms", "100000", "--detach"))
    assert (submitted.returncode, "jobs wait" in submitted.stdout) == (0, True)
    run_dir = results.with_steps()
    assert slurm.mbr_perf("jobs", "cancel", results.jobs[0]).returncode == 0
    done = slurm.mbr_perf("jobs", "wait", results.jobs[0], "--json")
    record = read_run(run_dir)
    assert (record.status, record.failure) == ("interrupted", "interrupted by SIGTERM")
    assert done.returncode in (130, 143)
    assert json.loads(done.stdout)["exit_code"] == done.returncode
    assert all(len(rank.steps) >= 2 for rank in record.ranks)
    assert slurm.ended(results.job_id())["JobState"] == "CANCELLED"
    assert results.rank_pids(run_dir) == {}


def test_a_partition_that_is_not_there_is_a_wrong_request(slurm, results):
    done = slurm.mbr_perf(*results.run("--partition", "nowhere"))
    assert done.returncode == 2
    assert "invalid partition specified: nowhere" in done.stderr.lower()
    assert results.runs == []
    assert slurm.call("squeue", "--noheader") == ""
