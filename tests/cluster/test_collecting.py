"""Runs that their job never committed: what the record says, for every way in which Slurm ends a job."""

from pathlib import Path

import pytest

from harness.cluster.collecting import collect_ended, runs_of
from harness.cluster.state import JobState, from_scontrol
from harness.nightly.outcome import infrastructure_fault
from harness.records.job import JobAttempt, attempt_path
from harness.records.store import read_run
from tests.cluster.conftest import SUBMITTED, run_dir_of

SLURM_OUTPUT = Path(__file__).parents[1] / "data" / "slurm" / "said"
REPLAYS = Path(__file__).parents[1] / "data" / "replay"


@pytest.fixture
def make_job(make_spec, job_of):
    """A job of several runs."""
    spec = make_spec(gpu="cpu", num_gpus=2, parallelism={"pipeline_model_parallel_size": 2})
    return lambda repeats=1: job_of(spec, repeats, nnodes=2)


def slurm_state(name):
    return from_scontrol((SLURM_OUTPUT / f"{name}.scontrol").read_text())


def leave_ranks(job, name):
    """What the ranks of a recorded run left, in the first run's folder."""
    for path in (REPLAYS / name / "ranks").glob("rank_*"):
        text = path.read_text()
        (run_dir_of(job) / "ranks" / path.name).write_text(text)


def collected(job, state, why=""):
    collect_ended(job, SUBMITTED, state, why)
    return read_run(job.runs[0].run_dir)


@pytest.mark.parametrize(
    ("state", "status", "failure"),
    [
        (slurm_state("timeout"), "failed", "TIMEOUT (TimeLimit) on n1"),
        (slurm_state("nodefail"), "failed", "NODE_FAIL (NodeDown) on n2"),
        (slurm_state("cancelled"), "interrupted", "CANCELLED"),
        (slurm_state("failed"), "failed", "FAILED (NonZeroExitCode, exit code 7:0)"),
        (slurm_state("nolog"), "failed", "LAUNCH_FAILED (JobLaunchFailure) on n2"),
        (JobState(kind="finished", state="COMPLETED"), "failed", "COMPLETED, and the run left no record"),
        (JobState(kind="out_of_memory", state="OUT_OF_MEMORY", reason="OOM"), "failed", "OUT_OF_MEMORY (OOM)"),
        (JobState(kind="preempted", state="PREEMPTED"), "failed", "PREEMPTED"),
        (JobState(kind="purged", state="UNKNOWN"), "failed", "UNKNOWN, and the run left no record"),
        (JobState(kind="failed", state="FAILED", restarts=1), "failed", "REQUEUED 1 time, then FAILED"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_without_a_record_is_committed_with_what_slurm_says(make_job, state, status, failure):
    record = collected(make_job(), state)
    assert record.status == status and record.failure.startswith(f"Slurm: {failure}")
    assert [rank.failure.kind for rank in record.ranks] == ["lost", "lost"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [("nodefail", "slurm_node_lost"), ("nolog", "slurm_launch_failed"), ("timeout", None), ("failed", None)],
)
def test_only_faults_of_the_machines_are_infrastructure(make_job, name, fault):
    found = infrastructure_fault(collected(make_job(), slurm_state(name)))
    assert (found.id if found else None) == fault


@pytest.mark.parametrize(
    ("left", "state", "status", "failure"),
    [
        ("killed", "nodefail", "failed", "Slurm: NODE_FAIL (NodeDown) on n2"),
        ("non_finite_loss", "failed", "failed", "rank "),  # what a rank recorded beats the state of its job
        ("oom", "failed", "oom", "rank "),
    ],
)
def test_what_the_ranks_left_is_in_the_record(make_job, left, state, status, failure):
    job = make_job()
    leave_ranks(job, left)
    record = collected(job, slurm_state(state))
    assert record.status == status and record.failure.startswith(failure)
    assert any(len(rank.steps) > 0 for rank in record.ranks)
    assert failure != "rank " or "Slurm: FAILED (NonZeroExitCode, exit code 7:0)" in record.notes


@pytest.mark.parametrize(
    "word", ["slurmstepd: error: Detected 1 oom-kill event(s) in step 7.0", "task 0: Out Of Memory"]
)
def test_host_memory_that_ran_out_is_read_from_the_log_of_the_job(make_job, word):
    job = make_job()
    leave_log(job, f"srun: error: n1: {word}\n")
    record = collected(job, slurm_state("failed"))
    assert record.status == "failed" and record.failure.startswith("Slurm: OUT_OF_MEMORY ")


NOT_FOUND = "0: slurmstepd: error: execve(): /nope: No such file or directory"


def leave_log(job, text):
    (Path(job.job_dir) / "logs" / "slurm-7.out").write_text(text)


def test_a_job_that_ends_before_python_starts_tells_what_its_log_ends_with(make_job):
    job = make_job()
    leave_log(job, f"up\n\n{NOT_FOUND}\nHF_TOKEN=hf_abcdefghijkl\nsrun: Terminating StepId=7.0\n" + "x" * 999)
    record = collected(job, slurm_state("failed"))
    assert record.failure.startswith("Slurm: FAILED (NonZeroExitCode, exit code 7:0)")
    assert f"{NOT_FOUND} | HF_TOKEN=*** | {'x' * 200} (" in record.failure


def test_a_job_whose_node_started_is_not_explained_by_its_log(make_job):
    job = make_job()
    leave_log(job, f"{NOT_FOUND}\n")
    attempt = JobAttempt(job_id="7", restart_count=0, nodes="n1", hostname="n1", started_at="x", master_port=1)
    path = attempt_path(Path(job.job_dir), "7", 0)
    path.parent.mkdir()
    path.write_text(attempt.model_dump_json())
    assert collected(job, slurm_state("failed")).failure == "Slurm: FAILED (NonZeroExitCode, exit code 7:0)"


def test_a_job_that_this_program_gave_up_says_so(make_job):
    ended = JobState(kind="cancelled", state="CANCELLED")
    record = collected(make_job(), ended, "given up")
    assert (record.status, record.failure) == ("failed", "given up")


def test_a_committed_record_is_the_truth_whatever_slurm_says(make_job, make_record):
    job = make_job()
    kept = make_record(job.runs[0].spec, run_id=job.runs[0].run_id)
    path = run_dir_of(job) / "record.json"
    path.write_text(kept.model_dump_json())
    assert collected(job, slurm_state("nodefail")) == kept


def test_runs_after_a_bad_one_leave_no_folder(make_job):
    job = make_job(repeats=3)
    collect_ended(job, SUBMITTED, slurm_state("timeout"))
    assert [Path(run.run_dir).exists() for run in job.runs] == [True, False, False]


def of_job(make_record, job, job_id, **changes):
    record = make_record(job.runs[0].spec, run_id=job.runs[0].run_id, **changes)
    return record.model_copy(update={"provenance": record.provenance.model_copy(update={"job_id": job_id})})


def test_a_run_of_another_job_in_the_same_folder_is_not_this_ones(make_job, make_record):
    job = make_job(repeats=2)
    Path(job.job_dir, "submitted.json").write_text(SUBMITTED.model_dump_json())
    (run_dir_of(job) / "record.json").write_text(of_job(make_record, job, "8").model_dump_json())
    found = runs_of(job)
    assert (found.committed, found.due, found.dropped, found.filled_by) == ((), None, (), "8")
