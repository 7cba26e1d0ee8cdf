"""Options that take any number of values, as in `--exact none mlp`."""

from typing import Any

from harness.cli.short_options import WholeShortOptions


def many_valued(**without_value: str | None) -> type[WholeShortOptions]:
    """A command class whose options of these names take several values; each name's value stands where none is given.

    None: the option needs a value.
    """

    class ManyValues(WholeShortOptions):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            """`--exact none mlp` as `--exact none --exact mlp`."""
            return super().parse_args(ctx, spread(args, {f"--{name}": value for name, value in without_value.items()}))

    return ManyValues


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
