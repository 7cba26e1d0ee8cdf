"""Writes the first steps of a plan's fullest rank: for Perfetto, or as a snapshot that torch's memory_viz opens."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

from harness.errors import os_errors_reported
from harness.experiment.experiment import ExperimentSpec
from harness.predict.allocator_blocks import Segment
from harness.predict.allocator_settings import SMALL_BYTES, settings_of
from harness.predict.rank_parts import Label
from harness.predict.reserved import not_known
from harness.predict.search import Row
from harness.predict.step_history import StepHistory
from harness.records.store import write_atomically

OPTION, FORMATS = "--step_trace", (".json", ".pickle")


def write_step_trace(path: Path, found: tuple[Row, StepHistory] | None, spec: ExperimentSpec) -> None:
    """Write the file, replacing what is there. BadRequestError where the steps are not known."""
    if found is None:
        raise not_known(OPTION, spec)
    row, steps = found
    content = (
        pickle.dumps(snapshot_of(row, steps)) if path.suffix == ".pickle" else json.dumps(perfetto(row, steps)).encode()
    )
    with os_errors_reported(f"{OPTION} {path}: cannot be written"):
        write_atomically(path, content)


def perfetto(row: Row, steps: StepHistory) -> dict[str, object]:
    """Return Chrome's trace format: counters of bytes, and a slice for each pass. A microsecond is a row."""
    name = f"Predicted: {_name(row)}; 1 us is one request, not a time"
    process: dict[str, object] = {"ph": "M", "name": "process_name", "args": {"name": name}}
    rows = (process, *_slices(steps), *_counters(steps))
    return {"traceEvents": [{"pid": 0, "tid": 0, "ts": 0} | each for each in rows], "displayTimeUnit": "ms"}


def _name(row: Row) -> str:
    assert row.prediction
    return f"{row.label}, pipeline stage {row.prediction.worst.pp_rank}"


def _slices(steps: StepHistory) -> Iterator[dict[str, object]]:
    ends = (*(at for at, _, _ in steps.marks[1:]), len(steps.entries))
    for (at, step, name), end in zip(steps.marks, ends, strict=True):
        yield {"ph": "X", "ts": at, "dur": end - at, "name": f"step {step}: {name}" if step else name}


def _counters(steps: StepHistory) -> Iterator[dict[str, object]]:
    shown: dict[str, int] = {}
    for at, (reserved, allocated, groups) in enumerate(steps.moments(), start=1):
        now = {"reserved": reserved, "allocated": allocated} | {f"part: {name}": size for name, size in groups.items()}
        for name, size in now.items() - shown.items():
            yield {"ph": "C", "ts": at, "name": name, "args": {"bytes": size}}
        shown = now


def snapshot_of(row: Row, steps: StepHistory) -> dict[str, object]:
    """Return the value that `torch.cuda.memory._dump_snapshot` pickles, of one device; ``predicted``: which step."""
    rows = [
        {"action": action, "addr": address, "size": asked or size, "stream": stream, "time_us": at,
         "frames": _frames(label)}
        for at, (action, address, size, stream, label, asked) in enumerate(steps.entries)
    ]  # fmt: skip
    is_expandable = settings_of(steps.conf).expandable_segments
    segments = [_segment(each, steps) | {"is_expandable": is_expandable} for each in steps.segments]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": steps.conf, "expandable_segments": is_expandable}
    return {
        "segments": segments, "device_traces": [rows], "allocator_settings": settings, "external_annotations": [],
        "predicted": _name(row),
    }  # fmt: skip


def _segment(segment: Segment, steps: StepHistory) -> dict[str, object]:
    start, num_bytes, run = segment
    used = sum(size for _, size, is_busy in run if is_busy)
    asked = {address: steps.there[address].asked for address, _, is_busy in run if is_busy}
    blocks = [
        {"address": address, "size": size, "requested_size": asked.get(address, size),
         "state": "active_allocated" if is_busy else "inactive",
         "frames": _frames(steps.there[address].label) if is_busy else []}
        for address, size, is_busy in run
    ]  # fmt: skip
    return {
        "device": 0, "address": start, "total_size": num_bytes, "frames": [], "segment_pool_id": (0, 0),
        "allocated_size": used, "active_size": used, "requested_size": sum(asked.values()),
        "stream": next((steps.there[address].stream for address, _, is_busy in run if is_busy), 0),
        "segment_type": "small" if max(size for _, size, _ in run) <= SMALL_BYTES else "large", "blocks": blocks,
    }  # fmt: skip


def _frames(label: Label) -> list[dict[str, object]]:
    """Name who asks as frames of a stack, innermost first."""
    return [{"filename": "predicted", "line": 0, "name": name} for name in label]
