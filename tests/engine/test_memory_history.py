"""When the allocator's history is recorded and written. The allocator is a stand-in: torch's needs a GPU."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.snapshot.reading import snapshot_summary
from harness.units import MIB
from tests.snapshot_pickles import MLP, Allocator, written

pytestmark = pytest.mark.train


class StandIn:
    """Takes what `torch.cuda.memory` takes, and writes the snapshot of an allocator made by hand."""

    def __init__(self):
        self.allocator = Allocator()
        self.calls: list[object] = []

    def _record_memory_history_impl(self, enabled="all", *, global_record_annotations=False):
        """Only its signature is looked at."""

    def _record_memory_history(self, **asked):
        self.calls.append(asked)

    def _dump_snapshot(self, filename):
        self.calls.append("dump")
        written(Path(filename), self.allocator.snapshot())


def test_one_step_is_recorded_written_and_no_more(tmp_path):
    from harness.engine.memory import MAX_ENTRIES, recorded_step

    memory = StandIn()

    with recorded_step(tmp_path / "snapshot_000.pickle", memory) as on_phase:
        on_phase("forward_backward")
        memory.calls.append("step")
        memory.allocator.alloc(5 * MIB, MLP)
        on_phase("optimizer_step")
    asked = {"max_entries": MAX_ENTRIES, "stacks": "python", "global_record_annotations": True}
    assert memory.calls == [asked, "step", "dump", {"enabled": None}]
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot_000.pickle"]
    assert snapshot_summary(tmp_path / "snapshot_000.pickle").devices[0].allocated_bytes == 5 * MIB


def test_every_failed_request_leaves_the_snapshot_of_its_moment(tmp_path):
    from harness.engine.memory import record_until_out_of_memory

    memory, observers = StandIn(), list[Callable[..., None]]()
    path = tmp_path / "snapshot_003.pickle"
    record_until_out_of_memory(path, memory, observers.append)
    assert not path.exists()
    for request in (3 * MIB, 7 * MIB):
        memory.allocator.oom(request, 0, MLP)
        observers[0](0, request, 80 * MIB, 0)
    (device,) = snapshot_summary(path).devices
    assert device.failure is not None
    assert device.failure.request_bytes == 7 * MIB


def test_torch_takes_what_it_is_asked_for():
    import inspect

    import torch

    parameters = inspect.signature(torch.cuda.memory._record_memory_history_impl).parameters
    assert {"enabled", "max_entries", "stacks"} <= set(parameters)
