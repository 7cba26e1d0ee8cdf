"""The `mbr-perf` command: sub-commands, spelling of options, and the one place where errors become exit codes."""

import gc
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from harness import __version__
from harness.bisect import ask as bisect
from harness.capture import ask as capture
from harness.check import ask as check
from harness.cli import completion
from harness.cli.commands import App, HelpedGroup, JobCommand, PlanCommand, SweepCommand, WholeShortOptions
from harness.cli.help import LENGTH, tasks_text
from harness.compare import ask as compare
from harness.diagnose import ask as diagnose
from harness.errors import BadRequestError, ExitCode, HarnessError, closest
from harness.explain import ask as explain
from harness.golden import ask as golden
from harness.history import ask as history
from harness.imports import ask as import_command
from harness.jobs import ask as jobs
from harness.nightly import ask as nightly
from harness.plan import ask as plan
from harness.probe import ask as probe
from harness.recipes import ask as catalogue
from harness.recipes import schema
from harness.records.folders import closed_to_others
from harness.results import ask as results
from harness.run import ask as run
from harness.snapshot import ask as snapshot
from harness.sweep import ask as sweep

# Which package has the class depends on the version of typer; each hands out this child of it.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


_PREDICT, _MEASURE, _EXPLAIN = "Predict, without a GPU", "Measure", "Judge and explain"
_KEEP, _LOOK_UP = "Golden values, results, jobs", "Look up"


class AskedGroup(HelpedGroup):
    """The outermost group of commands: usage errors of all leave it as BadRequestError."""

    panels = (_PREDICT, _MEASURE, _EXPLAIN, _KEEP, _LOOK_UP)

    def make_context(self, *given: Any, **more: Any) -> Any:
        """Parse what stands before the command."""
        with _usage_errors_told():
            return super().make_context(*given, **more)

    def invoke(self, ctx: Any) -> Any:
        """Parse what stands behind it, and do it."""
        with _usage_errors_told():
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:  # typer would end without a word
                from harness.cli.refusals import tell_stopped

                tell_stopped()
                raise typer.Exit(int(ExitCode.INTERRUPTED)) from None


@contextmanager
def _usage_errors_told() -> Iterator[None]:
    """Raise usage errors as BadRequestError, without secrets. A group without a command answers with its help."""
    try:
        yield
    except _UsageError as raised:
        from harness.records.redact import redact

        error: Any = raised
        context = error.ctx
        if context is not None and hasattr(error, "possibilities"):  # the dashes, which all share, are no likeness
            named = {name.strip("-"): name for each in context.command.get_params(context) for name in each.opts}
            if "model_recipe_name" in named:
                from harness.cli.bridge import spellings

                named |= {each.name.strip("-"): each.name for each in spellings().values()}
            error.possibilities = [named[each] for each in closest(str(error.option_name).strip("-"), named, 3)]
        if context is not None and error.message == context.get_help():
            raise
        remedy = f"try '{context.command_path} {context.help_option_names[0]}' for help" if context else ""
        raise BadRequestError(redact(error.format_message()), remedy=remedy) from error


