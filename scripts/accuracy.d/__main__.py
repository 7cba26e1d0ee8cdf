"""``scripts/accuracy [NAME...]``: predicts, compares, keeps JSON, one page each and an index of them."""

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import bridge_configs
import cpu_runs
import host_page
import korthikanti
import llama3_70b
import optimal_plans
import published_page
import ranges
import reserved_page
import scripted_page
import scripted_points
import step_times
import times_fit
import times_steps
import traces
from page import Page, index

from harness.errors import ExitCode
from harness.launch.environment import Host, this_host
from harness.launch.machine import installed_software
from harness.records.folders import results_dir
from harness.records.store import write_atomically
from harness.show.page import Code, Line
from harness.show.terminal import narrate, show_blocks

FOLDER = results_dir() / "accuracy"
INPUTS = FOLDER / "inputs"
EXAMPLES = results_dir() / "examples"


def time(host: Host, keeps: object = None) -> Page:
    """Compare seconds and what settings cost. ``keeps``: whether the planner uses from now on what is fitted here."""
    steps, left_out = times_steps.read(INPUTS, host)
    found = times_fit.fit(steps)
    if keeps:
        times_fit.write(found)
    sft = llama3_70b.compare(INPUTS / "llama3_70b_sft.json", host)
    return step_times.page(INPUTS / "korthikanti2022.json", sft, (found, left_out), host)


COMPARISONS: dict[str, Callable[..., Page]] = {
    **{name: partial(published_page.page, INPUTS, name) for name in published_page.ABOUT},
    "llama3_70b_sft": lambda host: llama3_70b.page(INPUTS / "llama3_70b_sft.json", host),
    "korthikanti": lambda host: korthikanti.page(INPUTS / "korthikanti2022.json", host),
    "host": partial(host_page.page, INPUTS / "moonlight_costs.json"),
    "time": time,
    "bridge_configs": bridge_configs.page,
    "cpu": cpu_runs.page,
    "scripted_gpu": lambda _host: scripted_page.page(scripted_points.FOLDER),
    "reserved": reserved_page.page,
    "ranges": lambda _host: ranges.page(FOLDER),
}


def main() -> int:
    """Return 0 when all comparisons were made, whatever their errors."""
    parser = argparse.ArgumentParser(prog="scripts/accuracy", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(COMPARISONS)}; default: all")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where results are kept")
    parser.add_argument(
        "--measured",
        type=Path,
        metavar="FILE",
        help="cpu: compare the peaks in FILE, an earlier cpu.json, with new predictions; trains only settings that it lacks. "
        "host, reserved: judge what was measured in FILE, an earlier host.json or reserved.json, again",
    )
    parser.add_argument(
        "--fit", action="store_true", help="time: keep the constants and ranges of steps where the planner reads them"
    )
    parser.add_argument(
        "--picture",
        type=Path,
        nargs="?",
        const=EXAMPLES,
        metavar="FOLDER",
        help="draw the pictures of the README into FOLDER (default: results/examples); compares nothing",
    )
    parser.add_argument(
        "--traces",
        type=Path,
        nargs="?",
        const=Path(),
        metavar="FOLDER",
        help="trace every shipped point and write the files that travel with mbr-perf (default: results/traces); compares nothing",
    )
    parser.add_argument(
        "--scripted",
        nargs="*",
        metavar="POINT",
        help="run ranks of these H100 points (default: all; uneven, native: those apart) on scripted GPUs, into "
        "results/scripted_gpu; compares nothing",
    )
    parser.add_argument(
        "--optimal",
        nargs="*",
        metavar="POINT",
        help="find the fastest plan by layer of these H100 points (default: all; time: measure one on this processor), into "
        "results/optimal; compares nothing",
    )
    options = parser.parse_args()
    if options.optimal is not None:
        show_blocks(Code(optimal_plans.write(this_host(), options.optimal).headline))
        return int(ExitCode.OK)
    if options.scripted is not None:
        scripted_points.measure(this_host(), options.scripted)
        return int(ExitCode.OK)
    if options.traces:
        folder = None if options.traces == Path() else options.traces
        show_blocks(*(Line(str(path), whole=True) for path in traces.write_all(this_host(), folder)))
        return int(ExitCode.OK)
    if options.picture:
        return _draw(options.out, options.picture)
    unknown = set(options.names) - set(COMPARISONS)
    if unknown:
        parser.error(f"no such comparison: {', '.join(sorted(unknown))}")
    if options.measured and options.names not in (["cpu"], ["host"], ["reserved"]):
        parser.error("--measured: name the comparison cpu, host or reserved, and no other")
    if options.fit and options.names != ["time"]:
        parser.error("--fit: it keeps constants of the comparison time; name it, and no other")
    options.out.mkdir(parents=True, exist_ok=True)
    software, host = installed_software().model_dump(mode="json"), this_host()
    for name in options.names or list(COMPARISONS):
        narrate(f"comparing {name}")
        page = COMPARISONS[name](host, *filter(None, (options.measured, options.fit)))
        document = {"title": page.title, "headline": page.headline, "software": software} | page.document
        write_atomically(options.out / f"{name}.json", json.dumps(document, indent=1, sort_keys=True) + "\n")
        write_atomically(options.out / f"{name}.md", page.markdown())
        write_atomically(options.out / "README.md", index(options.out, list(COMPARISONS)))
        shown = "\n".join([page.title, "", page.headline, "", *page.summary, ""])
        show_blocks(Code(shown))
    return int(ExitCode.OK)


def _draw(accuracy: Path, folder: Path) -> int:
    import peaks_picture
    import terminal_picture

    drawn = (peaks_picture.write(accuracy, folder), terminal_picture.write(folder))
    show_blocks(*(Line(str(path), whole=True) for path in drawn))
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
