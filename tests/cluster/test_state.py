"""From what Slurm's commands answer to the state of a job and the failure of its runs; the answers are recorded ones."""

from pathlib import Path

import pytest

from harness.cluster.commands import Slurm
from harness.cluster.node import ending_of
from harness.cluster.state import from_sacct, from_scontrol
from tests.cluster.conftest import SUBMITTED

ANSWERS = Path(__file__).parents[1] / "data" / "slurm" / "said"
GONE = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
DOWN = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
NO_ACCOUNTING = "echo 'Slurm accounting storage is disabled' >&2; exit 1"


@pytest.fixture
def state_of(slurm):
    """The state of the job where Slurm's commands answer so, and who was asked."""

    def make(**answers):
        for command, script in answers.items():
            slurm.answers(command, script)
        state = Slurm({"PATH": f"{slurm.folder}:/usr/bin:/bin"}).state(SUBMITTED)
        return state, [command for command in ("scontrol", "sacct") if slurm.calls(command)]

    return make


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("held", "queued", "PENDING (JobHeldUser); "),
        ("never", "queued", "PENDING (PartitionNodeLimit); "),
        ("requeued", "queued", "PENDING (BeginTime), requeued 1 time"),
        ("cancelled", "cancelled", "CANCELLED"),
        ("failed", "failed", "FAILED (NonZeroExitCode) on n2"),
        ("nolog", "launch_failed", "FAILED (JobLaunchFailure) on n2"),
        ("timeout", "timeout", "TIMEOUT (TimeLimit) on n1"),
        ("nodefail", "node_fail", "NODE_FAIL (NodeDown) on n2"),
    ],
)
def test_what_the_controller_says_of_a_job(name, kind, text):
    state = from_scontrol((ANSWERS / f"{name}.scontrol").read_text())
    assert state.kind == kind and state.text.startswith(text)
    assert text.endswith("; ") or state.text == text


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ("COMPLETED|0:0|n[1-2]", "finished", "COMPLETED on n[1-2]"),
        ("CANCELLED by 1000|0:0|None assigned", "cancelled", "CANCELLED"),
        ("OUT_OF_MEMORY|0:125|n1", "out_of_memory", "OUT_OF_MEMORY on n1"),
        ("PREEMPTED|0:0|n1", "preempted", "PREEMPTED on n1"),
        ("BOOT_FAIL|0:0|n1", "node_fail", "BOOT_FAIL on n1"),
        ("DEADLINE|0:0|n1", "timeout", "DEADLINE on n1"),
    ],
)
def test_what_accounting_says_of_a_job(line, kind, text):
    state = from_sacct(line + "\n")
    assert (state.kind, state.text) == (kind, text)


def test_the_controller_is_asked_first_and_accounting_what_it_has_forgotten(state_of):
    state, asked = state_of(scontrol=f"cat {ANSWERS}/failed.scontrol", sacct="exit 1")
    assert (state.kind, asked) == ("failed", ["scontrol"])
    state, _ = state_of(scontrol=GONE, sacct="echo 'TIMEOUT|0:0|n1'")
    assert state.kind == "timeout"
    state, _ = state_of(scontrol=GONE, sacct=NO_ACCOUNTING)
    assert (state.kind, state.has_ended) == ("purged", True)


def test_where_slurm_does_not_answer_nothing_is_known_of_the_job(state_of, tmp_path):
    state, asked = state_of(scontrol=DOWN, sacct=NO_ACCOUNTING)
    assert (state.kind, state.has_ended, asked) == ("unreachable", False, ["scontrol"])
    assert "slurm controller" in state.text
    state = Slurm({"PATH": str(tmp_path)}).state(SUBMITTED)
    assert (state.kind, "not installed" in state.text) == ("unreachable", True)


def test_a_word_that_no_table_has_concludes_nothing():
    state = from_scontrol("JobId=7 JobState=TELEPORTED Reason=None")
    assert (state.kind, state.has_ended) == ("unreachable", False)
    assert "TELEPORTED" in state.text


def test_what_would_change_the_batch_file_does_not_reach_sbatch():
    shell = {"PATH": "/usr/bin:/bin", "SBATCH_PARTITION": "other", "SLURM_JOB_ID": "3", "SLURM_CONF": "/etc/slurm.conf"}
    slurm = Slurm(shell)
    names = slurm.call(("env",)).out
    assert slurm.ignored == ("SBATCH_PARTITION",)
    assert "SBATCH_PARTITION" not in names
    assert "SLURM_JOB_ID" not in names
    assert "SLURM_CONF=/etc/slurm.conf" in names


def ending(state, reason, nnodes=2):
    line = f"JobId=8 JobName=mbr-perf JobState={state} Reason={reason} Restarts=0 ExitCode=0:15 NodeList=n[1-2]"
    return ending_of(from_scontrol(line), nnodes)


@pytest.mark.parametrize(("reason", "name"), [("NodeDown", "NODE_FAIL"), ("TimeLimit", "TIMEOUT")])
def test_a_job_that_slurm_is_ending_is_named_after_its_reason(reason, name):
    assert ending("COMPLETING", reason) == f"Slurm: {name} ({reason}) on n[1-2]"


def test_a_final_state_needs_no_reason():
    assert ending("PREEMPTED", "None") == "Slurm: PREEMPTED on n[1-2]"


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING"])
def test_a_cancelled_job_is_an_interruption_and_no_fault(state):
    assert ending(state, "None") == ""


def test_a_step_that_ends_in_a_job_that_goes_on_is_the_fault_of_another_node():
    assert ending("RUNNING", "None").startswith("Slurm: STEP ENDED")
    assert ending("RUNNING", "None", nnodes=1) == ""
