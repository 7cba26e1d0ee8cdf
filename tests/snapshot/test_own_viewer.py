"""Snapshots made by hand are such as torch's own tools read: the same files, the same sums."""

import pytest

from harness.snapshot.child import summarise
from tests.snapshot_pickles import fragmented, trained

pytestmark = pytest.mark.train


@pytest.mark.parametrize("allocator", [trained(), trained(keeps_scores=True), fragmented()])
def test_torch_counts_the_same_bytes(allocator: object):
    from torch.cuda._memory_viz import calc_active, trace_plot

    snapshot = allocator.snapshot()  # type: ignore[attr-defined]
    (device,) = summarise(snapshot, file="a", file_bytes=1).devices
    segments = snapshot["segments"]
    assert sum(calc_active(segment) for segment in segments) == device.allocated_bytes + device.pending_bytes
    assert sum(segment["total_size"] for segment in segments) == device.reserved_bytes
    assert "html" in trace_plot(snapshot).lower()
