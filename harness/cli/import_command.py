"""`mbr-perf import`: somebody's training log as a run, or several of them as a sweep."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.option_groups import takes
from harness.cli.options import JudgeOptions
from harness.cli.short_options import WholeShortOptions
from harness.cli.sweep import SweptOptions

_IMPORT = "Import"


# fmt: off
@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Which logs, of one job or of several."""

    log: Annotated[list[str], typer.Option("--log", metavar="[SETTING=]PATH...", rich_help_panel=_IMPORT,
        help="Logs of Megatron-Bridge or Megatron-LM: files, or folders of them, of one job. With SETTING=, one job of several "
        "that differ in it: none=a.log, mlp,core_attn=b.log, 'core_attn pp=8'=c.log; they become a sweep. The same SETTING again "
        "is a repeat. Repeatable.")]
    sweep: Annotated[str | None, typer.Option("--sweep", metavar="NAME|PATH", rich_help_panel=_IMPORT,
        help="A sweep file: what the jobs have in common, their title and control. The command line wins over it.")] = None
    control: Annotated[str, typer.Option("--control", metavar="SETTING", rich_help_panel=_IMPORT,
        help="The job that the others are held against. Default: that of no recompute, else the first.")] = ""
    results_dir: Annotated[Path | None, typer.Option("--results_dir", metavar="DIR", rich_help_panel=_IMPORT,
        help="Where runs are kept. Default: results of the checkout, else ./results.")] = None
    as_json: Annotated[bool, typer.Option("--json", rich_help_panel=_IMPORT, help="One JSON document on stdout.")] = False
# fmt: on


class ImportCommand(WholeShortOptions):
    """`import`: several files may follow one `--log`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`--log a.log b.log` as `--log a.log --log b.log`."""
        from harness.cli.plan_command import spread

        return super().parse_args(ctx, spread(args, {"--log": None}))


@takes(ImportOptions, SweptOptions, JudgeOptions)
def import_log(what: ImportOptions, asked: SweptOptions, judge: JudgeOptions) -> None:
    """Make a run record of a training log, so that history, compare, explain, report and results work on it.

    The recipe and its options say what the job trained. What the log does not say stays unknown, and a comparison that
    needs it is inconclusive. Exit codes: those of `run`, or with several jobs those of `sweep`.
    """
    from harness.cli.import_asking import import_request

    request = import_request(what, asked, judge)
    if request.sweep is not None:
        from harness.runner.importing_sweep import import_sweep
        from harness.runner.sweep_showing import SweepDisplay

        raise typer.Exit(int(import_sweep(request.sweep, SweepDisplay(as_json=what.as_json))))
    from harness.runner.importing import import_run
    from harness.runner.showing import Display

    assert request.run is not None
    raise typer.Exit(int(import_run(request.run, Display(as_json=what.as_json))))
