"""How long a command takes that starts nothing: processor seconds, median of several."""

from statistics import median

from processes import mbr_perf, timed
from result import Result

REPEATS = 5


def help_text() -> Result:
    """`mbr-perf --help`."""
    return _answer("startup_help", ("--help",), goal=0.25)


def recipes_list() -> Result:
    """`mbr-perf recipes list`: every recipe read."""
    return _answer("startup_recipes_list", ("recipes", "list"), goal=0.5)


def _answer(name: str, arguments: tuple[str, ...], goal: float) -> Result:
    timed(mbr_perf(*arguments))  # the first one writes byte code
    runs = [timed(mbr_perf(*arguments)) for _ in range(REPEATS)]
    cpu = [round(run.cpu_s, 3) for run in runs]
    details: dict[str, object] = {"cpu_s": cpu, "wall_s": [round(run.wall_s, 3) for run in runs]}
    return Result(name, f"mbr-perf {' '.join(arguments)}", median(cpu), goal, "CPU s", details)
