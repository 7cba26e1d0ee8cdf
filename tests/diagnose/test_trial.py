"""The result of an A/B of the allocator."""

import pytest

from harness.diagnose.stages import allocator_trial
from tests.diagnose.conftest import FRAGMENTED, FULL

ON, OFF = {"expandable_segments": True}, {"expandable_segments": False}


def test_out_of_memory_without_and_well_with_confirms_fragmentation(case):
    trial = allocator_trial([case(FRAGMENTED, **OFF), case("", **ON)])
    assert trial.confirmed is True
    assert trial.text == (
        "1 of 1 runs without expandable segments ran out of memory, 0 of 1 with them: fragmentation is confirmed."
    )


def test_out_of_memory_in_both_refutes_it(case):
    assert allocator_trial([case(FRAGMENTED, **OFF), case(FULL, **ON)]).confirmed is False


def test_runs_without_a_failure_prove_nothing(case):
    assert allocator_trial([case("", **OFF), case("", **ON)]).confirmed is None


def test_repeats_that_disagree_prove_nothing(case):
    mixed = [case(FRAGMENTED, **OFF), case("", **OFF), case("", **ON), case("", **ON)]
    trial = allocator_trial(mixed)
    assert trial.confirmed is None
    assert "no clear result" in trial.text


def test_another_change_beside_the_allocator_proves_nothing(case):
    trial = allocator_trial([case(FRAGMENTED, **OFF), case("", {"recompute": "mlp"}, **ON)])
    assert trial.confirmed is None
    assert "differ in more than the allocator" in trial.text


def test_the_variables_of_the_allocator_and_nccls_are_the_trial_itself(case):
    with_them = {"env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "NCCL_GRAPH_REGISTER": "0"}}
    assert allocator_trial([case(FRAGMENTED, **OFF), case("", with_them, **ON)]).confirmed is True


def test_a_run_that_failed_otherwise_with_them_proves_nothing(case):
    crashed = case("ValueError: no", **ON)
    assert allocator_trial([case(FRAGMENTED, **OFF), crashed]).confirmed is None


@pytest.mark.parametrize("known", [[OFF, OFF], [ON, ON], [OFF, {}], [{}, {}]])
def test_runs_that_do_not_differ_in_the_allocator_are_no_trial(case, known):
    assert allocator_trial([case(FRAGMENTED, **setting) for setting in known]) is None
