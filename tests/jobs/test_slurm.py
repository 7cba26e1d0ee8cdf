"""`run --launcher slurm` and `mbr-perf jobs` with scripts in place of Slurm's commands; real Slurm has its own tests."""

import json
import shutil
from pathlib import Path

import pytest

from harness.records.job import JOB, SlurmOptions, read_job, read_submitted
from harness.records.store import read_run, write_atomically
from tests.cluster.conftest import SUBMITTED, job_record

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "tests" / "data" / "replay" / "replayed.yaml"
pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


@pytest.fixture
def on_slurm(mbr_perf, results):
    """`mbr-perf run --launcher slurm` of the small recipe, two nodes with a rank each."""

    def run(*arguments, time_limit="10"):
        small = ("-mr", RECIPE, "-g", "cpu", "-gn", "1", "--launcher", "slurm", "--results_dir", results)
        limit = ("--time_limit", time_limit) if time_limit else ()
        return mbr_perf("run", *small, *limit, *arguments)

    return run


@pytest.fixture
def jobs(mbr_perf, results):
    """`mbr-perf jobs` on the same results."""

    def run(*arguments):
        return mbr_perf("jobs", *arguments, "--results_dir", results)

    return run


@pytest.fixture
def job_dir(results):
    """Return the folder of the only job."""

    def find():
        (found,) = (results / "jobs").iterdir()
        return found

    return find


def commit(run, make_record, **changes):
    record = make_record(run.spec, run_id=run.run_id, **changes)
    (Path(run.run_dir) / "record.json").write_text(record.model_dump_json())
    return record


def test_a_dry_run_prints_the_file_and_the_command_and_writes_nothing(on_slurm, slurm, results):
    answer = on_slurm("--dryrun", "--partition", "batch")
    assert (answer.code, answer.err) == (0, "")
    assert "#SBATCH --partition=batch\n" in answer.out
    assert "#SBATCH --nodes=2\n" in answer.out
    assert f"sbatch --parsable --export=NIL {results}/jobs/JOB/job.sbatch\n" in answer.out
    assert not results.exists()
    assert slurm.calls("sbatch") == []


def test_a_detached_run_is_submitted_and_prints_how_to_collect_it(on_slurm, slurm, job_dir):
    answer = on_slurm("--detach", "--repeats", "2")
    job = read_job(job_dir())
    assert answer.code == 0
    *lines, collect = answer.out.splitlines()
    assert lines == [f"job 7: {job_dir()}", *(f"run {run.run_id}" for run in job.runs)]
    assert collect.endswith(f": mbr-perf jobs wait {job_dir()}")
    assert slurm.calls("sbatch") == [f"sbatch --parsable --export=NIL {job_dir()}/job.sbatch"]
    assert read_submitted(job_dir()).job_id == "7"
    assert (job.nnodes, len(job.runs)) == (2, 2)
    shown = json.loads(on_slurm("--dryrun", "--json", "--repeats", "2").out)["plan"]["script"]
    assert (job_dir() / "job.sbatch").read_text() == shown.replace("/jobs/JOB", f"/jobs/{job_dir().name}")


def test_jobs_wait_judges_the_committed_runs(on_slurm, slurm, job_dir, jobs, make_record):
    on_slurm("--detach", "--repeats", "2")
    job = read_job(job_dir())
    for run in job.runs:
        commit(run, make_record)
    answer = jobs("wait", "7", "--json")
    document = json.loads(answer.out)
    assert (answer.code, document["outcome"]) == (0, "pass")
    assert document["run_ids"] == [run.run_id for run in job.runs]
    assert slurm.calls("scontrol") == []


def test_a_committed_failure_ends_the_waiting_and_drops_the_other_repeats(on_slurm, slurm, job_dir, jobs, make_record):
    on_slurm("--detach", "--repeats", "2")
    first, second = read_job(job_dir()).runs
    commit(first, make_record, status="oom", failure="memory")
    answer = jobs("wait", job_dir())
    assert answer.code == 4
    assert not Path(second.run_dir).exists()


