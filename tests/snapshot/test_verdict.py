"""Why a request failed, from snapshots made by hand."""

import pytest

from harness.failures.verdict import OomVerdict
from harness.snapshot.child import summarise
from harness.snapshot.show import verdict
from harness.units import GIB
from tests.snapshot_pickles import MLP, Allocator, fragmented


def verdict_of(allocator: Allocator) -> OomVerdict | None:
    return verdict(summarise(allocator.snapshot(), file="a.pickle", file_bytes=1).devices[0])


@pytest.mark.parametrize(("is_expandable", "confidence"), [(False, "high"), (True, "low")])
def test_pieces_that_together_would_have_held_the_request_are_fragmentation(is_expandable: bool, confidence: str):
    allocator = fragmented(4 * GIB if is_expandable else 2 * GIB)
    for segment in allocator.segments:
        segment.is_expandable = is_expandable
    found = verdict_of(allocator)
    assert found is not None
    assert (found.oom_class, found.confidence) == ("fragmentation", confidence)


@pytest.mark.parametrize("is_freed", [False, True])
def test_a_device_full_of_live_memory_is_capacity_also_by_the_levels_of_then(is_freed: bool):
    allocator = Allocator()
    block = allocator.alloc(70 * GIB, MLP)
    allocator.oom(4 * GIB, 1 * GIB, MLP)
    if is_freed:
        allocator.free(block)
    found = verdict_of(allocator)
    assert found is not None
    assert (found.oom_class, found.confidence, found.request_bytes) == ("capacity", "high", 4 * GIB)


def test_memory_that_only_graphs_can_use_is_not_fragmentation():
    allocator = Allocator()
    allocator.alloc(40 * GIB, MLP)
    allocator.free(allocator.alloc(20 * GIB, MLP, pool=(0, 1)))
    allocator.oom(4 * GIB, 1 * GIB, MLP)
    found = verdict_of(allocator)
    assert found is not None
    assert (found.oom_class, found.confidence) == ("cuda_graph_pools", "high")
