"""Waiting for jobs: when it ends, what it shows, and when it gives up. Slurm's commands are scripts."""

import shutil
from pathlib import Path

import pytest

from harness.cluster.commands import Slurm
from harness.cluster.following import Watched, wait_for
from harness.cluster.showing import JobDisplay
from harness.errors import RunFailedError
from harness.measure.experiment import Display
from harness.records.job import SlurmOptions
from harness.records.store import read_run
from tests.cluster.conftest import SUBMITTED

DOWN = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"


class Clock:
    """Seconds that pass by sleeping only; ``at`` runs something once when a time has come."""

    def __init__(self):
        self.now, self.due = 1000.0, []

    def monotonic(self):
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
def make_job(make_spec, job_of):
    def make(queued_before_s=0.0, **options):
        slurm = SlurmOptions(**{"time_limit_minutes": 30} | options)
        return Watched(job_of(make_spec(gpu="cpu", num_gpus=2), options=slurm), SUBMITTED, queued_before_s)

    return make


@pytest.fixture
def wait(clock, slurm, monkeypatch):
    """Wait for a job of which scontrol says this: the name of a recorded answer, or a script."""

    def run(job, says, **limits):
        if says.isalpha():
            slurm.reports(says)
        else:
            slurm.answers("scontrol", says)
        monkeypatch.setattr("harness.cluster.following.time", clock)
        return wait_for([job], Slurm({"PATH": f"{slurm.folder}:/usr/bin:/bin"}), JobDisplay(Display()), **limits)

    return run


def commit(job, make_record):
    run = job.job.runs[0]
    record = make_record(run.spec, run_id=run.run_id)
    (Path(run.run_dir) / "record.json").write_text(record.model_dump_json())


def failure_of(job):
    return read_run(job.job.runs[0].run_dir).failure


@pytest.mark.parametrize("says", ["echo JobId=7 JobState=RUNNING NodeList=n1", "nodefail"])
def test_a_record_ends_the_waiting_whatever_slurm_says_of_the_job(wait, make_job, clock, make_record, says):
    job = make_job()
    clock.at(3, lambda: commit(job, make_record))
    assert wait(job, says).is_done
    assert (clock.now, failure_of(job)) == (1003.0, None)


def test_a_controller_that_is_away_for_a_while_ends_nothing(wait, slurm, make_job, clock, capsys):
    job = make_job()
    clock.at(600, lambda: slurm.reports("timeout"))
    assert wait(job, DOWN).is_done
    assert failure_of(job) == "Slurm: TIMEOUT (TimeLimit) on n1"
    assert "job 7: unknown: slurm_load_jobs error: " in capsys.readouterr().err


@pytest.mark.slow
def test_a_controller_that_never_comes_back_leaves_the_run_uncommitted(wait, slurm, make_job, clock):
    job = make_job()
    with pytest.raises(RunFailedError):
        wait(job, DOWN)
    assert clock.now > 1000 + 30 * 60
    assert not (Path(job.job.runs[0].run_dir) / "record.json").exists()


def test_a_job_that_can_never_start_is_cancelled_after_a_minute(wait, slurm, make_job, clock):
    job = make_job()
    assert wait(job, "never").is_done
    assert "PartitionNodeLimit" in failure_of(job)
    assert (slurm.calls("scancel") == ["scancel 7"], 1060 < clock.now < 1080) == (True, True)


@pytest.mark.slow
def test_a_held_job_is_waited_for_and_the_controller_is_asked_ever_more_seldom(wait, slurm, make_job):
    assert not wait(make_job(), "held", timeout_s=3600).is_done
    assert slurm.calls("scancel") == []
    assert 100 < len(slurm.calls("scontrol")) < 400


@pytest.mark.parametrize(("queued_before_s", "waits_s"), [(0.0, 20 * 60), (1190.0, 10.0)])
def test_a_job_that_does_not_start_in_time_from_its_submission_is_cancelled(
    wait, make_job, clock, queued_before_s, waits_s
):
    job = make_job(queued_before_s, pending_timeout_minutes=20)
    assert wait(job, "held").is_done
    assert " 20 min: JobHeldUser" in failure_of(job)
    assert 1000 + waits_s < clock.now < 1000 + waits_s + 60


def test_what_is_requeued_and_held_is_given_up(wait, slurm, make_job):
    line = "JobId=7 JobState=PENDING Reason=launch_failed_requeued_held Restarts=1 ExitCode=0:0"
    job = make_job()
    assert wait(job, f"echo '{line}'").is_done
    assert failure_of(job).endswith(": launch_failed_requeued_held; cancelled by mbr-perf")


def test_a_state_is_shown_once(wait, slurm, make_job, clock, capsys):
    job = make_job()
    clock.at(100, lambda: slurm.reports("timeout"))
    wait(job, "held")
    held, ended = capsys.readouterr().err.splitlines()
    assert held.startswith("job 7: PENDING (JobHeldUser); ") and ended == "job 7: TIMEOUT (TimeLimit) on n1"


@pytest.mark.parametrize("what", ["job", "run", "results"])
def test_a_folder_that_is_deleted_meanwhile_ends_the_waiting_and_is_named(wait, make_job, clock, what):
    job = make_job()
    run_dir, job_dir = Path(job.job.runs[0].run_dir), Path(job.job.job_dir)
    gone = {"job": job_dir, "run": run_dir, "results": job_dir.parents[1]}[what]
    clock.at(10, lambda: shutil.rmtree(gone))
    with pytest.raises(RunFailedError) as failed:
        wait(job, "echo JobId=7 JobState=RUNNING NodeList=n1")
    named = run_dir if what == "run" else job_dir
    assert f"{named}: " in str(failed.value) and "`scancel 7`" in str(failed.value)
