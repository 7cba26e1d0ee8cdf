"""What stands in the picture of a snapshot's history."""

import json
from typing import Any

from harness.snapshot.chart import snapshot_timeline
from harness.snapshot.child import summarise
from harness.snapshot.values import DeviceMemory
from tests.snapshot_pickles import Allocator, trained


def device_of(allocator: Allocator) -> DeviceMemory:
    return summarise(allocator.snapshot(), file="a", file_bytes=1).devices[0]


def rows(picture: Any, key: str) -> list[dict[str, Any]]:
    datasets = json.loads(picture.vega_lite)["datasets"].values()
    return next(values for values in datasets if key in values[0])


def test_the_highest_point_drawn_is_the_peak():
    device = device_of(trained())
    assert device.levels is not None
    drawn = rows(snapshot_timeline((("a", device),)), "memory")
    highest = max(row["memory"] for row in drawn if row["kind"].startswith("allocated"))
    assert round(highest * 2**30) == device.levels.peak_allocated_bytes


def test_two_histories_lie_upon_each_other_from_their_beginnings():
    picture = snapshot_timeline((("a", device_of(trained())), ("b", device_of(trained(keeps_scores=True)))))
    drawn = rows(picture, "memory")
    assert {row["of"]: min(r["time"] for r in drawn if r["of"] == row["of"]) for row in drawn} == {"a": 0, "b": 0}
    assert "The phases are from a." in picture.caption


def test_a_phase_without_room_for_its_name_keeps_its_band():
    bands = rows(snapshot_timeline((("a", device_of(trained(num_steps=6))),)), "label")
    assert len(bands) == 18
    assert any(not band["label"] for band in bands)


def test_the_one_without_a_history_is_named():
    bare = device_of(trained()).model_copy(update={"levels": None})
    picture = snapshot_timeline((("a", bare), ("b", device_of(trained()))))
    assert "not drawn: a" in picture.caption
