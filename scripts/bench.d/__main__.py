"""``scripts/bench [NAME...]``: measures, prints one table, keeps the results."""

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from host_speed import host_adam
from log_speed import diagnose_log, diagnose_start
from plan_speed import PLANS
from processes import BenchmarkFailedError
from result import Result, is_quiet, keep, machine
from snapshot_speed import snapshot_memory, snapshot_seconds
from startup import start

from harness.errors import ExitCode
from harness.records.folders import results_dir
from harness.show.page import Column, tabled
from harness.show.terminal import narrate, show_blocks

BENCHMARKS: dict[str, Callable[[], Result]] = {
    "startup_help": partial(start, "startup_help", ("--help",), goal=0.25),
    "startup_recipes_list": partial(start, "startup_recipes_list", ("recipes", "list"), goal=0.5),
    **{name: partial(plan, name) for name, plan in PLANS.items()},
    "diagnose_start": diagnose_start,
    "diagnose_log": diagnose_log,
    "snapshot_seconds": snapshot_seconds,
    "snapshot_memory": snapshot_memory,
    "host_adam": host_adam,
}


def main() -> int:
    """Return 0 if every goal is met, 5 if one is missed, 6 if noise forbids a verdict, 3 if a run failed."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--out", type=Path, default=results_dir() / "benchmarks", help="where results are kept")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    return int(measure({name: BENCHMARKS[name] for name in options.names or BENCHMARKS}, options.out))


def measure(benchmarks: Mapping[str, Callable[[], Result]], folder: Path) -> ExitCode:
    """Run one benchmark after the other; keep the results measured before a failure."""
    measured_on, results = machine(), list[Result]()
    for name, benchmark in benchmarks.items():
        narrate(f"measuring {name}")
        try:
            results.append(benchmark())
        except BenchmarkFailedError as error:
            narrate(f"{name}: {error}")
            return ExitCode.RUN_FAILED
        keep(folder, results[-1], measured_on)
    report(results, measured_on)
    verdicts = {result.verdict for result in results}
    if "missed" in verdicts:
        return ExitCode.REGRESSION
    return ExitCode.INCONCLUSIVE if "inconclusive" in verdicts else ExitCode.OK


def report(results: list[Result], measured_on: dict[str, object]) -> None:
    """Print the table, and a warning if the machine was busy."""
    columns = [
        (Column("Benchmark"), lambda r: r.name),
        (Column("What", long=True), lambda r: r.title),
        (Column("Value", right=True), lambda r: f"{r.value:g} {r.unit}"),
        (Column("Goal", right=True), lambda r: f"{r.goal:g} {r.unit}"),
        (Column("Verdict"), lambda r: r.verdict),
    ]
    busy = f"the machine was busy before (load {measured_on['load_before']}): measure again"
    show_blocks(
        tabled(results, columns),
        *(f"{r.name}: {r.inconclusive}" for r in results if r.verdict == "inconclusive"),
        *([] if is_quiet(measured_on) else [busy]),
    )


if __name__ == "__main__":
    sys.exit(main())
