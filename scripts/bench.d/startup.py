"""Measures the start of commands that start nothing."""

from statistics import median

from processes import mbr_perf, timed
from result import Result

REPEATS = 5


def start(name: str, arguments: tuple[str, ...], goal: float) -> Result:
    """Time a command; `recipes list` reads every recipe."""
    timed(mbr_perf(*arguments))  # the first one writes byte code
    runs = [timed(mbr_perf(*arguments)) for _ in range(REPEATS)]
    cpu = [round(run.cpu_s, 3) for run in runs]
    details: dict[str, object] = {"cpu_s": cpu, "wall_s": [round(run.wall_s, 3) for run in runs]}
    return Result(name, f"mbr-perf {' '.join(arguments)}", median(cpu), goal, "CPU s", details)
