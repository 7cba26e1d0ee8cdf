"""What is read out of snapshots made by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.snapshot.child import summarise
from harness.snapshot.fields import SnapshotFormatError
from harness.snapshot.values import DeviceMemory
from harness.units import GIB, MIB
from tests.snapshot_pickles import CORE_ATTN, MLP, WEIGHTS, Allocator, Block, fragmented, trained


def device_of(snapshot: object) -> DeviceMemory:
    return summarise(snapshot, file="a.pickle", file_bytes=1).devices[0]


def test_a_block_beside_a_live_one_is_stranded_and_a_segment_of_its_own_is_releasable():
    allocator = Allocator()
    allocator.alloc(8 * MIB, MLP)
    allocator.free(allocator.alloc(40 * MIB, MLP))
    device = device_of(allocator.snapshot())
    assert (device.allocated_bytes, device.stranded_bytes, device.releasable_bytes) == (8 * MIB, 12 * MIB, 40 * MIB)
    assert device.largest_free_bytes == 40 * MIB


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


@pytest.mark.parametrize("state", ["active_pending_free", "active_awaiting_free"])
def test_both_spellings_of_a_pending_block_are_known(state: str):
    allocator = Allocator()
    allocator.alloc(30 * MIB, MLP).state = state
    device = device_of(allocator.snapshot())
    assert (device.pending_bytes, device.allocated_bytes) == (30 * MIB, 0)


def test_rounding_is_what_was_given_beyond_the_request():
    allocator = Allocator()
    allocator.alloc(1000, MLP)
    assert device_of(allocator.snapshot()).rounding_bytes == 24


def test_a_snapshot_without_requested_sizes_says_nothing_of_rounding():
    allocator = Allocator()
    allocator.alloc(1000, MLP)
    snapshot = allocator.snapshot()
    del snapshot["segments"][0]["blocks"][0]["requested_size"]
    assert device_of(snapshot).rounding_bytes is None


def test_private_pools_are_listed_and_their_free_blocks_serve_nobody_else():
    allocator = Allocator()
    allocator.free(allocator.alloc(40 * MIB, MLP, pool=(0, 3)))
    allocator.alloc(1 * MIB, MLP)
    device = device_of(allocator.snapshot())
    assert [(p.pool, p.reserved_bytes, p.allocated_bytes) for p in device.private_pools] == [("(0, 3)", 40 * MIB, 0)]
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


def test_holders_at_the_peak_are_named_by_module():
    device = device_of(trained(keeps_scores=True).snapshot())
    at_peak: dict[str, int] = {}
    for holder in device.holders:
        at_peak[holder.module] = at_peak.get(holder.module, 0) + (holder.peak_bytes or 0)
    assert at_peak == {
        "mlp (weights)": 8 * 64 * MIB, "optimizer": 8 * 128 * MIB, "core_attn": 8 * 48 * MIB,
        "mlp": (8 * 144 + 96) * MIB,  # with the first gradient of the backward pass
    }  # fmt: skip
    assert device.levels is not None
    assert sum(at_peak.values()) == device.levels.peak_allocated_bytes


def test_a_ring_that_lost_its_beginning_still_ends_at_what_is_there():
    snapshot = trained().snapshot()
    whole = device_of(snapshot)
    snapshot["device_traces"][0] = snapshot["device_traces"][0][60:]  # weights and states stood before
    cut = device_of(snapshot)
    assert cut.levels is not None and whole.levels is not None
    assert cut.levels.peak_allocated_bytes == whole.levels.peak_allocated_bytes
    assert cut.levels.allocated_bytes[-1] == whole.levels.allocated_bytes[-1]
    assert sum(holder.peak_bytes or 0 for holder in cut.holders) == cut.levels.peak_allocated_bytes


def test_a_history_without_its_frees_is_not_taken_for_levels():
    snapshot = trained().snapshot()
    snapshot["device_traces"][0] = [e for e in snapshot["device_traces"][0] if not e["action"].startswith("free")]
    device = device_of(snapshot)
    assert device.levels is None
    assert "skip_actions" in device.history_problem
    assert all(holder.peak_bytes is None for holder in device.holders)
    assert device.failure is None


@pytest.mark.parametrize("is_now", [True, False])
def test_a_history_without_frees_reports_only_a_failure_at_its_end(is_now: bool):
    oom = {"action": "oom", "addr": 0, "size": GIB, "device_free": 0, "stream": 0, "frames": []}
    snapshot = events(("alloc", 1, MIB), ("alloc", 2, MIB))
    snapshot["device_traces"][0].insert(2 if is_now else 0, oom)
    device = device_of(snapshot)
    assert (device.levels, device.failure is not None) == (None, is_now)


def test_phases_are_spans_since_the_history_begins():
    device = device_of(trained(num_steps=1).snapshot())
    assert device.levels is not None
    assert [phase.name for phase in device.levels.phases] == ["step 0 forward", "step 0 backward", "step 0 optimizer"]
    assert all(phase.start_s < phase.end_s for phase in device.levels.phases)


def test_annotations_among_the_events_are_phases_too():
    snapshot = trained(num_steps=1).snapshot()
    younger = device_of(snapshot).levels
    for annotation in snapshot.pop("external_annotations"):
        frames = [{"name": annotation["stage"], "filename": annotation["name"], "line": 0}]
        event = {
            "action": "user_defined",
            "addr": 0,
            "size": 0,
            "stream": 0,
            "time_us": annotation["time_us"],
            "frames": frames,
        }
        snapshot["device_traces"][0].append(event)
    snapshot["device_traces"][0].sort(key=lambda event: event["time_us"])
    older = device_of(snapshot).levels
    assert younger is not None and older is not None
    assert [phase.name for phase in older.phases] == [phase.name for phase in younger.phases]


def test_events_without_times_are_counted_instead():
    snapshot = trained().snapshot()
    for entry in snapshot["device_traces"][0]:
        del entry["time_us"]
    levels = device_of(snapshot).levels
    assert levels is not None
    assert (levels.clock, levels.phases) == ("events", ())


def test_what_failed_is_the_last_request_that_did():
    allocator = trained()
    allocator.oom(3 * GIB, 100 * MIB, MLP)
    allocator.oom(1 * GIB, 50 * MIB, MLP)
    device = device_of(allocator.snapshot())
    assert device.failure is not None
    assert (device.failure.request_bytes, device.num_failures, device.failure.is_now) == (1 * GIB, 2, True)
    assert device.failure.allocated_then_bytes == 8 * 192 * MIB


def test_memory_freed_after_the_failure_counts_as_held_then():
    allocator = Allocator()
    block = allocator.alloc(10 * GIB, MLP)
    allocator.oom(1 * GIB, 0, MLP)
    allocator.free(block)
    failure = device_of(allocator.snapshot()).failure
    assert failure is not None
    assert (failure.allocated_then_bytes, failure.is_now) == (10 * GIB, False)


def events(*entries: tuple[str, int, int], times: tuple[int, ...] = ()) -> dict[str, Any]:
    """A snapshot of nothing allocated whose history is these (action, address, bytes), a microsecond apart."""
    clock = times or range(len(entries))
    history = [
        {"action": action, "addr": address, "size": size, "stream": 0, "frames": [], "time_us": time}
        for (action, address, size), time in zip(entries, clock, strict=True)
    ]
    return {"segments": [], "device_traces": [history]}


def test_a_history_without_time_between_its_events_counts_them():
    pair = ("alloc", 1, MIB), ("free_requested", 1, MIB)
    clocks = [device_of(events(*pair, times=times)).levels for times in ((5, 5), (5, 9))]
    assert [levels and (levels.clock, levels.interval) for levels in clocks] == [("events", 1.0), ("s", 2e-6)]


def test_sizes_that_sum_up_to_more_than_any_device_has_are_refused():
    def pair(size: int) -> dict[str, Any]:
        return events(*(("alloc", n, size) for n in (1, 2)), *(("free_requested", n, size) for n in (1, 2)))

    assert device_of(pair(2**61 - 1)).levels is not None
    with pytest.raises(SnapshotFormatError, match="more than any device has"):
        device_of(pair(2**61))


def test_what_was_freed_by_the_event_at_the_peak_is_not_held_there():
    device = device_of(
        events(("free_requested", 1, 4 * MIB), ("free_completed", 1, 4 * MIB), ("free_requested", 2, MIB))
    )
    assert [(holder.module, holder.peak_bytes) for holder in device.holders] == [("before the history", MIB)]


def test_a_block_allocated_by_the_event_at_the_peak_is_held_there_and_a_later_one_is_not():
    made = ("alloc", 1, 4 * MIB), ("free_requested", 1, 4 * MIB), ("alloc", 2, MIB), ("free_requested", 2, MIB)
    device = device_of(events(*made))
    assert [holder.peak_bytes for holder in device.holders] == [4 * MIB]


@pytest.mark.parametrize(
    ("begin", "end", "inside"),
    [
        (10, 20, (0.0, 10e-6)),
        (20, 30, None),
        (19, 30, (9e-6, 10e-6)),
        (1, 10, None),
        (1, 11, (0.0, 1e-6)),
        (12, 17, (2e-6, 7e-6)),
    ],
)
def test_a_phase_is_placed_within_the_history(begin: int, end: int, inside: tuple[float, float] | None):
    snapshot = events(("alloc", 1, MIB), ("free_requested", 1, MIB), times=(10, 20))
    snapshot["external_annotations"] = [
        {"stage": stage, "name": "forward", "device": 0, "time_us": time}
        for stage, time in (("START", begin), ("END", end))
    ]
    levels = device_of(snapshot).levels
    assert levels is not None
    assert [(phase.start_s, phase.end_s) for phase in levels.phases] == ([inside] if inside else [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segments": 3}, "segments is 3, expected a list"),
        ({"segments": [7]}, r"segments\[0\] is 7, expected a dict"),
        ({"segments": [{"address": 1, "total_size": -5}]}, r"segments\[0\].total_size is -5"),
        ({"segments": [{"address": 1, "total_size": 10**30}]}, "a number that is far too large"),
        ({"segments": [{"address": 1, "total_size": 5, "blocks": [{"size": 9, "state": "inactive"}]}]}, "beyond its end"),
        ({"segments": [{"address": 1, "total_size": 5, "blocks": [{"size": 5, "state": "??"}]}]}, r"blocks\[0\].state is"),
        ({"segments": [], "device_traces": [[{"action": "alloc"}]]}, r"device_traces\[0\]\[0\].size is absent"),
        ({}, "no 'segments'"),
    ],
)  # fmt: skip
def test_a_malformed_snapshot_is_refused_with_its_place(change: dict[str, object], message: str):
    with pytest.raises(SnapshotFormatError, match=message):
        summarise(change, file="a.pickle", file_bytes=1)


def test_text_of_a_snapshot_cannot_steer_a_terminal():
    allocator = Allocator()
    allocator.alloc(MIB, [{"filename": "/x/\x1b]0;owned\x07.py", "line": 3, "name": "f\n\ud800"}])
    (holder,) = device_of(allocator.snapshot()).holders
    assert holder.site.isprintable()
    assert holder.site.encode()


steps = st.lists(st.tuples(st.booleans(), st.integers(1, 40 * MIB), st.integers(0, 30)), min_size=1, max_size=80)


@given(steps, st.integers(0, 40))
def test_whatever_is_allocated_and_freed_the_sums_hold(moves: list[tuple[bool, int, int]], lost: int):
    allocator, live = Allocator(), list[Block]()
    for is_alloc, size, which in moves:
        if is_alloc or not live:
            live.append(allocator.alloc(size, (MLP, WEIGHTS, CORE_ATTN)[size % 3]))
        else:
            allocator.free(live.pop(which % len(live)))
    snapshot = allocator.snapshot()
    snapshot["device_traces"][0] = snapshot["device_traces"][0][lost:]
    device = device_of(snapshot)
    assert device.reserved_bytes == sum(segment.size for segment in allocator.segments)
    assert (
        device.allocated_bytes
        == sum(block.size for block in live)
        == sum(holder.live_bytes for holder in device.holders)
    )
    if device.levels is not None:
        assert device.levels.peak_allocated_bytes == sum(holder.peak_bytes or 0 for holder in device.holders)
        assert device.levels.allocated_bytes[-1] >= sum(block.requested for block in live)
