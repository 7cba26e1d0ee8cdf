"""``python -m harness.runner.gpu_check``, started by scripts/gpu-check."""

import argparse
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import BadRequestError, ExitCode, HarnessError, raise_all
from harness.launch.environment import this_host
from harness.records.redact import redact_shapes
from harness.records.store import results_dir
from harness.report.console import Console, visible
from harness.runner.gpu_check.case import Case
from harness.runner.gpu_check.code import code_of
from harness.runner.gpu_check.kept import earlier_cases
from harness.runner.gpu_check.planner import DTYPES
from harness.runner.gpu_check.report import exit_code, print_cases, write_case, write_planner, write_summary
from harness.runner.gpu_check.runs import Runs
from harness.runner.gpu_check.shapes import shapes
from harness.runner.gpu_check.stage_table import STAGES, Asked
from harness.runner.gpu_check.target import find_target, require_torch
from harness.spec.recompute import parse_recompute

MINUTES = 9.5
SHAPES = ("dense", "moe", "mla")


def parser() -> argparse.ArgumentParser:
    """The options of scripts/gpu-check."""
    stages = "\n".join(f"  {name:9} {what}" for name, (_, what) in STAGES.items())
    program = argparse.ArgumentParser(
        prog="scripts/gpu-check",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Shows on this machine's NVIDIA GPU that what mbr-perf predicts, measures and says of failures is so,\n"
        "with two layers at the widths of Llama 3 8B (dense), Mixtral 8x7B (moe) and DeepSeek-V3 (mla).\n\n"
        f"stages, in this order:\n{stages}",
        epilog="Exit codes: 0 all that was asked was done and held, 2 wrong request or no usable GPU (nothing was "
        "started),\n3 something failed, 6 parts could not be done: no time, no transformer-engine, no GPU in a rehearsal.",
    )
    program.add_argument("--only", metavar="STAGES", help="these stages, e.g. oom,snapshot; default: all")
    program.add_argument("--shapes", metavar="LIST",
                         help=f"of {','.join(SHAPES)}; default: all that the software can. The first one also serves "
                         "stages that need one only")  # fmt: skip
    program.add_argument("--dtypes", metavar="LIST", help=f"of the planner, of {','.join(DTYPES)}; default: both")
    program.add_argument("--recompute", action="append", metavar="TEXT",
                         help="only this setting beside none, e.g. full:uniform:1; repeatable")  # fmt: skip
    program.add_argument("--minutes", type=float, default=MINUTES, metavar="N",
                         help=f"start nothing that would outlast them (default {MINUTES:g}); what did not fit is said")  # fmt: skip
    program.add_argument("--resume", action="store_true",
                         help="leave out what passed, by --out, on this device with this software and code")  # fmt: skip
    program.add_argument("--rehearse", action="store_true",
                         help="the same stages with tiny shapes on the processor; what needs a GPU says so")  # fmt: skip
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
        sys.stderr.write(visible(redact_shapes(f"error: {error}")) + "\n")
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)


def check_machine(options: argparse.Namespace) -> ExitCode:
    """Go through the stages, keep every case as it comes, print the table. BadRequestError: wrong options, no usable GPU."""
    stages, asked = understood(options)
    began = time.monotonic()
    target = replace(find_target(this_host(), rehearse=options.rehearse), code=code_of(options.recipes))
    require_torch(target)
    runs_dir = results_dir() / "runs" / f"gpu-check-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    folder = options.out or (runs_dir if target.is_rehearsal else results_dir() / "gpu") / target.gpu
    earlier = earlier_cases(folder, target)
    if options.resume:
        raise_all(earlier.unreadable)
    runs = Runs(target, runs_dir, began + options.minutes * 60, options.recipes.absolute(),
                earlier.kept if options.resume else {})  # fmt: skip
    narration = Console(stderr=True, highlight=False)
    where = f"checking {target.device} ({target.gpu}); runs are kept in {runs_dir}"
    _tell(narration, [where, *earlier.told])
    cases, there = list[Case](), earlier.cases
    for case in _cases(stages, runs, asked):
        cases.append(case)
        if case.is_unknown:
            there.setdefault(case.name, case)
        else:
            there[case.name] = case
        if runs.kept.get(case.name) is not case:
            write_case(folder, target, case)
        write_planner(folder, target, list(there.values()))
        _tell(narration, [*runs.told, f"{case.verdict:8} {case.name} ({case.seconds:.0f} s)"])
        runs.told.clear()
    write_summary(folder, target, list(there.values()), time.monotonic() - began)
    console = Console(highlight=False)
    print_cases(console, cases)
    _tell(console, [f"exit {int(exit_code(cases))}, {time.monotonic() - began:.0f} s, {folder}"])
    return exit_code(cases)


def _tell(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _cases(stages: tuple[str, ...], runs: Runs, asked: Asked) -> Iterator[Case]:
    for name in stages:
        run, _ = STAGES[name]
        yield from run(runs, asked)


def understood(options: argparse.Namespace) -> tuple[tuple[str, ...], Asked]:
    """Stages, and what they are about, in the order of the tables. BadRequestError with every problem."""
    problems: list[BadRequestError] = []
    stages = _chosen("--only", options.only, STAGES, problems)
    names = _chosen("--shapes", options.shapes, SHAPES, problems)
    dtypes = _chosen("--dtypes", options.dtypes, DTYPES, problems)
    if not options.minutes > 0:
        problems.append(BadRequestError(f"--minutes {options.minutes:g} must be above 0"))
    recompute = []
    for text in options.recompute or ():
        try:
            recompute.append(parse_recompute(text).text)
        except ValueError as error:
            problems.append(BadRequestError(f"--recompute {text}: {error}"))
    raise_all(problems)
    found = tuple(shape for shape in shapes(options.recipes.absolute()) if shape.name in names)
    return stages, Asked(found, dtypes, tuple(recompute) or None, named=options.shapes is not None)


def _chosen(option: str, text: str | None, known: Collection[str], problems: list[BadRequestError]) -> tuple[str, ...]:
    wanted = list(known) if text is None else [name.strip() for name in text.split(",")]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        problems.append(
            BadRequestError(f"{option}: there is no {', '.join(map(repr, unknown))}", remedy=f"of {', '.join(known)}")
        )
    return tuple(name for name in known if name in wanted)


if __name__ == "__main__":
    sys.exit(main())
