"""Measures start-up: commands that start nothing, and the first command of the README."""

import json
import tempfile
from pathlib import Path
from statistics import median

from processes import mbr_perf, timed
from result import Result

REPEATS = 5


def help_text() -> Result:
    """Time `mbr-perf --help`."""
    return _answer("startup_help", ("--help",), goal=0.25)


def recipes_list() -> Result:
    """Time `mbr-perf recipes list`, which reads every recipe."""
    return _answer("startup_recipes_list", ("recipes", "list"), goal=0.5)


def _answer(name: str, arguments: tuple[str, ...], goal: float) -> Result:
    timed(mbr_perf(*arguments))  # the first one writes byte code
    runs = [timed(mbr_perf(*arguments)) for _ in range(REPEATS)]
    cpu = [round(run.cpu_s, 3) for run in runs]
    details: dict[str, object] = {"cpu_s": cpu, "wall_s": [round(run.wall_s, 3) for run in runs]}
    return Result(name, f"mbr-perf {' '.join(arguments)}", median(cpu), goal, "CPU s", details)


COMMAND = ("scripts/mbr-perf", "run", "-m", "llama", "-mr", "llama3_8b", "--recompute_modules", "core_attn,layernorm")
GOAL_S = 60.0


def first_run() -> Result:
    """Time the first run once; the details show its phases."""
    with tempfile.TemporaryDirectory() as folder:
        done = timed((*COMMAND, "--json", "--results_dir", folder))
        document = json.loads(done.stdout)
        outcome = json.loads((Path(document["run_dir"]) / "ranks" / "outcome.json").read_text())
    slowest = max(document["ranks"], key=lambda rank: sum(rank["seconds"].values()))
    details = {
        "cpu_s": round(done.cpu_s, 1),
        "launch_s": outcome["seconds"],
        "slowest_rank_s": {phase: round(s, 2) for phase, s in slowest["seconds"].items()},
        "num_steps": len(slowest["steps"]),
    }
    return Result("first_run", " ".join(COMMAND), round(done.wall_s, 1), GOAL_S, "s", details)
