"""Why a request failed, from snapshots made by hand."""

from harness.failures.verdict import OomVerdict
from harness.snapshot.child import summarise
from harness.snapshot.judge import verdict
from harness.units import GIB, MIB
from tests.snapshot_pickles import MLP, Allocator, fragmented


def verdict_of(allocator: Allocator) -> OomVerdict | None:
    return verdict(summarise(allocator.snapshot(), file="a.pickle", file_bytes=1).devices[0])


def test_pieces_that_together_would_have_held_the_request_are_fragmentation():
    found = verdict_of(fragmented())
    assert found is not None
    assert (found.oom_class, found.confidence, found.request_bytes) == ("fragmentation", "high", 2 * GIB)
    assert "the largest free block 22.00 MiB" in found.reason


def test_with_expandable_segments_fragmentation_is_hardly_believed():
    allocator = fragmented(4 * GIB)
    for segment in allocator.segments:
        segment.is_expandable = True
    found = verdict_of(allocator)
    assert found is not None
    assert (found.oom_class, found.confidence) == ("fragmentation", "low")


def test_a_device_full_of_live_memory_is_capacity():
    allocator = Allocator()
    allocator.alloc(70 * GIB, MLP)
    allocator.oom(4 * GIB, 1 * GIB, MLP)
    found = verdict_of(allocator)
    assert found is not None
    assert (found.oom_class, found.confidence) == ("capacity", "high")


def test_memory_that_only_graphs_can_use_is_not_fragmentation():
    allocator = Allocator()
    allocator.alloc(40 * GIB, MLP)
    allocator.free(allocator.alloc(20 * GIB, MLP, pool=(0, 1)))
    allocator.oom(4 * GIB, 1 * GIB, MLP)
    found = verdict_of(allocator)
    assert found is not None
    assert (found.oom_class, found.confidence) == ("cuda_graph_pools", "high")


def test_a_snapshot_taken_after_the_failure_unwound_is_judged_by_the_levels_of_then():
    allocator = Allocator()
    block = allocator.alloc(70 * GIB, MLP)
    allocator.oom(4 * GIB, 1 * GIB, MLP)
    allocator.free(block)
    found = verdict_of(allocator)
    assert found is not None
    assert found.oom_class == "capacity"


def test_without_a_failed_request_there_is_no_verdict():
    allocator = Allocator()
    allocator.alloc(512 * MIB, MLP)
    assert verdict_of(allocator) is None
