"""The failure of a run inside a job, from the state that the controller reports at that moment."""

import pytest

from harness.cluster.node import ending_of
from harness.cluster.state import from_scontrol


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
