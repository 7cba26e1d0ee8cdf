"""The command lines of `mbr-perf plan` and `sweep`: options of several values, as in `--exact none mlp`, and when a recipe is needed."""

from typing import Any

from harness.cli.short_options import WholeShortOptions

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
