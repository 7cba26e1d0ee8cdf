"""Commands: the options that they take, and how typed words become options."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import typer
import typer.core

from harness.cli import help as helped
from harness.errors import BadRequestError, nearest, raise_all
from harness.records.redact import redact

_Command = TypeVar("_Command", bound=Callable[..., Any])
_SHORT = re.compile(r"-[A-Za-z][^=]+")


def takes(*groups: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate ``command(group_a, group_b, ...)`` so that typer sees the fields of all groups as its options."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def call(**options: Any) -> None:
            values = [group(**{f.name: options[f.name] for f in fields(group)}) for group in groups]
            command(*values)

        options = [each for group in groups for each in inspect.signature(group).parameters.values()]
        return _as_command(call, options, command)

    return decorate


def _as_command(call: _Command, options: list[inspect.Parameter], command: Callable[..., None]) -> _Command:
    call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in options}
    call.__doc__, call.__name__ = command.__doc__, command.__name__
    return call


def _answering(command: _Command) -> Any:

    def call(*, quiet: bool, verbose: bool, **options: Any) -> None:
        if quiet + verbose + options.get("as_json", False) > 1:
            problem = "-q, -v and --json each say how much to print"
            raise BadRequestError(problem, remedy="give one of them; --json has everything")
        from harness.show.page import AMOUNT

        before = AMOUNT.set("answer" if quiet else "all" if verbose else "usual")
        try:
            command(**options)
        finally:
            AMOUNT.reset(before)

    return _as_command(call, [*inspect.signature(command).parameters.values(), *_AMOUNTS], command)


def _amount(name: str, help: str) -> inspect.Parameter:
    option = typer.Option(f"--{name}", f"-{name[0]}", help=help, rich_help_panel="Output")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])


_AMOUNTS = (_amount("quiet", "Print line 1 only."), _amount("verbose", "Print all details."))

_OF_A_START = ("memory_snapshot", "snapshot_on_oom", "force")
_UNUSED = {
    "check": ("golden_values_path", "require_golden", "timing_threshold", "memory_threshold", "accept_differences",
              "fail_on_improvement", "timeout_s", "hang_timeout_s", "sample_interval_ms",
               "results_dir", "repeats", "run_dir"),
    "plan": (*_OF_A_START, "seed"), "import": _OF_A_START, "diagnose": (*_OF_A_START, "seed"),
}  # fmt: skip
"""Options that a command takes because `run` does, and that change nothing there: help and the shell leave them out."""


def _with_own_options(command: Any, args: list[str]) -> list[str]:
    takes_value = {
        name: not getattr(each, "is_flag", True)
        for each in command.params
        for name in (*each.opts, *each.secondary_opts)
    }
    if not command.takes_experiment or _has_own_options_only(args, takes_value):
        return args
    from harness.cli.bridge import in_our_words  # reads Bridge's options, which few commands name

    return in_our_words(args, takes_value)


def _has_own_options_only(args: Sequence[str], takes_value: Mapping[str, bool]) -> bool:
    """Whether the arguments are nothing but options of the command, each followed by its value if it takes one."""
    rest = iter(args)
    return all(word in takes_value and not (takes_value[word] and next(rest, "-").startswith("-")) for word in rest)


class HelpedCommand(typer.core.TyperCommand):
    """A command whose help groups its options by panel and ends with examples."""

    def __init__(self, name: str | None, **settings: Any) -> None:
        super().__init__(name, **settings)
        for parameter in self.params:
            if parameter.name in _UNUSED.get(name or "", ()):
                parameter.hidden = True  # type: ignore[attr-defined]

    @property
    def takes_experiment(self) -> bool:
        """Whether the command takes the options of an experiment, and with them Megatron-Bridge's."""
        return any(parameter.name == "set_values" for parameter in self.params)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as typer does, but report all unreadable values at once, each with its option and its text."""
        typed = list(args)
        self._refuse_unknown_short(ctx, args)
        before = helped.LENGTH.set("short" if "-h" in args else helped.LENGTH.get())
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter:
            from harness.cli.refusals import unreadable

            raise_all(unreadable(self, ctx, typed))
            raise
        finally:
            helped.LENGTH.reset(before)

    def _refuse_unknown_short(self, ctx: Any, args: list[str]) -> None:
        """Fail with the word as it was typed: click would read `-mq 3` as option `-m` with the value `q`."""
        known = [name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)]
        for argument in args[: args.index("--")] if "--" in args else args:
            if _SHORT.fullmatch(argument) and argument not in known:
                short = [name for name in known if name[:1] == "-" != name[1:2]]
                ctx.fail(f"no such option: {argument} ({nearest(argument, short, 3)})")

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write plain text: rich takes longer to import."""
        helped.write_command(self, ctx, formatter)


