"""The `mbr-perf` command: its sub-commands, the spelling of options, and the one place where errors become exit codes."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from harness import __version__
from harness.cli import (
    check,
    compare,
    diagnose,
    doctor,
    explain,
    golden,
    history,
    import_command,
    jobs,
    nightly,
    plan,
    recipes,
    report,
    results,
    rules,
    run,
    snapshot,
    sweep,
)
from harness.cli.foreign_options import CompareCommand
from harness.cli.plan_command import PlanCommand, SweepCommand
from harness.cli.short_options import WholeShortOptions
from harness.cli.streams import readers_may_leave
from harness.cli.usage import AskedGroup, refuse_removed
from harness.errors import ExitCode, HarnessError
from harness.launch.umask import closed_to_others

app = typer.Typer(
    name="mbr-perf",
    cls=AskedGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(*, value: bool) -> None:
    if value:
        print(f"mbr-perf {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=lambda value: _version(value=value), is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Performance harness for activation-recompute sweeps on megatron-core.

    Exit codes: 0 passed, 1 bug, 2 wrong request, 3 run failed, 4 out of memory, 5 regression, 6 inconclusive,
    7 improvement (only with --fail_on_improvement), 130 and 143 interrupted.
    """


app.command("run", cls=WholeShortOptions)(run.run)
app.command("sweep", cls=SweepCommand)(sweep.sweep)
app.command("nightly")(nightly.nightly)
app.command("plan", cls=PlanCommand)(plan.plan)
app.command("check", cls=WholeShortOptions)(check.check)
app.command("compare", cls=CompareCommand)(compare.compare)
app.command("explain")(explain.explain)
app.command("diagnose", cls=WholeShortOptions)(diagnose.diagnose)
app.command("import", cls=import_command.ImportCommand)(import_command.import_log)
app.command("report")(report.report)
app.command("doctor")(doctor.doctor)
app.command("snapshot")(snapshot.snapshot)
app.add_typer(golden.app, name="golden")
app.add_typer(history.app, name="history")
app.add_typer(jobs.app, name="jobs")
app.add_typer(recipes.app, name="recipes")
app.add_typer(results.app, name="results")
app.add_typer(rules.app, name="rules")


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code. Options may be spelled with `_` or with `-`."""
    arguments = spelled(sys.argv[1:] if argv is None else argv)
    with readers_may_leave(), closed_to_others():
        try:
            refuse_removed(arguments)
            app(args=arguments, prog_name="mbr-perf")
        except HarnessError as error:
            _tell(error, as_json="--json" in arguments)
            sys.exit(int(error.exit_code))
        except KeyboardInterrupt:
            sys.exit(int(ExitCode.INTERRUPTED))


def spelled(arguments: Sequence[str]) -> list[str]:
    """Long option names with ``_``: `--recompute-modules=mlp` becomes `--recompute_modules=mlp`; values stay."""
    out: list[str] = []
    for position, argument in enumerate(arguments):
        if argument == "--":
            return [*out, *arguments[position:]]
        name, equals, value = argument.partition("=")
        if name.startswith("--") and len(name) > 2:
            name = "--" + name[2:].replace("-", "_")
        out.append(name + equals + value)
    return out


def _tell(error: HarnessError, *, as_json: bool) -> None:
    """Messages quote what was typed, which logs of CI keep: without what looks like a secret."""
    from harness.records.redact import redact_shapes

    if as_json:
        import json

        document = {"schema_version": 1, "error": redact_shapes(error.message), "remedy": redact_shapes(error.remedy),
                    "exit_code": int(error.exit_code)}  # fmt: skip
        print(json.dumps(document, indent=2))
    from harness.report.console import visible

    print(f"error: {visible(redact_shapes(str(error)))}", file=sys.stderr)


if __name__ == "__main__":
    main()
