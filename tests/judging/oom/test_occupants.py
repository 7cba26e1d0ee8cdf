"""Who holds the memory of a full GPU, where torch lists processes and does not say which is its own."""

import pytest

from harness.judging.oom.allocator import Occupants, occupants
from harness.judging.oom.verdict import AllocatorFigures, ProcessMemory, threshold
from harness.units import GIB

TWO = (ProcessMemory(1, 30 * GIB), ProcessMemory(2, 10 * GIB))
# 40 GiB in use, all of it listed; this process's allocator holds 29 GiB of it.
FULL = {"total_bytes": 80 * GIB, "free_bytes": 40 * GIB, "allocated_bytes": 28 * GIB, "unallocated_bytes": 1 * GIB}


def test_the_process_just_above_its_allocator_is_this_one():
    found = occupants(AllocatorFigures(processes=TWO, **FULL))
    assert (found.recognised_pid, found.this_process_bytes, found.foreign_bytes) == (1, 30 * GIB, 10 * GIB)


@pytest.mark.parametrize("missing", ["total_bytes", "free_bytes", "allocated_bytes"])
def test_without_one_of_the_figures_no_process_is_recognised(missing):
    found = occupants(AllocatorFigures(processes=TWO, **FULL | {missing: None}))
    assert (found.recognised_pid, found.this_process_bytes, found.foreign_bytes) == (None, None, 40 * GIB)


@pytest.mark.parametrize(("spare", "recognised"), [(0, None), (-1, 1)])
def test_where_all_could_be_others_none_is_recognised(spare, recognised):
    """They and this process's 29 GiB fit into what is in use, to the rounding of the text."""
    in_use = 69 * GIB - round(threshold("rounding_bytes")) + spare
    figures = AllocatorFigures(processes=TWO, **FULL | {"free_bytes": 80 * GIB - in_use})
    assert occupants(figures).recognised_pid == recognised


@pytest.mark.parametrize(("below", "counted"), [(0, True), (1, False)])
def test_a_small_gap_is_the_drivers_own(below, counted):
    gap = round(threshold("foreign_bytes")) - below
    assert (Occupants(GIB, (ProcessMemory(3, None),), gap).foreign_bytes == gap) is counted


def test_rounding_is_two_hundredths_of_a_gib():
    assert threshold("rounding_bytes") == 0.02 * GIB
