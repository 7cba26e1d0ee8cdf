"""Arbitrary texts, and texts of torch cut, shuffled and glued: always a verdict, and never a number that is not there."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.failures.allocator import EIB, allocator_figures
from harness.failures.classify import Ending, classify
from harness.failures.verdict import table

SIZES = st.sampled_from(
    ["0 bytes", "512 bytes", "896.00 KiB", "2.31 GiB", "79.11 GiB", "17179869184.00 GiB", "9" * 25 + " GiB", "-1 GiB"]
)
WORDS = st.sampled_from([
    "CUDA out of memory. ", "Tried to allocate ", "more than 1EB memory.", "GPU 0 has a total capacity of ", "capacty of ",
    " of which ", " is free. ", "Process 42 has ", " memory in use. ", "Including non-PyTorch memory, this process has ",
    " allowed; ", "Of the allocated memory ", " is allocated by PyTorch, ", "with ", " allocated in private pools (e.g., CUDA Graphs), ",
    "and ", " is reserved by PyTorch but unallocated.", " already allocated; ", " reserved in total by PyTorch", "(GPU 1; ",
    "Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: ",
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate ", "Failed to CUDA calloc async ", "MemoryError", "\n",
    "Traceback (most recent call last):", 'File "a/schedules.py", line 3, in forward_step', "ValueError: x", "exitcode  : -9 (pid: 7)",
    "rank      : 3 (local_rank: 3)", "time      : 2026-08-21_14:03:30", "Root Cause (first observed failure):", "=====",
    "Connection closed by peer", "srun: error: task 1: Killed", "iteration 7/ 9 |", "[E0821 14:03:30.1 x]",
])  # fmt: skip
TEXTS = st.lists(st.one_of(WORDS, SIZES, st.text(max_size=12)), max_size=40).map("".join)
ENDINGS = st.builds(
    Ending,
    exit_code=st.none() | st.integers(-70, 260),
    expandable_segments=st.none() | st.booleans(),
)  # fmt: skip


def judged_whole(text, ending):
    verdict = classify(text, ending)
    assert verdict.oom_class in table()["advice"]
    assert verdict.confidence in ("high", "medium", "low")
    assert verdict.reason
    figures = allocator_figures(text)
    numbers = [] if figures is None else [figures.tried_bytes, figures.total_bytes, figures.free_bytes, figures.allocated_bytes,
                                         figures.unallocated_bytes, figures.private_pool_bytes]  # fmt: skip
    assert all(number is None or 0 <= number < EIB for number in numbers)


@pytest.mark.slow
@settings(max_examples=300)
@given(TEXTS, ENDINGS)
def test_every_text_has_a_verdict(text, ending):
    judged_whole(text, ending)