@pytest.mark.parametrize(
    ("recorded", "code", "failure"),
    [("nodefail", 3, "Slurm: NODE_FAIL (NodeDown) on n2"), ("cancelled", 130, "Slurm: CANCELLED")],
)
def test_a_job_that_ended_without_a_record_is_collected(on_slurm, slurm, job_dir, jobs, recorded, code, failure):
    slurm.reports(recorded)
    on_slurm("--detach")
    answer = jobs("wait", job_dir())
    record = read_run(read_job(job_dir()).runs[0].run_dir)
    assert (answer.code, record.failure) == (code, failure)
    assert failure in answer.out


def test_after_the_timeout_the_job_continues_and_the_message_names_the_next_step(on_slurm, slurm, job_dir, jobs):
    slurm.reports("held")
    on_slurm("--detach")
    answer = jobs("wait", job_dir(), "--timeout", "0")
    assert answer.code == 6
    assert "job 7: PENDING (JobHeldUser); " in answer.err
    assert f"mbr-perf jobs cancel {job_dir()}" in answer.err
    assert slurm.calls("scancel") == []


def test_if_slurm_refuses_the_job_no_run_is_left_and_it_can_be_submitted_again(on_slurm, slurm, results, job_dir, jobs):
    slurm.answers("sbatch", "echo 'sbatch: error: invalid partition specified: nope' >&2; exit 1")
    answer = on_slurm("--partition", "nope")
    assert answer.code == 2
    assert ": invalid partition specified: nope" in answer.err
    assert list((results / "runs").iterdir()) == []
    slurm.answers("sbatch", "echo 8")
    assert jobs("submit", job_dir()).code == 0
    assert (Path(read_job(job_dir()).runs[0].run_dir) / "ranks").is_dir()


def test_a_prepared_job_is_submitted_once(on_slurm, slurm, job_dir, jobs):
    assert on_slurm("--no_submit").code == 0
    assert slurm.calls("sbatch") == []
    assert jobs("submit", job_dir()).code == 0
    again = jobs("submit", job_dir())
    assert (again.code, len(slurm.calls("sbatch")), f"{job_dir()}: " in again.err) == (2, 1, True)


def test_an_answer_without_a_number_is_no_refusal(on_slurm, slurm):
    slurm.answers("sbatch", "echo hello")
    answer = on_slurm()
    assert (answer.code, "sbatch printed 'hello'" in answer.err) == (3, True)


def test_the_state_of_a_job_is_read_from_its_cluster(on_slurm, slurm, jobs):
    slurm.answers("sbatch", "echo 'sbatch: a word from the site'; echo '7;blue'")
    slurm.reports("held")
    on_slurm("--detach")
    assert jobs("status", "7").code == 0
    assert slurm.calls("scontrol") == ["scontrol --clusters=blue -o show job 7"]


def test_the_status_of_a_job_names_its_runs(on_slurm, slurm, job_dir, jobs):
    slurm.reports("never")
    on_slurm("--detach")
    answer = json.loads(jobs("status", "7", "--json").out)
    assert answer["cluster_state"][0]["reason"] == "PartitionNodeLimit"
    assert answer["state"].startswith("PENDING (PartitionNodeLimit); ")
    assert [run["run_id"] for run in answer["runs"]] == [run.run_id for run in read_job(job_dir()).runs]


def test_cancelling_asks_slurm_and_keeps_the_folders(on_slurm, slurm, job_dir, jobs):
    slurm.reports("held")
    on_slurm("--detach")
    assert jobs("cancel", "7").code == 0
    assert slurm.calls("scancel") == ["scancel 7"]
    assert Path(read_job(job_dir()).runs[0].run_dir).exists()


