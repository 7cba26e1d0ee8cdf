"""`mbr-perf snapshot`: the memory in a snapshot of torch's CUDA allocator, and why the last request failed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import Json, takes


@dataclass(frozen=True, kw_only=True)
class SnapshotOptions:
    """Which files to read, and where to draw."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of torch.cuda.memory._dump_snapshot.")]
    other: Annotated[
        Path | None, typer.Argument(metavar="OTHER", help="A second snapshot, to compare with the first.")
    ] = None
    timeline: Annotated[
        Path | None,
        typer.Option(
            "--timeline",
            metavar="FILE.html|png|svg",
            help="Also draw memory over time; two files share one chart. Needs mbr-perf[report].",
        ),
    ] = None
    as_json: Json = False


@takes(SnapshotOptions)
def snapshot(asked: SnapshotOptions) -> None:
    """Explain a memory snapshot: where the reserved memory is, which modules hold it, and why the last request failed.

    With two snapshots, show what the second holds more than the first, by module and by line. mbr-perf reads files as
    plain values in a separate process and never runs code in them, unlike torch's own viewer.
    """
    from harness.snapshot.show import show_difference, show_snapshot

    if asked.other is None:
        show_snapshot(asked.file, timeline=asked.timeline, as_json=asked.as_json)
    else:
        show_difference(asked.file, asked.other, timeline=asked.timeline, as_json=asked.as_json)
