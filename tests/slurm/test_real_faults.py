"""Faults of clusters on a real Slurm: each ends in our state, the record and the exit code that it should."""

import json
import signal
import time

import pytest

from harness.cluster.commands import Slurm
from harness.nightly.outcome import infrastructure_fault
from harness.records.job import read_submitted
from harness.records.store import read_run

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.long]
FOREVER = ("-ms", "1000000")


def state_of(cluster, results):
    """As `mbr-perf jobs status` would tell it."""
    return Slurm(cluster.shell).state(read_submitted(results.jobs[0]))


def test_a_run_out_of_memory_is_oom_though_slurm_only_sees_a_failure(slurm, results):
    done = slurm.mbr_perf(*results.run("-ms", "4", "--eval_time_start_step", "2", "--memory_limit", "0.0012", "--json"))
    [run_dir] = results.runs
    record = read_run(run_dir)
    assert (done.returncode, json.loads(done.stdout)["outcome"], record.status) == (4, "oom", "oom")
    assert " memory" in record.failure
    state = slurm.ended(results.job_id())
    assert (state["JobState"], state["ExitCode"]) == ("FAILED", "4:0")


def test_the_time_limit_leaves_what_was_measured_and_says_so(slurm, results):
    done = slurm.mbr_perf(*results.run(*FOREVER, "--time_limit", "2"))  # a busy machine begins late
    [run_dir] = results.runs
    record = read_run(run_dir)
    assert (done.returncode, record.status) == (3, "failed")
    assert record.failure.startswith("Slurm: TIMEOUT: ") and " 2 min " in record.failure and "SIGTERM" in record.failure
    assert all(len(rank.steps) > 2 for rank in record.ranks)
    assert (results.jobs[0] / "time_limit").is_file()
    assert infrastructure_fault(record) is None  # a slow build can be the cause
    assert slurm.ended(results.job_id())["JobState"] in ("FAILED", "TIMEOUT")


def test_a_node_that_dies_is_a_fault_of_the_machines(own_slurm, results):
    with own_slurm.begin(*results.run(*FOREVER)) as running:
        run_dir = results.with_steps()
        own_slurm.kill("slurmd.n2")
        out, _ = running.communicate(timeout=120)
    record = read_run(run_dir)
    assert (running.returncode, record.status) == (3, "failed")
    assert "NODE_FAIL" in record.failure
    assert infrastructure_fault(record).id == "slurm_node_lost"
    assert out.splitlines()[0].startswith("FAILED: ")
    assert own_slurm.ended(results.job_id())["JobState"] == "NODE_FAIL"
    assert state_of(own_slurm, results).kind == "node_fail"


def test_a_job_that_slurm_puts_back_runs_nothing_again(own_slurm, results, eventually):
    submitted = own_slurm.mbr_perf(*results.run(*FOREVER, "--detach"))
    assert submitted.returncode == 0, submitted.stderr
    run_dir, number = results.with_steps(), results.job_id()
    attempts = results.jobs[0] / "attempts"
    own_slurm.call("scontrol", "update", f"JobId={number}", "Requeue=1")
    own_slurm.call("scontrol", "requeue", number)
    eventually((run_dir / "record.json").is_file, "the record of the first attempt")
    committed = (run_dir / "record.json").read_bytes()
    eventually(lambda: own_slurm.job(number)["JobState"] == "PENDING", "the job in the queue again")
    own_slurm.call("scontrol", "update", f"JobId={number}", "StartTime=now")
    eventually((attempts / f"{number}.1.json").is_file, "the second attempt", 180)
    assert own_slurm.ended(number)["JobState"] == "FAILED"
    first, second = (json.loads((attempts / f"{number}.{count}.json").read_text()) for count in (0, 1))
    assert first["refused"] == []
    assert f" job {number} (1 time)" in second["refused"][0]
    assert (run_dir / "record.json").read_bytes() == committed
    done = own_slurm.mbr_perf("jobs", "wait", results.jobs[0])
    assert done.returncode in (3, 130, 143)
    assert results.rank_pids(run_dir) == {}


def test_a_controller_that_is_killed_does_not_end_the_wait(own_slurm, results, eventually):
    with own_slurm.begin(*results.run("-ms", "400", "--json")) as running:
        run_dir = results.with_steps()
        own_slurm.kill("slurmctld")
        eventually((run_dir / "record.json").is_file, "the record", 180)
        out, _ = running.communicate(timeout=60)
    assert (running.returncode, json.loads(out)["outcome"]) == (0, "pass")
    own_slurm.start_controller()
    again = own_slurm.mbr_perf("jobs", "wait", results.jobs[0], "--json")
    assert (again.returncode, json.loads(again.stdout)["metrics"]) == (0, json.loads(out)["metrics"])


def test_whoever_stops_waiting_collects_it_later_from_another_process(slurm, results):
    with slurm.begin(*results.run("-ms", "150")) as running:
        run_dir = results.with_steps()
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=30)
    assert running.returncode == 130
    assert f"jobs wait {results.jobs[0]}" in errors
    assert not (run_dir / "record.json").exists()
    done = slurm.mbr_perf("jobs", "wait", results.job_id(), *results.option, "--json")
    assert (done.returncode, json.loads(done.stdout)["outcome"]) == (0, "pass")
    assert (read_run(run_dir).status, slurm.ended(results.job_id())["JobState"]) == ("ok", "COMPLETED")


def test_a_node_that_cannot_start_python_ends_the_job_and_the_other_node(slurm, results, program):
    spy = program(f'[ "$SLURM_NODEID" = 0 ] || exit 7\nexec {slurm.command()[0]} "$@"')
    began = time.monotonic()
    done = slurm.mbr_perf(*results.run(*FOREVER, "--slurm_python", spy))
    [run_dir] = results.runs
    record = read_run(run_dir)
    assert (done.returncode, record.status) == (3, "failed")
    assert record.failure.startswith("Slurm")
    assert slurm.ended(results.job_id())["JobState"] == "FAILED"
    assert time.monotonic() - began < 120
    assert results.rank_pids(run_dir) == {}
