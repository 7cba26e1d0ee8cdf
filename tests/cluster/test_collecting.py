"""Runs that their job never committed: what the record says, for every way in which Slurm ends a job."""

from pathlib import Path

import pytest

from harness.batch.launches import fresh_folder
from harness.cluster.collecting import collect_ended, runs_of
from harness.cluster.state import JobState, from_scontrol
from harness.nightly.outcome import infrastructure_fault
from harness.records.job import (
    JobAttempt,
    JobRecord,
    JobRun,
    SlurmOptions,
    SubmittedRecord,
    attempt_path,
    write_submitted,
)
from harness.records.store import read_run

SLURM_OUTPUT = Path(__file__).parents[1] / "data" / "slurm" / "said"
REPLAYS = Path(__file__).parents[1] / "data" / "replay"
SUBMITTED = SubmittedRecord(job_id="7", submitted_at="2026-01-02T03:04:05+00:00", sbatch=("sbatch",))


@pytest.fixture
def make_job(tmp_path, make_spec):
    """A job of several runs whose folders are there, as submission makes them."""

    def make(repeats=1):
        spec = make_spec(gpu="cpu", num_gpus=2, parallelism={"pipeline_model_parallel_size": 2})
        runs = []
        for number in range(repeats):
            folder = tmp_path / "runs" / f"run{number}"
            for inner in ("ranks", "logs"):
                (folder / inner).mkdir(parents=True)
            runs.append(JobRun(run_dir=str(folder), run_id=folder.name, spec=spec))
        job_dir = tmp_path / "jobs" / "job"
        (job_dir / "logs").mkdir(parents=True)
        return JobRecord(
            job_dir=str(job_dir), name="job", what="run", subject=str(job_dir), nnodes=2,
            runs=tuple(runs), slurm=SlurmOptions(time_limit_minutes=30), command=("mbr-perf", "run"),
            created_at="2026-01-02T03:04:05+00:00", mbr_perf="0.1.0",
        )  # fmt: skip

    return make


def slurm_state(name):
    return from_scontrol((SLURM_OUTPUT / f"{name}.scontrol").read_text())


def leave_ranks(job, name):
    """What the ranks of a recorded run left, in the first run's folder."""
    for path in (REPLAYS / name / "ranks").glob("rank_*"):
        text = path.read_text()
        (Path(job.runs[0].run_dir) / "ranks" / path.name).write_text(text)


def collected(job, state, why=""):
    collect_ended(job, SUBMITTED, state, why)
    return read_run(job.runs[0].run_dir)


