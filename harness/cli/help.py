"""How commands look in help: options and commands in groups by purpose, three examples, and the nearest command."""

import inspect
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import typer
import typer.core

from harness.cli.examples import TASKS, examples
from harness.errors import BadRequestError, raise_all

_PROGRAM = "mbr-perf"
_OTHER = "Options"
_LEAST_WIDTH = 20
_WIDEST = 28  # a longer name stands on a line of its own
_Command = TypeVar("_Command", bound=Callable[..., Any])
_Row = tuple[str, tuple[str, str]]


_OF_A_START = (
    "memory_snapshot", "snapshot_on_oom", "force", "enable_nsys", "pytorch_profiler", "profiling_ranks",
    "profiling_start_step", "profiling_stop_step", "nsys_trace", "nsys_extra_args", "profiling_gpu_metrics",
    "export_nsys_sqlite", "lock_gpu_freq", "peak_mem_clk",
)  # fmt: skip
_UNUSED = {
    "check": ("golden_values_path", "require_golden", "timing_threshold", "memory_threshold", "accept_differences",
              "fail_on_improvement", "timeout_s", "hang_timeout_s", "sample_interval_ms",
               "results_dir", "repeats", "run_dir"),
    "plan": (*_OF_A_START, "seed"), "import": _OF_A_START, "diagnose": (*_OF_A_START, "seed"),
}  # fmt: skip
"""Options that a command takes because `run` does, and that change nothing there: help and the shell leave them out."""


def takes_experiment(command: Any) -> bool:
    """Return whether the command takes the options of an experiment, and with them Megatron-Bridge's."""
    return any(parameter.name == "set_values" for parameter in command.params)


def with_own_options(command: Any, args: list[str]) -> list[str]:
    """Return the arguments with Megatron-Bridge's options replaced by mbr-perf's. BadRequestError as `in_our_words`."""
    takes_value = {
        name: not getattr(each, "is_flag", True)
        for each in command.params
        for name in (*each.opts, *each.secondary_opts)
    }
    if not takes_experiment(command) or _has_own_options_only(args, takes_value):
        return args
    from harness.cli.bridge import in_our_words  # reads Bridge's options, which few commands name

    return in_our_words(args, takes_value)


def _has_own_options_only(args: Sequence[str], takes_value: Mapping[str, bool]) -> bool:
    """Whether the arguments are nothing but options of the command, each followed by its value if it takes one."""
    rest = iter(args)
    return all(word in takes_value and not (takes_value[word] and next(rest, "-").startswith("-")) for word in rest)


