"""Where a job runs, and a submission that nobody answers: the job is looked for before it is submitted again."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.cluster.commands import Slurm
from harness.cluster.controller import NotSubmittedError
from harness.cluster.rounds import elsewhere
from harness.cluster.submission import JobRequest, prepare, submit_prepared
from harness.errors import RunFailedError
from harness.failures.entries import fault_in
from harness.launch.environment import Host, this_host
from harness.launch.slurm_job import slurm_job
from harness.records.batches import BatchLaunch
from harness.records.job import SlurmOptions
from tests.cluster.conftest import job_record
from tests.commands import refused

DOWN = "Batch job submission failed: Unable to contact slurm controller (connect failure)"
LATE = "Batch job submission failed: Socket timed out on send/recv operation"


@pytest.fixture(name="job")
def _job(tmp_path):
    (tmp_path / "JOB").mkdir()
    record = job_record(tmp_path / "JOB", name="mbr-perf.first")
    host = Host(python="/usr/bin/python3", hostname="login", num_cores=4, shell={"PATH": "/usr/bin:/bin"})
    return slurm_job(record, host), host


@pytest.fixture(name="answers")
def _answers(tmp_path, program):
    """Slurm as scripts: what each call of sbatch and squeue says, the last for all that follow."""
    (tmp_path / "bin").mkdir()

    def answers(**outputs):
        for command, texts in outputs.items():
            (tmp_path / f"{command}.calls").write_text("")
            cases = [f"{place}) {text} ;;" for place, text in enumerate(texts[:-1], start=1)]
            noted = f"{tmp_path}/{command}.calls"
            chosen = f"case $(wc -l < {noted}) in {' '.join(cases)} *) {texts[-1]} ;; esac"
            program(f"echo $* >> {noted}\n{chosen}", name=f"bin/{command}")
        return Slurm({"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}, look_after_s=(0.0, 0.0))

    return answers


@pytest.fixture(name="num_calls")
def _num_calls(tmp_path):
    return lambda command: len((tmp_path / f"{command}.calls").read_text().splitlines())


def fails(words):
    return f"echo 'sbatch: error: {words}' >&2; exit 1"


def submit(slurm, job):
    return slurm.submit(job, "2026-01-02T03:04:05+00:00")


@pytest.mark.parametrize("words", [DOWN, LATE])
def test_a_submission_that_nobody_answered_is_made_again_once_slurm_knows_no_such_job(job, answers, num_calls, words):
    slurm = answers(sbatch=[fails(words), "echo 8"], squeue=["echo '7|/somewhere/else/job.sbatch'"])

    assert submit(slurm, job[0]).job_id == "8"
    assert (num_calls("sbatch"), num_calls("squeue")) == (2, 1)


def test_a_job_that_slurm_took_without_saying_so_is_not_submitted_again(job, answers, num_calls):
    slurm = answers(sbatch=[fails(LATE)], squeue=[f"echo 'CLUSTER: big'; echo '9|{job[0].record.script_path}'"])
    submitted = submit(slurm, job[0])

    assert (submitted.job_id, submitted.cluster) == ("9", "big")
    assert num_calls("sbatch") == 1


def test_a_controller_that_stays_away_is_a_fault_of_the_machines_that_is_tried_again(job, answers, num_calls):
    slurm = answers(sbatch=[fails(DOWN)], squeue=["exit 0"])
    with pytest.raises(NotSubmittedError) as raised:
        submit(slurm, job[0])

    fault = fault_in([raised.value.message])
    assert (fault.id, fault.retry, raised.value.exit_code) == ("slurm_unreachable", "at_once", 3)
    assert " jobs submit " in raised.value.remedy
    assert num_calls("sbatch") == 3


def test_where_slurm_does_not_say_whether_the_job_is_there_it_is_not_submitted_again(job, answers, num_calls):
    slurm = answers(sbatch=[fails(LATE)], squeue=["echo 'slurm_load_jobs error: Socket timed out' >&2; exit 1"])
    with pytest.raises(RunFailedError) as raised:
        submit(slurm, job[0])

    assert not isinstance(raised.value, NotSubmittedError)
    assert num_calls("sbatch") == 1


def test_a_refusal_is_neither_looked_for_nor_tried_again(job, answers, num_calls):
    slurm = answers(sbatch=[fails("Batch job submission failed: Node count specification invalid")], squeue=["exit 0"])
    refused(lambda: submit(slurm, job[0]), "Node count specification invalid")

    assert (num_calls("sbatch"), num_calls("squeue")) == (1, 0)


def test_a_prepared_job_that_is_queued_already_is_taken_up(job, answers, num_calls, tmp_path):
    submitted_job, host = job
    prepare(submitted_job.record, host)
    answers(sbatch=["echo 8"], squeue=[f"echo '9|{submitted_job.record.script_path}'"])
    host = replace(host, shell={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    submitted = submit_prepared(submitted_job.record.script_path.parent, host)

    assert (submitted.job_id, num_calls("sbatch")) == ("9", 0)
    folder = submitted_job.record.script_path.parent
    refused(lambda: submit_prepared(folder, host), str(folder))


REFUSED = "allocation failure: Requested node configuration is not available"


@pytest.mark.parametrize(("script", "nodes"), [("exit 0", "n[1-2]"), (f"echo '{REFUSED}' >&2; exit 1", None)])
def test_a_confirming_job_leaves_out_the_first_nodes_where_slurm_has_others(slurm, make_spec, script, nodes):
    slurm.answers("sbatch", script)
    asked = request(make_spec, SlurmOptions(time_limit_minutes=5))
    found = elsewhere(asked, "n[1-2]", Slurm(this_host().shell), this_host())
    assert found.options.exclude == nodes
    assert "--exclude=n[1-2]" in slurm.calls("sbatch")[0]
    assert ("#SBATCH --exclude=n[1-2]\n" in found.checked(this_host()).render()) == (nodes is not None)


def request(make_spec, options):
    return JobRequest(
        what="nightly", label="case", specs=(make_spec(gpu="cpu"),), launch=BatchLaunch(), options=options,
        results=Path("/results"),
    )  # fmt: skip
