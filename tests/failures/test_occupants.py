"""Who holds the memory of a full GPU, where torch lists processes and does not say which is its own; exact edges of verdicts."""

import pytest

from harness.failures.allocator import Occupants, judged, occupants
from harness.failures.verdict import THRESHOLDS, AllocatorFigures, ProcessMemory
from harness.units import GIB

TWO = (ProcessMemory(1, 30 * GIB), ProcessMemory(2, 10 * GIB))
# 40 GiB in use, all of it listed; this process's allocator holds 29 GiB of it.
FULL = {"total_bytes": 80 * GIB, "free_bytes": 40 * GIB, "allocated_bytes": 28 * GIB, "unallocated_bytes": 1 * GIB}


def test_the_process_just_above_its_allocator_is_this_one():
    found = occupants(AllocatorFigures(processes=TWO, **FULL))
    assert (found.this_process_bytes, found.foreign_bytes) == (30 * GIB, 10 * GIB)


@pytest.mark.parametrize(("spare", "recognised"), [(0, None), (-1, 30 * GIB)])
def test_where_all_could_be_others_none_is_recognised(spare, recognised):
    """They and this process's 29 GiB fit into what is in use, to the rounding of the text."""
    in_use = 69 * GIB - round(THRESHOLDS["rounding_bytes"]) + spare
    figures = AllocatorFigures(processes=TWO, **FULL | {"free_bytes": 80 * GIB - in_use})
    assert occupants(figures).this_process_bytes == recognised


@pytest.mark.parametrize(("below", "counted"), [(0, True), (1, False)])
def test_a_small_gap_is_the_drivers_own(below, counted):
    gap = round(THRESHOLDS["foreign_bytes"]) - below
    assert (Occupants(GIB, (ProcessMemory(3, None),), gap).foreign_bytes == gap) is counted


CARD = 100 * GIB  # of which a share in percent is a whole number of GiB
ROUNDING, FOREIGN, OUTSIDE = (round(THRESHOLDS[name]) for name in ("rounding_bytes", "foreign_bytes", "outside_bytes"))
UNNAMED = {"total_bytes": CARD, "free_bytes": 2 * GIB, "allocated_bytes": 40 * GIB, "unallocated_bytes": GIB}
IN_PIECES = {"total_bytes": CARD, "free_bytes": GIB, "allocated_bytes": 90 * GIB}
ROOMY = {"total_bytes": CARD, "free_bytes": GIB, "allocated_bytes": 85 * GIB}


@pytest.mark.parametrize(
    ("figures", "at_the_edge", "beyond"),
    [
        ({"total_bytes": CARD, "tried_bytes": CARD}, ("capacity", "low"), ("bad_size", "medium", "tried_bytes", 1)),
        ({"total_bytes": CARD, "tried_bytes": 2 * CARD}, ("bad_size", "medium"), ("bad_size", "high", "tried_bytes", 1)),
        ({"allowed_bytes": 30 * GIB, "tried_bytes": GIB, "allocated_bytes": 29 * GIB - ROUNDING - 1, "unallocated_bytes": 0},
         ("capacity", "low"), ("self_imposed_limit", "high", "tried_bytes", 1)),
        ({"total_bytes": CARD, "free_bytes": GIB, "this_process_bytes": 98 * GIB, "processes": (ProcessMemory(7, FOREIGN),),
          "tried_bytes": GIB + FOREIGN, "allocated_bytes": 94 * GIB, "unallocated_bytes": 0},
         ("other_process", "high"), ("capacity", "high", "tried_bytes", 1)),
        ({"total_bytes": CARD, "free_bytes": GIB, "this_process_bytes": 90 * GIB, "processes": (ProcessMemory(7, 9 * GIB),),
          "tried_bytes": 9 * GIB, "allocated_bytes": 80 * GIB, "unallocated_bytes": 9 * GIB},
         ("other_process", "medium"), ("other_process", "high", "tried_bytes", 1)),
        (UNNAMED | {"tried_bytes": 2 * GIB + 57 * GIB}, ("other_process", "medium"),
         ("outside_allocator", "low", "tried_bytes", 1)),
        (UNNAMED | {"tried_bytes": 3 * GIB, "allocated_bytes": 48 * GIB}, ("outside_allocator", "low"),
         ("other_process", "medium", "allocated_bytes", -1)),
        ({"total_bytes": 50 * GIB, "free_bytes": 49 * GIB - OUTSIDE, "allocated_bytes": GIB, "unallocated_bytes": 0,
          "tried_bytes": 48 * GIB}, ("other_process", "medium"), ("capacity", "medium", "allocated_bytes", 1)),
        (IN_PIECES | {"unallocated_bytes": 6 * GIB, "tried_bytes": 4 * GIB}, ("capacity", "high"),
         ("fragmentation", "medium", "allocated_bytes", -1)),
        (ROOMY | {"unallocated_bytes": 6 * GIB, "tried_bytes": 6 * GIB}, ("fragmentation", "medium"),
         ("outside_allocator", "low", "tried_bytes", 1)),
        (ROOMY | {"unallocated_bytes": 5 * GIB, "tried_bytes": GIB}, ("fragmentation", "medium"),
         ("outside_allocator", "low", "unallocated_bytes", -1)),
        (ROOMY | {"unallocated_bytes": 10 * GIB, "tried_bytes": 10 * GIB}, ("fragmentation", "high"),
         ("capacity", "high", "tried_bytes", 1)),
        (ROOMY | {"unallocated_bytes": 10 * GIB, "tried_bytes": 4 * GIB}, ("fragmentation", "high"),
         ("fragmentation", "medium", "unallocated_bytes", -1)),
        (IN_PIECES | {"private_pool_bytes": 6 * GIB, "tried_bytes": 6 * GIB}, ("cuda_graph_pools", "medium"),
         ("capacity", "high", "tried_bytes", 1)),
        (IN_PIECES | {"private_pool_bytes": 5 * GIB, "tried_bytes": 2 * GIB}, ("cuda_graph_pools", "medium"),
         ("capacity", "high", "private_pool_bytes", -1)),
        (IN_PIECES | {"private_pool_bytes": 10 * GIB, "tried_bytes": 2 * GIB}, ("cuda_graph_pools", "high"),
         ("cuda_graph_pools", "medium", "private_pool_bytes", -1)),
        ({"total_bytes": 30 * GIB, "free_bytes": 0, "allocated_bytes": 30 * GIB - OUTSIDE, "unallocated_bytes": 0,
          "tried_bytes": GIB}, ("outside_allocator", "low"), ("capacity", "high", "allocated_bytes", 1)),
        ({"total_bytes": CARD, "allocated_bytes": 80 * GIB}, ("capacity", "high"),
         ("capacity", "medium", "allocated_bytes", -1)),
    ],
)  # fmt: skip
def test_a_verdict_changes_at_its_threshold_and_not_a_byte_before(figures, at_the_edge, beyond):
    *other, name, step = beyond
    for given, expected in ((figures, at_the_edge), (figures | {name: figures[name] + step}, tuple(other))):
        found = judged(AllocatorFigures(**given), expandable_segments=False)
        assert (found.oom_class, found.confidence) == expected, found.reason