class HelpedCommand(typer.core.TyperCommand):
    """A command whose help groups its options by panel and ends with examples.

    Plain text: rich takes longer to import.
    """

    def __init__(self, name: str | None, **settings: Any) -> None:
        super().__init__(name, **settings)
        for parameter in self.params:
            if parameter.name in _UNUSED.get(name or "", ()):
                parameter.hidden = True  # type: ignore[attr-defined]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as typer does, but report all unreadable values at once, each with its option and its text."""
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter:
            raise_all(_unreadable(self, ctx, typed))
            raise

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the paragraphs of the docstring."""
        del ctx
        _write_help(self, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then each panel in the order of its first option; options of no panel last."""
        _write_panels(formatter, [("Arguments", record) for _, record in _records(self, ctx, "argument")])
        options = _records(self, ctx, "option")
        if takes_experiment(self):
            from harness.cli.bridge import help_rows

            options += [("As in Megatron-Bridge", row) for row in help_rows()]
        _write_panels(formatter, sorted(options, key=lambda row: row[0] == _OTHER))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, on lines that are never wrapped."""
        lines = examples().get(ctx.command_path.removeprefix(f"{_PROGRAM} "), ())
        formatter.write("\nExamples:\n" + "".join(f"  {_PROGRAM} {line}\n" for line in lines) if lines else "")


class HelpedGroup(typer.core.TyperGroup):
    """A group whose help lists its commands by panel, each with its whole first sentence.

    A slip gets the nearest name.
    """

    panels: tuple[str, ...] = ()

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the paragraphs of the docstring."""
        del ctx
        _write_help(self, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write commands in the order of ``panels``, then options."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        shown = [(name, command) for name, command in found if command is not None and not command.hidden]
        rows = [
            (getattr(command, "rich_help_panel", None) or "Commands", (name, command.get_short_help_str(200)))
            for name, command in shown
        ]
        order = {panel: place for place, panel in enumerate(self.panels)}
        _write_panels(formatter, sorted(rows, key=lambda row: order.get(row[0], 0)))
        _write_panels(formatter, _records(self, ctx, "option"))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve a command as typer does; an unknown one fails with the nearest of all commands, in any group."""
        if args and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. {_nearest_command(self, ctx, args[0])}".rstrip())
        return super().resolve_command(ctx, args)


class App(typer.Typer):
    """A group of commands with that help."""

    def __init__(self, *, cls: type[HelpedGroup] = HelpedGroup, **settings: Any) -> None:
        super().__init__(cls=cls, rich_markup_mode=None, **settings)

    def command(
        self, name: str | None = None, *, cls: type[typer.core.TyperCommand] | None = HelpedCommand, **settings: Any
    ) -> Callable[[_Command], _Command]:
        """Do what typer's method does."""
        return super().command(name, cls=cls, **settings)


def tasks_text() -> str:
    """Return what `mbr-perf` alone prints: the five tasks, each with a command to copy, and where to read on."""
    width = max(_LEAST_WIDTH, shutil.get_terminal_size().columns)
    pitch = "mbr-perf finds the activation-recompute setting for a Megatron training job."
    tasks = "\n\n".join(f"{textwrap.fill(task, width)}\n    {_PROGRAM} {line}" for task, line in TASKS)
    return f"""{textwrap.fill(pitch, width)}

{tasks}

All commands:                {_PROGRAM} --help
One command, with examples:  {_PROGRAM} help plan
What there is to ask for:    {_PROGRAM} recipes list
This machine:                {_PROGRAM} doctor"""


_MOST_DIGITS = 30  # a longer number is not quoted, so that the message stays readable
# By words in the messages of typer and of click.
_KINDS = {"valid integer": "a whole number", "valid number": "a number", "valid float": "a number"}


def _unreadable(command: Any, ctx: Any, args: list[str]) -> list[BadRequestError]:
    """List the parameters that are missing or cannot be read; the last one names the help."""
    from harness.records.redact import redact

    typed, _, _ = command.make_parser(ctx).parse_args(args=args)
    found: list[str] = []
    for parameter in command.get_params(ctx):
        value = typed.get(parameter.name)
        try:
            parameter.process_value(ctx, parameter.consume_value(ctx, typed)[0])
        except typer.BadParameter as error:
            found.append(_why(parameter.opts[0], value, error))
    remedies = [*[""] * (len(found) - 1), f"try '{ctx.command_path} {ctx.help_option_names[0]}' for help"]
    return [BadRequestError(redact(text), remedy=remedy) for text, remedy in zip(found, remedies, strict=False)]


def _why(option: str, value: Any, error: typer.BadParameter) -> str:
    """Return what is wrong with the value of one option."""
    if isinstance(value, str) and len(value) > _MOST_DIGITS and value.lstrip("-").isdigit():
        return f"{option}: a number of {len(value.lstrip('-'))} digits is larger than any size may be"
    kind = next((kind for words, kind in _KINDS.items() if words in error.message), None)
    return f"{option}: {value!r} is not {kind}" if kind else str(error.format_message())


def _records(command: Any, ctx: Any, kind: str) -> list[_Row]:
    """Panel, name and text of every parameter of the kind that is not hidden."""
    rows = []
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None and parameter.param_type_name == kind:
            name = record[0].partition(" <")[0] if parameter.metavar else record[0]  # ` <list[str]>` behind a metavar
            rows.append((getattr(parameter, "rich_help_panel", None) or _OTHER, (name, record[1])))
    return rows


def _write_help(command: Any, formatter: Any) -> None:
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        formatter.write(f"\n{_wrapped(paragraph, 2, formatter.width)}\n")


def _write_panels(formatter: Any, rows: Sequence[_Row]) -> None:
    from harness.units import grouped  # only help needs it

    for title, records in grouped(rows).items():
        column = 4 + max((len(name) for name, _ in records if len(name) <= _WIDEST), default=_WIDEST)
        formatter.write(f"\n{title}:\n")
        for name, text in records:
            lines = _wrapped(text, column, formatter.width)
            fits = len(name) <= column - 4
            formatter.write(f"  {name:<{column - 2}}{lines.lstrip()}\n" if fits else f"  {name}\n{lines}\n")


def _wrapped(text: str, indent: int, width: int) -> str:
    """Wrap the text. Nothing breaks within a word: a word may be part of a command."""
    blanks = " " * indent
    return textwrap.fill(
        " ".join(text.split()),
        width,
        initial_indent=blanks,
        subsequent_indent=blanks,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _nearest_command(group: HelpedGroup, ctx: Any, typed: str) -> str:
    """Commands of this group by name, and those of groups within it by their last word."""
    from harness.errors import closest

    known: dict[str, list[str]] = {}
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        known.setdefault(name, []).insert(0, name)
        for inner in getattr(command, "commands", ()):
            known.setdefault(inner, []).append(f"{name} {inner}")
    full = [words for match in closest(typed, known) for words in known[match]] or _entries_meant(group, ctx, typed)
    before = f"{group.name} " if ctx.parent else ""
    return f"Did you mean {' or '.join(repr(before + words) for words in full)}?" if full else ""


def _entries_meant(group: HelpedGroup, ctx: Any, typed: str) -> list[str]:
    """``show G22`` for ``rules G22``: the nearest of the names that the group's `show` completes."""
    from harness.errors import closest

    show = group.get_command(ctx, "show")
    if show is None:
        return []
    asked = show.make_context("show", [], parent=ctx, resilient_parsing=True)
    names = [item.value for argument in show.params[:1] for item in argument.shell_complete(asked, "")]
    return [f"show {name}" for name in closest(typed, names)]
