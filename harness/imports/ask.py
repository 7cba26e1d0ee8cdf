"""`mbr-perf import`: somebody's training log as a run, or several of them as a sweep."""

from typing import Any

import typer

from harness.asking.options import JudgeOptions, WholeShortOptions, spread, takes
from harness.imports.options import ImportOptions, JobOptions


class LogCommand(WholeShortOptions):
    """A command on training logs: several files may follow one `--log`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`--log a.log b.log` as `--log a.log --log b.log`."""
        return super().parse_args(ctx, spread(args, {"--log": None}))


@takes(ImportOptions, JobOptions, JudgeOptions)
def import_log(what: ImportOptions, asked: JobOptions, judge: JudgeOptions) -> None:
    """Make a run record of a training log, so that history, compare, explain, report and results work on it.

    The recipe and its options say what the job trained. What the log does not say stays unknown, and a comparison that
    needs it is inconclusive. Exit codes: those of `run`, or with several jobs those of `sweep`.
    """
    from harness.imports.request import ImportRequest, import_request

    request = import_request(what, asked, judge)
    if isinstance(request, ImportRequest):
        from harness.imports.run import import_run
        from harness.run.show import Display

        raise typer.Exit(int(import_run(request, Display(as_json=what.as_json))))
    from harness.imports.sweep import import_sweep
    from harness.sweep.show import SweepDisplay

    raise typer.Exit(int(import_sweep(request, SweepDisplay(as_json=what.as_json))))