def test_a_finished_job_is_not_cancelled(on_slurm, slurm, job_dir, jobs, make_record):
    on_slurm("--detach")
    commit(read_job(job_dir()).runs[0], make_record)
    assert jobs("cancel", "7").code == 2
    assert slurm.calls("scancel") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--nnodes", "2", "--master_addr", "n1"), "--nnodes, --master_addr "),
        (("--segment", "0"), "--segment 0 "),
        (("--slurm_gpus", "all"), "--slurm_gpus 'all' "),
        (("--detach", "--no_submit"), "--detach and --no_submit "),
        (("--partition", "a b"), "--partition 'a b' "),
        (("--pass_env", "ALL"), "--pass_env 'ALL' "),
        (("--run_dir", "x", "--repeats", "2"), "--run_dir "),
        (("-ng", "3"), "num_gpus 3"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_wrong_options_are_refused(on_slurm, slurm, results, arguments, message):
    answer = on_slurm(*arguments)
    assert answer.code == 2
    assert message in answer.err
    assert not results.exists()


def test_all_wrong_options_are_named_at_once(on_slurm, mbr_perf, slurm, results):
    err = on_slurm("--node_rank", "1", "--segment", "0", "--slurm_gpus", "all", time_limit="").err
    assert all(text in err for text in ("--node_rank", "--segment", "--slurm_gpus", "needs a time limit"))
    unknown = mbr_perf("run", "-mr", RECIPE, "--launcher", "slurm", "--time_limit", "5", "--results_dir", results)
    assert (unknown.code, "-g" in unknown.err) == (2, True)
    local = mbr_perf("run", "-mr", RECIPE, "-g", "cpu", "--partition", "batch", "--detach")
    assert (local.code, "--detach, --partition: " in local.err) == (2, True)


@pytest.mark.parametrize(
    ("text", "minutes"), [("30", 30), ("01:30:00", 90), ("0:00:01", 1), ("1-00:00:30", 1441), ("100:0:0", 6000)]
)
def test_a_time_limit_is_whole_minutes(on_slurm, text, minutes):
    assert f"#SBATCH --time={minutes}\n" in on_slurm("--dryrun", time_limit=text).out


@pytest.mark.parametrize("text", ["0", "-5", "1:30", "1h", "00:00:00", "1:99:00", "30 "])
def test_an_invalid_time_limit_is_refused(on_slurm, text):
    answer = on_slurm("--dryrun", f"--time_limit={text}", time_limit="")
    assert (answer.code, f"--time_limit {text!r} " in answer.err) == (2, True), answer.err


def test_without_slurm_the_run_is_refused(on_slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = on_slurm()
    assert (answer.code, "sbatch: " in answer.err) == (2, True)


def test_the_job_of_a_sweep_is_judged_as_the_sweep(slurm, jobs, results):
    sweep_dir, job_dir = results / "sweeps" / "sweep", results / "jobs" / "job"
    shutil.copytree(ROOT / "tests" / "data" / "sweeps" / "cpu_oom", sweep_dir)
    job_dir.mkdir(parents=True)
    limit = SlurmOptions(time_limit_minutes=5)
    job = job_record(job_dir, what="sweep", subject=str(sweep_dir), options=limit, command=("mbr-perf", "sweep"))
    write_atomically(job_dir / JOB, job)
    (job_dir / "submitted.json").write_text(SUBMITTED.model_copy(update={"job_id": "9"}).model_dump_json())
    slurm.answers("scontrol", "echo 'JobId=9 JobState=COMPLETED Reason=None ExitCode=0:0 Restarts=0'")
    answer = jobs("wait", "9", "--json")
    document = json.loads(answer.out)
    assert (answer.code, document["control"], len(document["cells"])) == (0, "none", 3)


def test_a_job_whose_folder_another_job_filled_names_that_job(on_slurm, slurm, job_dir, jobs, make_record):
    on_slurm("--detach")
    run = read_job(job_dir()).runs[0]
    record = commit(run, make_record)
    other = record.model_copy(update={"provenance": record.provenance.model_copy(update={"job_id": "8"})})
    (Path(run.run_dir) / "record.json").write_text(other.model_dump_json())
    slurm.reports("cancelled")
    state = json.loads(jobs("status", "7", "--json").out)["state"]
    assert state.startswith("CANCELLED; ") and state.endswith(" job 8")
    waited = jobs("wait", "7")
    assert (waited.code, "mbr-perf jobs wait 8" in waited.err) == (2, True)
