"""Waiting for jobs: when it ends, what it shows, and when it gives up. Slurm's commands are scripts."""

import shutil
from pathlib import Path

import pytest

from harness.cluster.commands import Slurm
from harness.cluster.following import Watched, wait_for
from harness.cluster.showing import JobDisplay
from harness.errors import RunFailedError
from harness.measure.experiment import Display
from harness.records.job import JobRecord, JobRun, SlurmOptions, SubmittedRecord
from harness.records.store import read_run

SLURM_OUTPUT = Path(__file__).parents[1] / "data" / "slurm" / "said"
DOWN = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"


class Clock:
    """Seconds that pass by sleeping only; ``at`` runs something once when a time has come."""

    def __init__(self):
        self.now, self.due = 1000.0, []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        for item in [item for item in self.due if item[0] <= self.now]:
            self.due.remove(item)
            item[1]()

    def at(self, seconds, action):
        self.due.append((1000.0 + seconds, action))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def slurm(tmp_path):
    """Sets what ``scontrol`` answers from now on; ``scancel`` notes that it was called."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def answers(script):
        for command, text in (("scontrol", script), ("squeue", script), ("sacct", "exit 1"), ("scancel", "")):
            path = folder / command
            path.write_text(f'#!/bin/sh\necho {command} "$@" >> {folder}/calls\n{text}\n')
            path.chmod(0o755)
        return Slurm({"PATH": f"{folder}:/usr/bin:/bin"})

    answers.reports = lambda name: answers(f"cat {SLURM_OUTPUT}/{name}.scontrol")
    answers.cancelled = lambda: "scancel 7" in (folder / "calls").read_text()
    return answers


@pytest.fixture
def make_job(tmp_path, make_spec):
    def make(queued_before_s=0.0, **options):
        spec = make_spec(gpu="cpu", num_gpus=2)
        run_dir = tmp_path / "runs" / "run"
        for inner in ("ranks", "logs"):
            (run_dir / inner).mkdir(parents=True)
        job_dir = tmp_path / "jobs" / "job"
        (job_dir / "logs").mkdir(parents=True)
        job = JobRecord(
            job_dir=str(job_dir), name="job", what="run", subject=str(job_dir), nnodes=1,
            runs=(JobRun(run_dir=str(run_dir), run_id="run", spec=spec),),
            slurm=SlurmOptions(**{"time_limit_minutes": 30} | options), command=("mbr-perf", "run"),
            created_at="2026-01-02T03:04:05+00:00", mbr_perf="0.1.0",
        )  # fmt: skip
        submitted = SubmittedRecord(job_id="7", submitted_at="2026-01-02T03:04:05+00:00", sbatch=("sbatch",))
        return Watched(job, submitted, queued_before_s)

    return make


@pytest.fixture
def wait(clock):
    def run(job, slurm, **limits):
        return wait_for([job], slurm, JobDisplay(Display()), clock=clock, sleep=clock.sleep, **limits)

    return run


def commit(job, make_record):
    run = job.job.runs[0]
    record = make_record(run.spec, run_id=run.run_id)
    (Path(run.run_dir) / "record.json").write_text(record.model_dump_json())


def failure_of(job):
    return read_run(job.job.runs[0].run_dir).failure


def test_a_record_ends_the_waiting_although_slurm_still_says_that_it_runs(wait, slurm, make_job, clock, make_record):
    job = make_job()
    clock.at(3, lambda: commit(job, make_record))
    assert wait(job, slurm("echo JobId=7 JobState=RUNNING NodeList=n1")).is_done
    assert clock.now == 1003.0


def test_a_record_that_comes_a_little_after_the_end_of_the_job_counts(wait, slurm, make_job, clock, make_record):
    job = make_job()
    clock.at(3, lambda: commit(job, make_record))
    assert wait(job, slurm.reports("nodefail")).is_done
    assert failure_of(job) is None


def test_a_controller_that_is_away_for_a_while_ends_nothing(wait, slurm, make_job, clock, capsys):
    job = make_job()
    clock.at(600, lambda: slurm.reports("timeout"))
    assert wait(job, slurm(DOWN)).is_done
    assert failure_of(job) == "Slurm: TIMEOUT after 30 min on n1"
    assert "job 7: unknown: slurm_load_jobs error: Unable to contact" in capsys.readouterr().err


@pytest.mark.slow
def test_a_controller_that_never_comes_back_leaves_the_run_uncommitted(wait, slurm, make_job, clock):
    job = make_job()
    with pytest.raises(RunFailedError, match="it must have ended by now"):
        wait(job, slurm(DOWN))
    assert clock.now > 1000 + 30 * 60
    assert not (Path(job.job.runs[0].run_dir) / "record.json").exists()


def test_a_job_that_can_never_start_is_cancelled_after_a_minute(wait, slurm, make_job, clock):
    job = make_job()
    assert wait(job, slurm.reports("never")).is_done
    assert failure_of(job) == "Slurm: never started: PartitionNodeLimit; cancelled by mbr-perf"
    assert (slurm.cancelled(), 1060 < clock.now < 1080) == (True, True)


@pytest.mark.slow
def test_a_held_job_is_waited_for(wait, slurm, make_job, clock):
    job = make_job()
    assert not wait(job, slurm.reports("held"), timeout_s=3600).is_done
    assert not slurm.cancelled()


def test_a_job_that_does_not_start_in_time_is_cancelled(wait, slurm, make_job, clock):
    job = make_job(pending_timeout_minutes=20)
    assert wait(job, slurm.reports("held")).is_done
    assert failure_of(job) == "Slurm: never started within 20 min: JobHeldUser; cancelled by mbr-perf"
    assert 1000 + 20 * 60 < clock.now < 1000 + 21 * 60


def test_time_in_the_queue_counts_from_submission(wait, slurm, make_job, clock):
    job = make_job(queued_before_s=1190.0, pending_timeout_minutes=20)
    assert wait(job, slurm.reports("held")).is_done
    assert clock.now < 1030


def test_what_is_requeued_and_held_is_given_up(wait, slurm, make_job):
    line = "JobId=7 JobState=PENDING Reason=launch_failed_requeued_held Restarts=1 ExitCode=0:0"
    job = make_job()
    assert wait(job, slurm(f"echo '{line}'")).is_done
    assert failure_of(job).startswith("Slurm: REQUEUED and held: launch_failed_requeued_held")


def test_a_state_is_shown_once(wait, slurm, make_job, clock, capsys):
    job = make_job()
    clock.at(100, lambda: slurm.reports("timeout"))
    wait(job, slurm.reports("held"))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "job 7: PENDING (JobHeldUser); it is held, release it with scontrol release",
        "job 7: TIMEOUT (TimeLimit) on n1",
    ]


@pytest.mark.slow
def test_the_controller_is_asked_ever_more_seldom(wait, slurm, make_job, tmp_path):
    wait(make_job(), slurm.reports("held"), timeout_s=3600)
    asked = (tmp_path / "bin" / "calls").read_text().count("scontrol")
    assert 100 < asked < 400


@pytest.mark.parametrize("what", ["job", "run", "results"])
def test_a_folder_that_is_deleted_meanwhile_ends_the_waiting_and_is_named(wait, slurm, make_job, clock, what):
    said, job = slurm("echo JobId=7 JobState=RUNNING NodeList=n1"), make_job()
    run_dir, job_dir = Path(job.job.runs[0].run_dir), Path(job.job.job_dir)
    gone = {"job": job_dir, "run": run_dir, "results": job_dir.parents[1]}[what]
    clock.at(10, lambda: shutil.rmtree(gone))
    with pytest.raises(RunFailedError) as failed:
        wait(job, said)
    named = run_dir if what == "run" else job_dir
    assert (
        f"{named}: the folder was deleted while mbr-perf was using it; mbr-perf waits no longer; `scancel 7` ends the job"
        in str(failed.value)
    )