app = App(
    name="mbr-perf",
    cls=AskedGroup,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(*, value: bool) -> None:
    if value:
        print(f"mbr-perf {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=lambda value: _version(value=value), is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Performance harness for activation-recompute sweeps on megatron-core.

    Exit codes: 0 passed, 1 bug, 2 wrong request, 3 run failed, 4 out of memory, 5 regression, 6 inconclusive,
    7 improvement (only with --fail_on_improvement), 130 and 143 interrupted.
    """
    del version  # its callback has printed it
    if ctx.invoked_subcommand is None:
        print(tasks_text())
        raise typer.Exit(int(ExitCode.BAD_REQUEST))  # a script whose command is empty has to notice


def show_help(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND", autocompletion=completion.commands, help="As you type it: `run`, `golden promote`."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also options that other options or --set say, and Megatron-Bridge's.")
    ] = False,
) -> None:
    """Show the help of a command; without one, list all commands."""
    before = LENGTH.set("all" if everything else "long")
    try:
        app(args=[*(command or ()), "--help"], prog_name="mbr-perf")
    finally:
        LENGTH.reset(before)


app.command("plan", cls=PlanCommand, rich_help_panel=_PREDICT)(plan.plan)
app.command("check", cls=JobCommand, rich_help_panel=_PREDICT)(check.check)
app.command("capture", rich_help_panel=_PREDICT)(capture.capture)
app.command("probe", rich_help_panel=_MEASURE)(probe.probe)
app.command("run", cls=WholeShortOptions, rich_help_panel=_MEASURE)(run.run)
app.command("sweep", cls=SweepCommand, rich_help_panel=_MEASURE)(sweep.sweep)
app.command("report", rich_help_panel=_MEASURE)(sweep.report)
app.command("nightly", rich_help_panel=_MEASURE)(nightly.nightly)
app.command("bisect", rich_help_panel=_MEASURE)(bisect.bisect)
app.add_typer(history.app, name="history", rich_help_panel=_MEASURE)
app.command("diagnose", cls=WholeShortOptions, rich_help_panel=_EXPLAIN)(diagnose.diagnose)
app.command("compare", cls=WholeShortOptions, rich_help_panel=_EXPLAIN)(compare.compare)
app.command("explain", rich_help_panel=_EXPLAIN)(explain.explain)
app.command("import", cls=import_command.ImportCommand, rich_help_panel=_EXPLAIN)(import_command.import_log)
app.command("snapshot", rich_help_panel=_EXPLAIN)(snapshot.snapshot)
app.add_typer(golden.app, name="golden", rich_help_panel=_KEEP)
app.add_typer(results.app, name="results", rich_help_panel=_KEEP)
app.add_typer(jobs.app, name="jobs", rich_help_panel=_KEEP)
app.add_typer(catalogue.recipes, name="recipes", rich_help_panel=_LOOK_UP)
app.add_typer(catalogue.rules, name="rules", rich_help_panel=_LOOK_UP)
app.command("schema", is_plain=True, rich_help_panel=_LOOK_UP)(schema.schema)
app.command("doctor", rich_help_panel=_LOOK_UP)(results.machine)
app.command("help", is_plain=True, rich_help_panel=_LOOK_UP)(show_help)


@cache
def _command() -> Any:
    """The command line. typer builds all commands anew for each call of ``app``, which callers of `main` would pay."""
    return typer.main.get_command(app)


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code. Options may be spelled with `_` or with `-`."""
    arguments = spelled(sys.argv[1:] if argv is None else argv)
    gc.set_threshold(400_000)  # commands are short: looking for cycles more often takes a tenth of their time
    with readers_may_leave() as lost:
        try:
            _answer(arguments)
        except SystemExit as end:
            if not (fault := lost()):
                raise
            print(f"error: stdout: {fault}: the answer is lost", file=sys.stderr)
            # The reports of a batch hold its verdict; of other commands, only stdout does.
            is_batch = arguments[:1] in (["sweep"], ["nightly"], ["bisect"])
            has_reports = is_batch and not {"--dryrun", "--dry_run", "-d"}.intersection(arguments)
            sys.exit(end.code if end.code or has_reports else int(ExitCode.RUN_FAILED))


def _answer(arguments: Sequence[str]) -> None:
    with closed_to_others():
        try:
            _command()(args=arguments, prog_name="mbr-perf")
        except (HarnessError, OSError) as error:
            from harness.cli.refusals import of_system, tell

            refused = of_system(error, arguments) if isinstance(error, OSError) else error
            tell(refused, arguments)
            sys.exit(int(refused.exit_code))
        except KeyboardInterrupt:
            sys.exit(int(ExitCode.INTERRUPTED))


_OF_TYPER = {"--install_completion": "--install-completion", "--show_completion": "--show-completion"}


def spelled(arguments: Sequence[str]) -> list[str]:
    """Return long option names with ``_``: `--recompute-modules=mlp` becomes `--recompute_modules=mlp`; values stay."""
    out: list[str] = []
    for position, argument in enumerate(arguments):
        if argument == "--":
            return [*out, *arguments[position:]]
        name, equals, value = argument.partition("=")
        if name.startswith("--") and len(name) > 2:
            name = "--" + name[2:].replace("-", "_")
        out.append(_OF_TYPER.get(name, name) + equals + value)
    return out


class _Discarding(io.FileIO):
    """A stream that drops what a closed pipe or a full disk does not take. ``fault``: of the disk."""

    fault = ""

    def write(self, data) -> int:  # type: ignore[no-untyped-def] # noqa: ANN001 (typeshed's name is private)
        try:
            return super().write(data)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.fault = error.strerror or str(error)
            return memoryview(data).nbytes


@contextmanager
def readers_may_leave() -> Iterator[Callable[[], str]]:
    """Drop what a closed pipe or a full disk does not take. Yields a function that says what stdout has lost."""
    own, raws = (sys.stdout, sys.stderr), dict[str, _Discarding]()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") is not None:
            raws[name] = _Discarding(stream.fileno(), "w", closefd=False)
            by_line = name == "stderr" or stream.isatty()
            buffer, how = io.BufferedWriter(raws[name]), {"encoding": stream.encoding, "errors": "replace"}
            setattr(sys, name, io.TextIOWrapper(buffer, **how, line_buffering=by_line))

    def fault() -> str:
        if "stdout" not in raws:
            return ""
        sys.stdout.flush()
        return raws["stdout"].fault

    try:
        yield fault
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = own


if __name__ == "__main__":
    main()
