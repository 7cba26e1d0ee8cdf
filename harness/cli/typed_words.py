"""How a typed command line is cut into words: short options stand apart, and some options take several values."""

import re
from typing import Any

from harness.cli.help import HelpedCommand, with_own_options
from harness.errors import closest

_SHORT = re.compile(r"-[A-Za-z][^=]+")


class WholeShortOptions(HelpedCommand):
    """A command that takes `-mq` for an unknown option, not for `-m q`.

    Option parsers read an unknown `-mq 3` as option `-m` with the value `q`, so that a slip of the finger would name
    another family. Values therefore stand apart: `-m llama`, never `-mllama`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments, options of Megatron-Bridge too; a usage error (exit 2) names the nearest options."""
        args = with_own_options(self, args)
        known = [name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)]
        own = args[: args.index("--")] if "--" in args else args
        for argument in own:
            if _SHORT.fullmatch(argument) and argument not in known:
                ctx.fail(f"no such option: {argument} {_remedy(argument, known)}")
        return super().parse_args(ctx, args)


def _remedy(argument: str, known: list[str]) -> str:
    short = [name for name in known if not name.startswith("--")]
    close = closest(argument, short, 3)
    if close:
        return f"(did you mean {' or '.join(close)}?)"
    if argument[:2] in short:
        return f"(write the value apart: {argument[:2]} {argument[2:]})"
    return f"(short options: {', '.join(short)})"


# Options of `plan` that take several values, and the value that stands where none is given; None: one is needed.
_MANY = {"--exact": "recommended", "--calibrate": None, "--only": None, "--over": None}


class PlanCommand(WholeShortOptions):
    """`plan`: several settings may follow one option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`--exact none mlp` as `--exact none --exact mlp`."""
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
