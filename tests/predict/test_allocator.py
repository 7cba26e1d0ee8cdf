"""The replay of torch's caching allocator answers as torch 2.11's own did, on recorded sequences; wrong rules are seen."""

from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from harness.predict import allocator
from harness.predict.allocator_blocks import Device
from harness.predict.allocator_replay import replayed, sought
from harness.predict.allocator_settings import settings_of
from tests.scripted_cuda.allocator_sequences import DEVICE_BYTES, SETTINGS, played, read_answers, suite


class Replay:
    """The replay, as a side of the sequences: from a device whose addresses begin at 0."""

    def __init__(self, settings: str, module: ModuleType = allocator):
        device = Device(limit_bytes=DEVICE_BYTES, total_bytes=DEVICE_BYTES, next_address=0)
        self.allocator, self.refused = module.Allocator(settings_of(settings), device), module.OutOfDeviceMemoryError
        self.done = 0
        self.free, self.uses, self.empty = self.allocator.free, self.allocator.record_stream, self.allocator.empty_cache
        self.begin, self.end, self.release = (
            self.allocator.begin_pool,
            self.allocator.end_pool,
            self.allocator.release_pool,
        )
        self.segments, self.address = self.allocator.segments, int
        self.behind(0)

    def alloc(self, num_bytes, stream):
        try:
            return self.allocator.malloc(num_bytes, stream)
        except self.refused:
            return None

    def behind(self, events):
        self.done = max(self.done, self.allocator.num_events - events)
        self.allocator.complete(self.done)

    def limit(self, num_bytes):
        device = self.allocator.device
        device.limit_bytes = device.total_bytes = num_bytes

    def totals(self):
        return self.allocator.reserved, self.allocator.allocated, self.allocator.active

    def peaks(self):
        a = self.allocator
        found = [a.peak_reserved, a.peak_allocated, a.num_retries]
        a.peak_reserved, a.peak_allocated, a.num_retries = a.reserved, a.allocated, 0
        return found


def differing(name, module=allocator):
    """Return the first sequence that the replay answers otherwise than torch, and the first such request of it."""
    told, side = read_answers(name), Replay(SETTINGS[name], module)
    for label, operations in suite(SETTINGS[name]).items():
        mine, real = played(side, operations, 0), told["sequences"][label]
        if mine["requests"] != real["requests"]:
            pairs = zip(zip(*mine["requests"], strict=True), zip(*real["requests"], strict=True), strict=True)
            return label, next((i, a, b) for i, (a, b) in enumerate(pairs) if a != b)
        if (mine["segments"], mine["peaks"]) != (real["segments"], real["peaks"]):
            return label, "segments or peaks"
    return None


@pytest.mark.parametrize("name", SETTINGS)
def test_every_address_total_and_block_is_torchs(name):
    assert differing(name) is None


def mutated(right, wrong):
    """Return the allocator with one rule changed."""
    source = Path(allocator.__file__).read_text()
    assert source.count(right) == 1
    module = ModuleType("mutated")
    exec(compile(source.replace(right, wrong), "mutated", "exec"), module.__dict__)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong", "seen_by"),
    [
        ("if rest and", "if rest > 512 and", "native"),
        ("rest > SMALL_BYTES", "rest >= SMALL_BYTES", "native"),
        ("size > SMALL_BYTES", "size >= SMALL_BYTES", "native"),
        ("if use not in block.captured_uses", "if use", "native"),
        ("            self._insert_events(block)\n            if not", "            if not", "native"),
        ("events[0][0] <= num_done", "events[0][0] < num_done", "native"),
        ("and not self._captures:\n            self._process", "and True:\n            self._process", "native"),
        ("if block is None and not self._captures:", "if block is None:", "native"),
        ("items() if not count", "items()", "native"),
        ("size < self._max_split_bytes)", "size <= self._max_split_bytes)", "max_split_128"),
        ("if size < most <= found", "if size <= most <= found", "max_split_128"),
        (">= size + self.settings.max_non", "> size + self.settings.max_non", "max_split_64_rounding_40"),
        ("if released >= wanted or", "if", "max_split_128"),
        ("age >= mean_age", "age > mean_age", "gc_0.3_of_0.6"),
        ("(pool.num_calls - block.age for block in whole)", "(1 for block in whole)", "gc_0.3_of_0.6"),
        ("[0] < reach and (further := free[at + 1][2].reach_bytes) <", "[0] < found and (further := free[at + 1][2].reach_bytes) <", "expandable"),
        ("gap.before if gap.before and not gap.before.is_busy else gap", "gap", "expandable"),
        ("9 // 8", "1", "expandable"),
        ("if not block.expandable:\n                released", "if True:\n                released", "expandable_max_split_128"),
        ("last = (end - base) // page * page + base", "last = end", "expandable"),
    ],
)  # fmt: skip
def test_a_wrong_rule_is_seen(right, wrong, seen_by):
    with suppress(LookupError, ValueError):  # some even break the lists of blocks
        assert differing(seen_by, mutated(right, wrong)) is not None


def test_the_smallest_device_is_found_where_a_memory_fraction_keeps_it_from_growing():
    events = [
        (5, 190366945, 1), (8, 190230724, 0), (10, 119488385, 1), (10, None, 0), (12, 512, 0), (13, 24689470, 0),
        (8, None, 0), (5, None, 0), (20, 1048576, 0), (21, 112758932, 1), (22, 1048576, 0), (13, None, 0),
        (29, 59700937, 0), (30, 33388752, 0), (32, 65007908, 0), (33, 195610989, 1), (35, 84299854, 0), (35, None, 0),
        (36, 3145728, 0), (30, None, 0), (45, 127404881, 1),
    ]  # fmt: skip
    settings = settings_of("per_process_memory_fraction:0.6,garbage_collection_threshold:0.8")
    free, found = sought(events, settings, 1 << 30)
    assert free == replayed(events, settings, total_bytes=1 << 30)
    assert free.peak_allocated_bytes < found <= free.peak_reserved_bytes
    assert replayed(events, settings, found, 1 << 30).failed is None
