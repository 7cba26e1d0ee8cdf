"""Command lines as they are typed: short options of two letters, options of several values."""

import difflib
import re
from typing import Any

import typer.core

_SHORT = re.compile(r"-[A-Za-z][^=]+")


class WholeShortOptions(typer.core.TyperCommand):
    """A command that takes `-mq` for an unknown option, not for `-m q`.

    Option parsers read an unknown `-mq 3` as option `-m` with the value `q`, so that a slip of the finger would name
    another family. Values therefore stand apart: `-m llama`, never `-mllama`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; a usage error (exit code 2) names the nearest options."""
        known = [name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)]
        own = args[: args.index("--")] if "--" in args else args
        for argument in own:
            if _SHORT.fullmatch(argument) and argument not in known:
                ctx.fail(f"no such option: {argument} {_remedy(argument, known)}")
        return super().parse_args(ctx, args)


def _remedy(argument: str, known: list[str]) -> str:
    short = [name for name in known if not name.startswith("--")]
    close = difflib.get_close_matches(argument, short, n=3)
    if close:
        return f"(did you mean {' or '.join(close)}?)"
    if argument[:2] in short:
        return f"(write the value apart: {argument[:2]} {argument[2:]})"
    return f"(short options: {', '.join(short)})"


# Options of `plan` that take several values, and the value that stands where none is given; None: one is needed.
_MANY = {"--exact": "recommended", "--calibrate": None, "--only": None, "--over": None}


class PlanCommand(WholeShortOptions):
    """`plan`: a recipe is needed, except where runs are named to calibrate on."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`--exact none mlp` as `--exact none --exact mlp`."""
        names = {argument.partition("=")[0] for argument in args}
        for parameter in self.params:
            if parameter.name == "model_recipe_name":
                parameter.required = "--calibrate" not in names
        return super().parse_args(ctx, spread(args, _MANY))


class SweepCommand(WholeShortOptions):
    """`sweep`: several axes may follow one `--over`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`--over tp=1,2 mb=1,2` as `--over tp=1,2 --over mb=1,2`."""
        return super().parse_args(ctx, spread(args, {"--over": None}))


def spread(args: list[str], many: dict[str, str | None]) -> list[str]:
    """``args`` with every option of ``many`` before each of its values.

    >>> spread(["--exact", "none", "mlp", "-g", "h100", "--exact"], {"--exact": "recommended"})
    ['--exact', 'none', '--exact', 'mlp', '-g', 'h100', '--exact', 'recommended']
    """
    out: list[str] = []
    position = 0
    while position < len(args):
        name, position = args[position], position + 1
        out.append(name)
        if name not in many:
            continue
        values = []
        while position < len(args) and not args[position].startswith("-"):
            values.append(args[position])
            position += 1
        default = many[name]
        values = values or ([default] if default is not None else [])
        out[-1:] = [word for value in values for word in (name, value)] or [name]
    return out
