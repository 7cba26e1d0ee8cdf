"""Reads the requests that failed from the recorded events of a device."""

from collections.abc import Sequence
from typing import Any

from harness.snapshot.blocks import Blocks
from harness.snapshot.fields import size
from harness.snapshot.values import FailedRequest

RESERVING = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_INCOMPLETE = "its history does not add up to the allocated memory: some kinds of events are missing (skip_actions)"


def last_failure(entries: Sequence[Any], blocks: Blocks) -> tuple[FailedRequest | None, int, str]:
    """Return the last request that failed, the number of failed requests, and why the levels then are unknown.

    The levels of that moment are those of ``blocks``, the end of the history, less every later event.
    """
    is_asked = any(entry.get("action") == "free_requested" for entry in entries)
    changes = {"alloc": 1, "free_requested" if is_asked else "free_completed": -1}
    found: FailedRequest | None = None
    allocated, reserved, is_now, num_failures = blocks.as_requested, blocks.reserved_bytes, True, 0
    for entry in reversed(entries):
        action = entry["action"]
        if action == "oom":
            num_failures += 1
            found = found or FailedRequest(
                request_bytes=size(entry, "size"),
                device_free_bytes=None if entry.get("device_free") is None else size(entry, "device_free"),
                allocated_then_bytes=allocated,
                reserved_then_bytes=reserved,
                is_now=is_now,
            )
        elif found is None:
            is_now = is_now and action not in (*changes, *RESERVING, "free_completed")
            allocated -= changes[action] * size(entry, "size") if action in changes else 0
            reserved -= RESERVING[action] * size(entry, "size") if action in RESERVING else 0
    if found is not None and min(allocated, reserved) < 0:
        return None, num_failures, _INCOMPLETE
    return found, num_failures, ""
