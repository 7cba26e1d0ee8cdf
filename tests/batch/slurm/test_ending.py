"""What a run inside a job says of its end, from what the controller says of the job at that moment."""

import pytest

from harness.batch.slurm.node import told_by
from harness.launch.slurm.state import from_scontrol


def told(state: str, reason: str, nnodes: int = 2) -> str:
    line = f"JobId=8 JobName=mbr-perf JobState={state} Reason={reason} Restarts=0 ExitCode=0:15 NodeList=n[1-2]"
    return told_by(from_scontrol(line)[0], nnodes)


@pytest.mark.parametrize(("reason", "name"), [("NodeDown", "NODE_FAIL"), ("TimeLimit", "TIMEOUT")])
def test_a_job_that_slurm_is_ending_is_told_by_its_reason(reason, name):
    assert told("COMPLETING", reason) == f"Slurm: {name} ({reason}) on n[1-2]"


def test_a_state_that_says_it_itself_needs_no_reason():
    assert told("PREEMPTED", "None") == "Slurm: PREEMPTED on n[1-2]"


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING"])
def test_a_cancelled_job_is_an_interruption_and_no_fault(state):
    assert told(state, "None") == ""


def test_a_step_that_ends_in_a_job_that_goes_on_is_the_fault_of_another_node():
    assert told("RUNNING", "None").startswith("Slurm: STEP ENDED, and not the job")
    assert told("RUNNING", "None", nnodes=1) == ""
