"""Short options of two letters, as in `-mr`, without the surprises of one-letter parsing."""

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
