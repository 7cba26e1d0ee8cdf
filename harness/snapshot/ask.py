"""`mbr-perf snapshot`: the memory in a snapshot of torch's CUDA allocator, and why the last request failed."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.commands import takes
from harness.cli.options import Json, option, options


# fmt: off
@options()
class SnapshotOptions:
    """The file to read, and settings to replay its history under."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of torch.cuda.memory._dump_snapshot.")]
    what_if: Annotated[list[str] | None, option("SETTING", "Replay the recorded requests under this "
        "PYTORCH_CUDA_ALLOC_CONF, e.g. expandable_segments:True. Repeat it to compare.")] = None
    device_gib: Annotated[float | None, option("GIB", "Replay on a device of this size: which request fails "
        "first?")] = None
    without: Annotated[list[str] | None, option("MODULE", "Replay what remains if these modules were recomputed, e.g. "
        "mlp,layernorm. Repeat it to compare.")] = None
    as_json: Json = False


# fmt: on


@takes(SnapshotOptions)
def snapshot(asked: SnapshotOptions) -> None:
    """Explain a memory snapshot: where the reserved memory is, which modules hold it, and why the last request failed.

    mbr-perf reads files as plain values in a separate process and never runs code in them, unlike torch's own viewer.
    """
    from harness.snapshot.show import show_snapshot
    from harness.snapshot.what_if import question_of

    question = question_of(asked.what_if or [], asked.device_gib, asked.without or [])
    show_snapshot(asked.file, question, as_json=asked.as_json)