@pytest.mark.parametrize(
    ("state", "status", "failure"),
    [
        (slurm_state("timeout"), "failed", "Slurm: TIMEOUT after 30 min on n1"),
        (slurm_state("nodefail"), "failed", "Slurm: NODE_FAIL (NodeDown) on n2"),
        (slurm_state("cancelled"), "interrupted", "Slurm: CANCELLED"),
        (slurm_state("failed"), "failed", "Slurm: FAILED (NonZeroExitCode, exit code 7:0)"),
        (slurm_state("nolog"), "failed", "Slurm: LAUNCH_FAILED (JobLaunchFailure) on n2"),
        (JobState(kind="finished", state="COMPLETED"), "failed", "Slurm: COMPLETED, but the run left no record"),
        (
            JobState(kind="out_of_memory", state="OUT_OF_MEMORY", reason="OutOfMemory"),
            "failed",
            "Slurm: OUT_OF_MEMORY (OutOfMemory)",
        ),
        (JobState(kind="cancelled", state="CANCELLED", detail="by 1000"), "interrupted", "Slurm: CANCELLED by 1000"),
        (JobState(kind="preempted", state="PREEMPTED"), "failed", "Slurm: PREEMPTED"),
        (
            JobState(kind="purged", state="UNKNOWN"),
            "failed",
            "Slurm: UNKNOWN: Slurm no longer knows the job, and the run left no record",
        ),
        (
            JobState(kind="failed", state="FAILED", reason="NonZeroExitCode", exit_code="3:0", restarts=1),
            "failed",
            "Slurm: REQUEUED 1 time, then FAILED (NonZeroExitCode, exit code 3:0)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_without_a_record_is_committed_with_what_slurm_says(make_job, state, status, failure):
    record = collected(make_job(), state)
    assert (record.status, record.failure) == (status, failure)
    assert [rank.failure.kind for rank in record.ranks] == ["lost", "lost"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [("nodefail", "node failed"), ("nolog", "job failed to start"), ("timeout", None), ("failed", None)],
)
def test_only_faults_of_the_machines_are_infrastructure(make_job, name, fault):
    found = infrastructure_fault(collected(make_job(), slurm_state(name)))
    assert (found.name if found else None) == fault


def test_what_the_ranks_left_is_in_the_record(make_job):
    job = make_job()
    leave_ranks(job, "killed")
    record = collected(job, slurm_state("nodefail"))
    assert record.failure == "Slurm: NODE_FAIL (NodeDown) on n2"
    assert [len(rank.steps) > 0 for rank in record.ranks] == [True, True]


def test_the_reason_that_a_rank_recorded_beats_the_state_of_its_job(make_job):
    job = make_job()
    leave_ranks(job, "non_finite_loss")
    record = collected(job, slurm_state("failed"))
    assert record.failure.startswith("rank ")
    assert "Slurm: FAILED (NonZeroExitCode, exit code 7:0)" in record.notes


def test_a_rank_out_of_memory_makes_the_run_so(make_job):
    job = make_job()
    leave_ranks(job, "oom")
    assert collected(job, slurm_state("failed")).status == "oom"


@pytest.mark.parametrize(
    "word", ["slurmstepd: error: Detected 1 oom-kill event(s) in step 7.0", "task 0: Out Of Memory"]
)
def test_host_memory_that_ran_out_is_read_from_the_log_of_the_job(make_job, word):
    job = make_job()
    (Path(job.job_dir) / "logs" / "slurm-7.out").write_text(f"srun: error: n1: {word}\n")
    record = collected(job, slurm_state("failed"))
    assert (record.status, record.failure.split(" (")[0]) == ("failed", "Slurm: OUT_OF_MEMORY of a node's host memory")


NOT_FOUND = "0: slurmstepd: error: execve(): /nope: No such file or directory"


def leave_log(job, text):
    (Path(job.job_dir) / "logs" / "slurm-7.out").write_text(text)


def test_a_job_that_ends_before_python_starts_tells_what_its_log_ends_with(make_job):
    job = make_job()
    leave_log(
        job, f"up\n\n\x1b[31m{NOT_FOUND}\x1b[0m\nHF_TOKEN=hf_abcdefghijkl\nsrun: Terminating StepId=7.0\n" + "x" * 999
    )
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
    record = collected(make_job(), ended, "Slurm: never started: PartitionConfig; cancelled by mbr-perf")
    assert (record.status, record.failure) == ("failed", "Slurm: never started: PartitionConfig; cancelled by mbr-perf")


def test_a_committed_record_is_the_truth_whatever_slurm_says(make_job, make_record):
    job = make_job()
    kept = make_record(job.runs[0].spec, run_id=job.runs[0].run_id)
    path = Path(job.runs[0].run_dir) / "record.json"
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
    write_submitted(Path(job.job_dir), SUBMITTED)
    (Path(job.runs[0].run_dir) / "record.json").write_text(of_job(make_record, job, "8").model_dump_json())
    found = runs_of(job)
    assert (found.committed, found.due, found.dropped, found.filled_by) == ((), None, (), "8")


def test_a_run_that_was_moved_aside_for_another_attempt_stays_that_of_its_job(make_job, make_record):
    job = make_job()
    write_submitted(Path(job.job_dir), SUBMITTED)
    run_dir = Path(job.runs[0].run_dir)
    cancelled = of_job(make_record, job, "7", status="interrupted", failure="Slurm: CANCELLED")
    (run_dir / "record.json").write_text(cancelled.model_dump_json())
    fresh_folder(run_dir)
    assert runs_of(job).committed == ((job.runs[0], cancelled),)
    (run_dir / "record.json").write_text(of_job(make_record, job, "8").model_dump_json())
    assert runs_of(job).committed == ((job.runs[0], cancelled),)
