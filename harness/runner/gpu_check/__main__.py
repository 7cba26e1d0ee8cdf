"""``python -m harness.runner.gpu_check``, started by scripts/gpu-check."""

import argparse
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import BadRequestError, ExitCode, HarnessError
from harness.launch.environment import this_host
from harness.records.store import results_dir
from harness.report.console import Console
from harness.runner.gpu_check.case import Case
from harness.runner.gpu_check.checks import Check
from harness.runner.gpu_check.report import exit_code, print_cases, write_case, write_summary
from harness.runner.gpu_check.runs import Runs
from harness.runner.gpu_check.shapes import Shape, shapes
from harness.runner.gpu_check.stages import survive_oom, train_settings, weigh_sampler
from harness.runner.gpu_check.target import find_target

TIME_LIMIT_S = 590.0
NAMES = ("dense", "moe", "mla")


def parser() -> argparse.ArgumentParser:
    """The options of scripts/gpu-check."""
    program = argparse.ArgumentParser(
        prog="scripts/gpu-check",
        description="Trains small shapes at real widths on this machine's GPU under every legal recompute setting, "
        "through mbr-perf run, and checks memory readings, losses, an out-of-memory run and the sampler's cost.",
        epilog="Exit codes: 0 all passed, 2 no NVIDIA GPU, 3 something failed, 6 not all could be run in time.",
    )
    program.add_argument("--rehearse", action="store_true", help="the same steps with tiny shapes on the processor")
    program.add_argument("--shapes", metavar="LIST", help=f"of {', '.join(NAMES)}; default: all that the software can")
    program.add_argument("--recompute", action="append", metavar="TEXT",
                         help="only this setting beside none, e.g. full:uniform:1; repeatable")  # fmt: skip
    program.add_argument("--time_limit", type=float, default=TIME_LIMIT_S, metavar="SECONDS",
                         help=f"start nothing that would outlast it (default {TIME_LIMIT_S:g})")  # fmt: skip
    program.add_argument("--out", type=Path, metavar="DIR",
                         help="where results go (default results/gpu/<gpu>; a rehearsal's beside its runs)")  # fmt: skip
    program.add_argument("--recipes", type=Path, required=True, help=argparse.SUPPRESS)
    return program


def main() -> int:
    """All checks; see the exit codes in ``--help``."""
    options = parser().parse_args()
    try:
        return int(check_machine(options))
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 (the answer)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)


def check_machine(options: argparse.Namespace) -> ExitCode:
    """Run the stages, keep every case as it comes, print the table. BadRequestError: no GPU, or an unknown shape."""
    chosen = chosen_shapes(options.recipes, options.shapes)
    target = find_target(this_host(), rehearse=options.rehearse)
    began = time.monotonic()
    runs_dir = results_dir() / "runs" / f"gpu-check-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    folder = options.out or (runs_dir if target.is_rehearsal else results_dir() / "gpu") / target.gpu
    runs = Runs(target, runs_dir, began + options.time_limit)
    narration = Console(stderr=True, highlight=False)
    narration.print(f"checking {target.device} ({target.gpu}); runs are kept in {runs_dir}", markup=False)
    cases = []
    for case in stages(runs, chosen, options.recompute, named=options.shapes is not None):
        cases.append(case)
        write_case(folder, target, case)
        narration.print(f"{case.verdict:8} {case.name} ({case.seconds:.0f} s)", markup=False)
    write_summary(folder, target, cases, time.monotonic() - began)
    console = Console(highlight=False)
    print_cases(console, cases)
    console.print(f"exit {int(exit_code(cases))}, {time.monotonic() - began:.0f} s, {folder}", markup=False)
    return exit_code(cases)


def chosen_shapes(recipes: Path, names: str | None) -> tuple[Shape, ...]:
    """The shapes of ``--shapes``, in the order of the table; all without it."""
    wanted = NAMES if names is None else tuple(name.strip() for name in names.split(","))
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        raise BadRequestError(f"--shapes: no such shape {', '.join(unknown)}", remedy=f"of {', '.join(NAMES)}")
    return tuple(shape for shape in shapes(recipes.absolute()) if shape.name in wanted)


def stages(runs: Runs, chosen: tuple[Shape, ...], only: list[str] | None, *, named: bool) -> Iterator[Case]:
    """All cases in the order of their worth. A shape that was named is tried without transformer-engine, too."""
    for number, shape in enumerate(chosen):
        te = shape.settle(runs.target).software.transformer_engine
        if shape.needs_te and te is None and not named and not runs.target.is_rehearsal:
            yield Case(shape.name, checks=(Check("trained", "skipped", "transformer-engine is not installed"),))
            continue
        yield from train_settings(runs, shape, only)
        if number == 0:
            yield from survive_oom(runs, shape)
            yield from weigh_sampler(runs, shape)


if __name__ == "__main__":
    sys.exit(main())
