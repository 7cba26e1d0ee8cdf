"""What is read out of snapshots made by hand, and why a request failed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.failures.verdict import OomVerdict
from harness.snapshot.child import summarise
from harness.snapshot.fields import SnapshotFormatError
from harness.snapshot.show import verdict
from harness.snapshot.values import DeviceMemory, by_module
from harness.units import GIB, MIB
from tests.snapshot_pickles import CORE_ATTN, MLP, WEIGHTS, Allocator, Block, fragmented, trained


def device_of(snapshot: object) -> DeviceMemory:
    return summarise(snapshot, file="a.pickle", file_bytes=1).devices[0]


def test_the_parts_sum_up_to_what_is_reserved():
    allocator = fragmented()
    allocator.free(allocator.alloc(30 * MIB, MLP), pending=True)
    allocator.alloc(5 * MIB, CORE_ATTN, pool=(0, 7))
    device = device_of(allocator.snapshot())
    parts = (
        device.allocated_bytes,
        device.pending_bytes,
        device.releasable_bytes,
        device.stranded_bytes,
        device.private_free_bytes,
    )
    assert sum(parts) == device.reserved_bytes
    assert min(parts[:2]) > 0 and device.private_free_bytes == 15 * MIB


def test_rounding_is_what_was_given_beyond_the_request():
    allocator = Allocator()
    allocator.alloc(1000, MLP)
    assert device_of(allocator.snapshot()).rounding_bytes == 24


def test_private_pools_are_listed_and_their_free_blocks_serve_nobody_else():
    allocator = Allocator()
    allocator.free(allocator.alloc(40 * MIB, MLP, pool=(0, 3)))
    allocator.alloc(1 * MIB, MLP)
    device = device_of(allocator.snapshot())
    assert device.private_reserved_bytes == 40 * MIB
    assert device.private_free_bytes == 40 * MIB
    assert device.largest_free_bytes == 1 * MIB


def test_an_expandable_segment_gives_back_whole_pages():
    allocator = Allocator()
    allocator.alloc(100 * MIB, MLP)
    segment = allocator.segments[0]
    segment.is_expandable = True
    block = segment.blocks[0]
    segment.blocks = [
        Block(block.address, 10 * MIB, 10 * MIB, block.state, MLP),
        Block(block.address + 10 * MIB, 90 * MIB),
    ]
    device = device_of({**allocator.snapshot(), "device_traces": []})
    assert (device.releasable_bytes, device.stranded_bytes) == (80 * MIB, 10 * MIB)


def test_holders_are_named_by_module():
    assert dict(by_module(device_of(trained(keeps_scores=True).snapshot()).holders)) == {
        "mlp (weights)": 8 * 64 * MIB, "optimizer": 8 * 128 * MIB
    }  # fmt: skip


@pytest.mark.parametrize("is_now", [True, False])
def test_a_history_without_its_frees_shows_only_a_failure_at_its_end(is_now: bool):
    allocator = trained()
    if is_now:
        allocator.oom(GIB, 0, MLP)
    snapshot = allocator.snapshot()
    trace = [e for e in snapshot["device_traces"][0] if not e["action"].startswith("free")]
    oom = {"action": "oom", "size": GIB, "device_free": 0}
    snapshot["device_traces"][0] = trace if is_now else [oom, *trace]
    device = device_of(snapshot)
    assert (device.failure is not None, "skip_actions" in device.history_problem) == (is_now, not is_now)


def test_what_failed_is_the_last_request_that_did():
    allocator = trained()
    allocator.oom(3 * GIB, 100 * MIB, MLP)
    allocator.oom(1 * GIB, 50 * MIB, MLP)
    device = device_of(allocator.snapshot())
    assert device.failure is not None
    assert (device.failure.request_bytes, device.failure.is_now) == (1 * GIB, True)
    assert device.failure.allocated_then_bytes == 8 * 192 * MIB


def test_memory_freed_after_the_failure_counts_as_held_then():
    allocator = Allocator()
    block = allocator.alloc(10 * GIB, MLP)
    allocator.oom(1 * GIB, 0, MLP)
    allocator.free(block)
    failure = device_of(allocator.snapshot()).failure
    assert failure is not None
    assert (failure.allocated_then_bytes, failure.is_now) == (10 * GIB, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segments": 3}, "TypeError"),
        ({"segments": [7]}, "AttributeError"),
        ({"segments": [{"address": 1, "total_size": -5}]}, "total_size is '-5'"),
        ({"segments": [{"address": 1, "total_size": 10**30}]}, "total_size is '10+'"),
        ({"segments": [{"address": 1, "total_size": 5, "blocks": [{"address": 1, "size": 9, "state": "inactive"}]}]}, "beyond its end"),
        ({"segments": [{"address": 1, "total_size": 5, "blocks": [{"address": 1, "size": 5, "state": "??"}]}]}, "state is"),
        ({"segments": [], "device_traces": [[{"action": "alloc"}]]}, "size is 'None'"),
        ({"segments": [], "device_traces": [[7]]}, "AttributeError"),
        ({}, "no 'segments'"),
    ],
)  # fmt: skip
def test_a_malformed_snapshot_is_refused_with_what_is_wrong(change: dict[str, object], message: str):
    with pytest.raises(SnapshotFormatError, match=message):
        summarise(change, file="a.pickle", file_bytes=1)


def test_text_of_a_snapshot_cannot_steer_a_terminal():
    allocator = Allocator()
    allocator.alloc(MIB, [{"filename": "/x/\x1b]0;owned\x07.py", "line": 3, "name": "f\n\ud800"}])
    (holder,) = device_of(allocator.snapshot()).holders
    assert holder.site.isprintable()
    assert holder.site.encode()


steps = st.lists(st.tuples(st.booleans(), st.integers(1, 40 * MIB), st.integers(0, 30)), min_size=1, max_size=80)


@given(steps, st.integers(0, 80))
def test_whatever_is_allocated_and_freed_the_sums_hold(moves: list[tuple[bool, int, int]], failed: int):
    allocator, live = Allocator(), list[Block]()
    held = reserved = None
    for number, (is_alloc, size, which) in enumerate(moves):
        if number == failed:
            held, reserved = sum(b.requested for b in live), sum(segment.size for segment in allocator.segments)
            allocator.oom(GIB, 0, MLP)
        if is_alloc or not live:
            live.append(allocator.alloc(size, (MLP, WEIGHTS, CORE_ATTN)[size % 3]))
        else:
            allocator.free(live.pop(which % len(live)))
    device = device_of(allocator.snapshot())
    assert device.reserved_bytes == sum(segment.size for segment in allocator.segments)
    allocated = sum(block.size for block in live)
    assert device.allocated_bytes == allocated == sum(holder.live_bytes for holder in device.holders)
    then = device.failure and (device.failure.allocated_then_bytes, device.failure.reserved_then_bytes)
    assert then == (None if held is None else (held, reserved))


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