class WholeShortOptions(HelpedCommand):
    """A command that takes `-mq` for an unknown option, not for `-m q`. ``many``: options with several values."""

    many: ClassVar[Mapping[str, str | None]] = {}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments, options of Megatron-Bridge too; a usage error (exit 2) names the nearest options."""
        words = spread(args, self.many)
        return super().parse_args(ctx, words if ctx.resilient_parsing else _with_own_options(self, words))


class JobCommand(WholeShortOptions):
    """A command whose first word may be the job: a file of any kind, or the name of a recipe."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the option before the first word that says what it is. BadRequestError for a job elsewhere."""
        if args and (args[0] == "-" or not args[0].startswith("-")):
            if not ctx.resilient_parsing:
                _require_file(args[0])
            self._require_one_job(args[0], args := [*job_words(args[0]), *args[1:]])
        for name, value in pairwise(spread(args, self.many)):
            if name in self.many and name != "--calibrate" and Path(value).is_file():
                line = f"{ctx.command_path} {value} {name} ..."
                raise BadRequestError(f"{name} {value}: a file that describes the job stands first", remedy=line)
        ctx.allow_extra_args = True
        rest: list[str] = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            remedy = f"{ctx.command_path} JOB [OPTIONS]: one file or recipe, and it stands first"
            raise BadRequestError(redact(f"{rest[0]}: {ctx.command_path} takes one job"), remedy=remedy)
        return rest

    def _require_one_job(self, word: str, args: Sequence[str]) -> None:
        names = next((each.opts for each in self.params if args[0] in each.opts), ())
        for again in args[2:]:
            if again.partition("=")[0] in names:
                raise BadRequestError(f"{word} and {again}: each describes the job", remedy="keep one of them")

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Name the file, which is no parameter: its option depends on what it holds."""
        return ["[FILE]", *super().collect_usage_pieces(ctx)]


def _require_file(word: str) -> None:
    if {"/", "."} & {*word} and not Path(word).exists():
        raise BadRequestError(f"{word}: no such file", remedy="check the path, or name one of `mbr-perf recipes list`")


_CONFIGURATION = b"megatron.bridge.training.config.ConfigContainer"


def job_words(word: str) -> list[str]:
    """Return the option that names the job ``word``, known by its content, and its value; a recipe if no file."""
    if word == "-":  # standard input
        return ["--megatron_args", word]
    path = Path(word)
    config = next((path / name for name in ("run_config.yaml", "config.json") if (path / name).is_file()), path)
    if not config.is_file():
        return ["--hf" if path.is_dir() else "-mr", word]
    with config.open("rb") as file:
        head = file.read(4096)
    if config.name == "run_config.yaml" or _CONFIGURATION in head:
        return ["--bridge_config", str(config)]
    if config.suffix in (".yaml", ".yml") and b"\nMODEL_ARGS:" not in b"\n" + head:
        return ["-mr", word]
    return ["--hf" if head.lstrip().startswith(b"{") else "--megatron_args", word]


class PlanCommand(JobCommand):
    """`plan`: several settings may follow one option."""

    many: ClassVar = {"--exact": "recommended", "--calibrate": None, "--only": None, "--over": None}


class SweepCommand(WholeShortOptions):
    """`sweep`: several axes may follow one `--over`."""

    many: ClassVar = {"--over": None}


def spread(args: list[str], many: Mapping[str, str | None]) -> list[str]:
    """``args`` with every option of ``many`` before each of its values.

    >>> spread(["--exact", "none", "mlp", "-g", "h100", "--exact"], {"--exact": "recommended"})
    ['--exact', 'none', '--exact', 'mlp', '-g', 'h100', '--exact', 'recommended']
    """
    out, rest = list[str](), list(args)
    while rest:
        name = rest.pop(0)
        given = list(takewhile(lambda word: not word.startswith("-"), rest)) if name in many else []
        del rest[: len(given)]
        values = given or [value for value in (many.get(name),) if value is not None]
        out += [word for value in values for word in (name, value)] or [name]
    return out


class HelpedGroup(typer.core.TyperGroup):
    """A group whose help lists its commands by panel, each with its whole first sentence."""

    panels: tuple[str, ...] = ()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write plain text."""
        helped.write_group(self, ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve a command as typer does; an unknown one fails with the nearest of all commands, in any group."""
        if args and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            from harness.cli.refusals import nearest_command

            ctx.fail(f"No such command {args[0]!r}. {nearest_command(self, ctx, args[0])}".rstrip())
        return super().resolve_command(ctx, args)


class App(typer.Typer):
    """A group of commands with that help."""

    def __init__(self, *, cls: type[HelpedGroup] = HelpedGroup, **settings: Any) -> None:
        super().__init__(cls=cls, rich_markup_mode=None, **settings)

    def command(
        self, name: str | None = None, *, cls: type[typer.core.TyperCommand] | None = HelpedCommand, **settings: Any
    ) -> Callable[[_Command], _Command]:
        """Do what typer's method does. A command that has an answer takes -q and -v."""
        is_plain, add = settings.pop("is_plain", False), super().command(name, cls=cls, **settings)
        return lambda command: add(command if is_plain else _answering(command))
