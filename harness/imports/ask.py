"""`mbr-perf import`: somebody's training log as a run, or several of them as a sweep."""

from typing import Any

import typer

from harness.asking.options import JudgeOptions, WholeShortOptions, takes
from harness.imports.options import ImportOptions, JobOptions


class ImportCommand(WholeShortOptions):
    """`import`: several files may follow one `--log`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`--log a.log b.log` as `--log a.log --log b.log`."""
        from harness.asking.options import spread

        return super().parse_args(ctx, spread(args, {"--log": None}))


@takes(ImportOptions, JobOptions, JudgeOptions)
def import_log(what: ImportOptions, asked: JobOptions, judge: JudgeOptions) -> None:
    """Make a run record of a training log, so that history, compare, explain, report and results work on it.

    The recipe and its options say what the job trained. What the log does not say stays unknown, and a comparison that
    needs it is inconclusive. Exit codes: those of `run`, or with several jobs those of `sweep`.
    """
    from harness.imports.read import import_request

    request = import_request(what, asked, judge)
    if request.sweep is not None:
        from harness.imports.sweep import import_sweep
        from harness.sweep.show import SweepDisplay

        raise typer.Exit(int(import_sweep(request.sweep, SweepDisplay(as_json=what.as_json))))
    from harness.imports.run import import_run
    from harness.run.show import Display

    assert request.run is not None
    raise typer.Exit(int(import_run(request.run, Display(as_json=what.as_json))))
