"""`mbr-perf snapshot` from files to what is printed and drawn."""

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.analysis.snapshots.difference import difference
from harness.analysis.snapshots.values import DeviceMemory
from harness.analysis.snapshots.verdict import verdict
from harness.report import json
from harness.report.console import Console
from harness.report.snapshot_chart import require_timeline, write_timeline
from harness.report.snapshot_json import difference_document, snapshot_document
from harness.report.snapshot_terminal import print_difference, print_snapshot, snapshot_lines
from harness.runner.snapshots.reading import fullest_device, snapshot_summaries, snapshot_summary


def show_snapshot(path: Path, *, timeline: Path | None, as_json: bool) -> None:
    """One file. BadRequestError for what cannot be read or drawn."""
    if timeline is not None:
        require_timeline(timeline)
    summary = snapshot_summary(path)
    device = fullest_device(summary)
    found = verdict(device)
    if as_json:
        print(json.text(snapshot_document(summary, device, found)))  # noqa: T201
    else:
        print_snapshot(Console(highlight=False), summary, device, found)
    if timeline is not None:
        _draw([(path.name, device)], snapshot_lines(summary, device, found), timeline)


def show_difference(before: Path, after: Path, *, timeline: Path | None, as_json: bool) -> None:
    """Two files, each at its fullest device. BadRequestError for what cannot be read or drawn."""
    if timeline is not None:
        require_timeline(timeline)
    first, second = snapshot_summaries((before, after))
    summaries = first, second
    devices = fullest_device(summaries[0]), fullest_device(summaries[1])
    found = difference(*devices)
    if as_json:
        print(json.text(difference_document(summaries, found)))  # noqa: T201
    else:
        print_difference(Console(highlight=False), (str(before), str(after)), found)
    if timeline is not None:
        names = [before.name, after.name]
        if names[0] == names[1]:
            names = [f"A {before}", f"B {after}"]
        _draw(list(zip(names, devices, strict=True)), [], timeline)


def _draw(devices: Sequence[tuple[str, DeviceMemory]], lines: Sequence[str], path: Path) -> None:
    print(f"wrote {write_timeline(devices, lines, path)}", file=sys.stderr)  # noqa: T201
