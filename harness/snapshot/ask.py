"""`mbr-perf snapshot`: the memory in a snapshot of torch's CUDA allocator, and why the last request failed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.commands import takes
from harness.cli.options import Json


@dataclass(frozen=True, kw_only=True)
class SnapshotOptions:
    """The file to read."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of torch.cuda.memory._dump_snapshot.")]
    as_json: Json = False


@takes(SnapshotOptions)
def snapshot(asked: SnapshotOptions) -> None:
    """Explain a memory snapshot: where the reserved memory is, which modules hold it, and why the last request failed.

    mbr-perf reads files as plain values in a separate process and never runs code in them, unlike torch's own viewer.
    """
    from harness.snapshot.show import show_snapshot

    show_snapshot(asked.file, as_json=asked.as_json)
