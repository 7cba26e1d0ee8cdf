"""What runs on a node of a Slurm job, with recorded runs in place of training: commits, refusals, and what it leaves out."""

import signal
from pathlib import Path

import pytest

from harness.cluster.collecting import collect_ended
from harness.cluster.node import place_of
from harness.cluster.state import JobState
from harness.cluster.task import main
from harness.experiment.experiment import ExperimentSpec
from harness.records.batches import BatchLaunch
from harness.records.job import JOB, JobAttempt, KubeflowOptions, attempt_path, time_limit_note
from harness.records.store import read_run
from harness.records.strict_json import read_document
from tests.cluster.conftest import SUBMITTED, job_record
from tests.commands import refused

REPLAYS = Path(__file__).parents[1] / "data" / "replay"


@pytest.fixture
def in_job(monkeypatch):
    """The variables that srun sets on a node."""

    def enter(**changes):
        variables = {"JOB_ID": 7, "NODEID": 0, "NNODES": 1, "JOB_NODELIST": "n1"} | changes
        for name, value in variables.items():
            monkeypatch.setenv(f"SLURM_{name}", str(value))

    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    enter()
    before = signal.getsignal(signal.SIGTERM)
    yield enter
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def make_job(job_of):
    """A job folder with ``num_runs`` runs that replay a recorded one."""

    def make(recorded="ok", num_runs=2, nnodes=1, launch=None, **changes):
        spec = ExperimentSpec.model_validate_json((REPLAYS / recorded / "spec.json").read_text())
        launch = launch or BatchLaunch(replay_from=REPLAYS / recorded)
        job = job_of(spec.model_copy(update=changes), num_runs, nnodes=nnodes, launch=launch)
        Path(job.job_dir, JOB).write_text(job.model_dump_json())
        return job

    return make


def run_task(job):
    return main(["--job_dir", job.job_dir, "--master_addr", "127.0.0.1"])


def attempt(job, job_id="7", restart=0):
    return read_document(attempt_path(Path(job.job_dir), job_id, restart), JobAttempt)


def status(job):
    """Of every run whether and how it was committed."""
    records = [Path(run.run_dir, "record.json") for run in job.runs]
    return [read_run(path).status if path.is_file() else None for path in records]


def test_every_run_is_committed_and_names_the_job(make_job, in_job):
    job = make_job()
    assert (run_task(job), status(job)) == (0, ["ok", "ok"])
    record = read_run(job.runs[1].run_dir)
    assert record.run_id == "run-1"
    assert record.notes[-1] == "Slurm job 7 on n1"
    assert record.provenance.command == job.command
    assert attempt(job).refused == ()


@pytest.mark.parametrize(("recorded", "code", "how"), [("killed", 3, "failed"), ("oom", 4, "oom")])
def test_a_run_that_ends_badly_is_the_last_of_its_job_and_is_the_exit_code(make_job, in_job, recorded, code, how):
    job = make_job(recorded)
    assert (run_task(job), status(job)) == (code, [how, None])
    assert not Path(job.runs[1].run_dir).exists()


def test_a_requeued_or_second_job_runs_nothing_and_writes_nothing_over(make_job, in_job):
    job = make_job()
    run_task(job)
    committed = Path(job.runs[0].run_dir, "record.json").read_bytes()
    in_job(RESTART_COUNT=1)
    assert run_task(job) == 3
    reasons = attempt(job, restart=1).refused
    assert " job 7 (1 time)" in reasons[0]
    assert any(reason.startswith(f"{job.runs[0].run_dir} ") for reason in reasons)
    in_job(JOB_ID=12, RESTART_COUNT=0)
    assert run_task(job) == 3
    assert attempt(job, "12").refused[0].startswith("job 7 ")
    assert Path(job.runs[0].run_dir, "record.json").read_bytes() == committed


@pytest.mark.parametrize(
    ("is_late", "says"), [(False, "RESTARTED (OOMKilled, exit code 137): Kubernetes "), (True, "TIMEOUT: ")]
)
def test_a_pod_that_starts_again_runs_nothing_and_its_end_is_the_reason(make_job, in_job, monkeypatch, is_late, says):
    job = make_job(num_runs=1)
    job = job.model_copy(update={"options": KubeflowOptions(time_limit_minutes=30, container_image="image")})
    Path(job.job_dir, JOB).write_text(job.model_dump_json())
    for name, value in {"NODE_RANK": "0", "NNODES": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(f"PET_{name}", value)
    before = attempt_path(Path(job.job_dir), job.name, 0)
    before.parent.mkdir()
    ran = JobAttempt(job_id=job.name, restart_count=0, nodes="n1", hostname="n1", started_at="x", master_port=1)
    before.write_text(ran.model_dump_json())
    if is_late:
        time_limit_note(Path(job.job_dir)).touch()
    assert (run_task(job), status(job)) == (0, [None])
    signal.alarm(0)  # the job's limit
    ended = JobState(kind="out_of_memory", state="Complete", reason="OOMKilled", exit_code="137")
    collect_ended(job, SUBMITTED, ended)
    assert read_run(job.runs[0].run_dir).failure.startswith(f"Kubernetes: {says}")


def test_half_a_run_of_another_job_is_not_written_over(make_job, in_job, capsys):
    job = make_job()
    half = Path(job.runs[1].run_dir, "ranks", "rank_000.progress.jsonl")
    half.write_text("")
    assert (run_task(job), status(job)) == (3, [None, None])
    assert f"{job.runs[1].run_dir} already holds a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "failure"),
    [
        ({"nnodes": 2}, " 1 nodes (n1), "),
        ({"num_gpus": 3, "launch": BatchLaunch()}, "num_gpus 3"),  # a rule forbids it
    ],
)
def test_what_cannot_run_on_the_node_is_a_failed_run_that_says_so(make_job, in_job, changes, failure):
    job = make_job(**changes)
    assert (run_task(job), status(job)) == (3, ["failed", None])
    record = read_run(job.runs[0].run_dir)
    assert failure in record.failure and "\n" not in record.failure


def test_what_was_predicted_with_the_plan_is_kept(make_job, in_job):
    job = make_job(num_runs=1)
    run = job.runs[0].model_copy(update={"no_prediction": "said before"})
    Path(job.job_dir, JOB).write_text(job.model_copy(update={"runs": (run,)}).model_dump_json())
    assert run_task(job) == 0
    assert read_run(run.run_dir).no_prediction == "said before"


def test_a_folder_without_a_job_is_a_wrong_request(tmp_path, in_job, capsys):
    assert main(["--job_dir", str(tmp_path), "--master_addr", "n1"]) == 2
    assert "no job.json" in capsys.readouterr().err


def test_outside_a_job_every_missing_variable_is_named_at_once():
    refused(lambda: place_of(job_record("/jobs/job"), {"SLURM_NNODES": "2"}), "SLURM_JOB_ID, SLURM_NODEID: ")
    broken = {"SLURM_JOB_ID": "7", "SLURM_NODEID": "n1", "SLURM_NNODES": "2", "SLURM_RESTART_COUNT": "x"}
    refused(lambda: place_of(job_record("/jobs/job"), broken), "SLURM_NODEID='n1', SLURM_RESTART_COUNT='x': ")
