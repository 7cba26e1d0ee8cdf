"""A run of ours that ran out of memory has a class, by the words of its lowest rank that did."""

import pytest

from harness.failures.classify import expandable_segments
from harness.failures.of_run import oom_of_run
from harness.records.rank import Failure

FRAGMENTED = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.07 "
    "GiB is free. Including non-PyTorch memory, this process has 78.03 GiB memory in use. Of the allocated memory 54.02 GiB is "
    "allocated by PyTorch, and 20.41 GiB is reserved by PyTorch but unallocated."
)


@pytest.fixture(name="failed")
def _failed(make_spec, make_rank, make_record):
    """A run whose ranks failed as given, in a recorded environment."""

    def build(*failures, environment=None):
        spec = make_spec()
        ranks = tuple(make_rank(spec, rank, 1.0, failure=failure) for rank, failure in enumerate(failures))
        return make_record(spec, ranks=ranks, status="oom", provenance={"environment": environment or {}})

    return build


def test_the_lowest_rank_that_ran_out_of_memory_tells_the_class(failed):
    record = failed(Failure(kind="error", message="NCCL"), Failure(kind="oom", message=FRAGMENTED))
    oom = oom_of_run(record)
    assert (record.first_oom.rank, oom.oom_class, oom.confidence) == (1, "fragmentation", "high")


def test_expandable_segments_of_the_run_make_fragmentation_doubtful(failed):
    record = failed(
        Failure(kind="oom", message=FRAGMENTED), environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    )
    assert oom_of_run(record).confidence == "low"


def test_a_run_in_which_no_rank_ran_out_of_memory_has_no_class(failed):
    assert oom_of_run(failed(Failure(kind="error", message="CUDA error: device-side assert"))) is None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native, expandable_segments: true"}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}, False),
    ],
)
def test_the_name_that_torch_prefers_says_whether_segments_are_expandable(failed, environment, expected):
    assert expandable_segments(failed(environment=environment).provenance.environment) == expected
