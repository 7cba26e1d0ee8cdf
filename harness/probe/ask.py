"""`mbr-perf probe`: the planner's constants, measured by themselves on the GPU of this machine."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import Json


def probe(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File for the constants and all rows.")] = Path(
        "probe.json"
    ),
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Tiny sizes on the processor: shows that it runs, and measures no GPU.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure the planner's constants on this machine's GPU, in about one minute.

    It times products of 25 shapes in bf16 and FP8, attention, memory, copies, Adam, and the calls of the host. `plan
    --calibrate FILE` then predicts seconds with them. Exit 2 without a GPU; exit 6, and no file, where other processes
    use the GPU or it is slowed down.
    """
    from harness.launch.environment import this_host
    from harness.probe.run import probe as measured
    from harness.probe.show import ProbeDocument, probe_page
    from harness.show.answer import answer
    from harness.show.progress import counting
    from harness.show.svg import require_file, write_file
    from harness.show.terminal import narration

    require_file("--out", out, (".json",))
    with counting(narration(), "Parts measured") as progress:
        found = measured(this_host(), progress, rehearse=rehearse)
    write_file("--out", out, found)
    answer(lambda: ProbeDocument(path=out, probe=found), lambda: probe_page(found, out), as_json=as_json)
