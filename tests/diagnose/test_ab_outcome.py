"""The outcome of an A/B, from the runs of its two cells."""

import pytest

from harness.diagnose.of_sweep import ab_outcome
from harness.records.rank import Failure
from tests.diagnose.conftest import FRAGMENTED

A, B = "env.PYTORCH_CUDA_ALLOC_CONF=", "env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@pytest.fixture(name="trial")
def _trial(make_cell, make_sweep, make_record, make_rank, make_spec):
    """A sweep of two cells: step time in seconds of each run, None for one out of memory."""

    def runs(value, seconds):
        spec = make_spec(env={"PYTORCH_CUDA_ALLOC_CONF": value})
        oom = make_rank(spec, 0, failure=Failure(kind="oom", message=FRAGMENTED))
        return [make_record(spec, seconds=s) if s else make_record(spec, status="oom", ranks=(oom,)) for s in seconds]

    def build(a, b):
        cells = [make_cell(A, runs("", a)), make_cell(B, runs("expandable_segments:True", b))]
        return ab_outcome(make_sweep(cells))

    return build


def test_a_out_of_memory_and_b_well_confirms_fragmentation(trial):
    found = trial([None], [2.5])
    assert (found.differs, found.confirmed) == (True, True)
    assert found.lines[2:] == (
        "A and B ended differently.",
        "1 of 1 runs without expandable segments ran out of memory, 0 of 1 with them: fragmentation is confirmed.",
    )


def test_both_well_differ_by_time_and_memory(trial):
    found = trial([2.0, 2.0, 2.2], [2.5, 2.5, 2.4])
    assert (found.differs, found.confirmed) == (False, None)
    assert found.lines[0] == f"A ({A}): 3 of 3 ended well, 2.000 s a step, peak 54.02 GiB"
    assert found.lines[2:] == (
        "A and B ended in the same way.",
        "B compared with A: +19.4 % step time (beyond the noise: the 95 % interval is +7.7 % to +31.0 %), the same peak.",
        "0 of 3 runs without expandable segments ran out of memory, 0 of 3 with them: without a failure the runs prove nothing.",
    )


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ([2.0, 2.2, 2.4], [2.3, 2.1, 2.3], "within the noise: the 95 % interval is"),
        ([[1.0, 1.2] * 25], [[1.0, 1.19] * 25], "within the noise: steps or runs of A or B vary by"),
        ([2.0], [3.0], "more than the known noise: steps or runs of A or B vary by 0.0 %; --repeats 3"),
    ],
)
def test_a_difference_is_compared_with_the_difference_of_equal_runs(trial, a, b, text):
    assert text in trial(a, b).lines[3]


def test_a_cell_that_did_not_run_leaves_no_conclusion(trial):
    assert trial([2.0], []).differs is None
