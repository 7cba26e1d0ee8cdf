"""`mbr-perf snapshot`: what a snapshot of torch's CUDA allocator holds, and why the last request failed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.asking.options import Json, takes


@dataclass(frozen=True, kw_only=True)
class SnapshotOptions:
    """Which files, and where to."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of torch.cuda.memory._dump_snapshot.")]
    other: Annotated[
        Path | None, typer.Argument(metavar="OTHER", help="A second one: what does it hold more than the first?")
    ] = None
    timeline: Annotated[
        Path | None,
        typer.Option(
            "--timeline",
            metavar="FILE.html|png|svg",
            help="Also draw memory over time, of two files one upon the other. Needs mbr-perf[report].",
        ),
    ] = None
    as_json: Json = False


@takes(SnapshotOptions)
def snapshot(asked: SnapshotOptions) -> None:
    """Say what a memory snapshot holds: where the reserved memory is, who holds it, and why the last request failed.

    Given two, what the second holds more than the first, by module and by line. Files are read as plain values in a
    process of their own: nothing in them is run, unlike in torch's own viewer.
    """
    from harness.diagnose.snapshots.show import show_difference, show_snapshot

    if asked.other is None:
        show_snapshot(asked.file, timeline=asked.timeline, as_json=asked.as_json)
    else:
        show_difference(asked.file, asked.other, timeline=asked.timeline, as_json=asked.as_json)
