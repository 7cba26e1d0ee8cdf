"""Measures the time of `mbr-perf plan` from command to answer, without and with cached traces."""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from processes import Timed, mbr_perf, timed
from result import Result, is_quiet, machine

from harness.launch.environment import this_host

LLAMA3_70B = ("-m", "llama", "-mr", "llama3_70b", "--task", "sft", "-g", "h100", "-c", "fp8_cs", "-ng", "32")
DEEPSEEK_V3 = ("-m", "deepseek", "-mr", "deepseek_v3", "-g", "h100")
SIXTEEN = (
    "none", "layernorm", "moe_act", "shared_experts", "mla_up_proj", "core_attn", "mlp", "mlp,moe", "layernorm,moe_act",
    "layernorm,mla_up_proj", "moe_act,mla_up_proj", "layernorm,moe_act,mla_up_proj", "shared_experts,mla_up_proj",
    "mlp,moe,mla_up_proj", "full:uniform:1", "full:block:1",
)  # fmt: skip
# CUDA graphs would forbid most settings.
EAGER = ("--cuda_graph_impl", "none", "--json")
# A large job: thousands of layouts.
SPACE = ("-g", "h100", "--search", "-ng", "1024", "-gb", "2048", "--json")
COLD_REPEATS, CACHED_REPEATS = 3, 7
CACHED_GOAL_S = 1.5
# The last commit without the replay of torch's allocator. CPU seconds: they change least with other work.
WITHOUT_REPLAY, MOST_TIMES, PAIRS = "511f679cb704c9741e95f37be58f72ed8e28729d^", 1.3, 7
PLAIN = {
    "llama3_8b": ("-m", "llama", "-mr", "llama3_8b", "-g", "h100"),
    "llama3_70b": (*LLAMA3_70B, *EAGER[:2]),
    "llama3_70b with CUDA graphs": LLAMA3_70B,
    "deepseek_v3": DEEPSEEK_V3,
    "qwen3_30b_a3b": ("-m", "qwen", "-mr", "qwen3_30b_a3b", "-g", "h100"),
}


def _search(name: str, asked: tuple[str, ...], goal: float) -> Result:
    busy = _busy()
    with _empty_cache() as ask:
        run = ask(asked)
    count = json.loads(run.stdout)["search"]["num_layouts"]
    details = {**_timed([run], asked), "num_layouts": count}
    title = f"1,000 of {count} layouts, nothing traced before"
    return Result(name, title, round(run.wall_s / count * 1000, 1), goal, "s", details, busy)


def _timed(runs: list[Timed], asked: tuple[str, ...]) -> dict[str, object]:
    wall_s, cpu_s = ([round(getattr(run, name), 3) for run in runs] for name in ("wall_s", "cpu_s"))
    return {"wall_s": wall_s, "cpu_s": cpu_s, "command": " ".join(("mbr-perf", "plan", *asked))}


def _busy() -> str:
    return "" if is_quiet(machine()) else "other work ran beside it, and wall time is what is judged"


def _cold(name: str, asked: tuple[str, ...], goal: float) -> Result:
    runs = []
    for _ in range(COLD_REPEATS):
        with _empty_cache() as ask:
            runs.append(ask((*asked, *EAGER)))
    return _result(name, (*asked, *EAGER), runs, goal)


def _cached(name: str, asked: tuple[str, ...]) -> Result:
    with _empty_cache() as ask:
        ask(asked)
        runs = [ask(asked) for _ in range(CACHED_REPEATS)]
    return _result(name, asked, runs, CACHED_GOAL_S)


@contextmanager
def _empty_cache() -> Iterator[Callable[[tuple[str, ...]], Timed]]:
    with tempfile.TemporaryDirectory(prefix="mbr-perf-bench-") as folder:
        env = {**this_host().shell, "XDG_CACHE_HOME": folder}
        yield lambda asked: timed(mbr_perf("plan", *asked), env)


def _result(name: str, asked: tuple[str, ...], runs: list[Timed], goal: float) -> Result:
    settings = json.loads(runs[0].stdout)["settings"]
    legal = [setting for setting in settings if setting["legal"]]
    details = {**_timed(runs, asked), "num_settings": len(legal), "num_stages": len(legal[0]["stages"])}
    title = f"plan of {len(legal)} settings, {'again' if name.endswith('cached') else 'nothing traced before'}"
    return Result(name, title, round(median(run.wall_s for run in runs), 3), goal, "s", details, _busy())


def _replayed(name: str) -> Result:
    """Plan with the replay and at the commit before it, in turn."""
    with tempfile.TemporaryDirectory(prefix="mbr-perf-bench-") as folder:
        timed(("git", "worktree", "add", "-q", "--detach", f"{folder}/old", WITHOUT_REPLAY))
        try:
            sides = {"without": f"{folder}/old", "with": str(Path.cwd())}
            points = {point: _in_turn(asked, sides, folder) for point, asked in PLAIN.items()}
        finally:
            timed(("git", "worktree", "remove", "--force", f"{folder}/old"))
    ratios = {point: round(median(both["with"]) / median(both["without"]), 2) for point, both in points.items()}
    details = {
        "ratios": ratios,
        "cpu_s": points,
        "commands": {p: f"mbr-perf plan {' '.join(a)}" for p, a in PLAIN.items()},
    }
    return Result(name, "plan, times that without the replay", max(ratios.values()), MOST_TIMES, "x", details, _busy())


def _in_turn(asked: tuple[str, ...], sides: dict[str, str], folder: str) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(PAIRS + 1):
        for side, package in sides.items():
            own = {"PYTHONPATH": package, "XDG_CACHE_HOME": folder, "PYTHONPYCACHEPREFIX": f"{folder}/compiled"}
            shell = {key: value for key, value in this_host().shell.items() if key != "PYTHONDONTWRITEBYTECODE"}
            run = timed((sys.executable, "-P", "-m", "harness.app", "plan", *asked), {**shell, **own})
            seconds[side].append(round(run.cpu_s, 3))
    return {side: each[1:] for side, each in seconds.items()}  # the first run compiles


PLANS: dict[str, Callable[[str], Result]] = {
    "plan_llama3_70b": lambda name: _cold(name, LLAMA3_70B, goal=5.0),
    "plan_llama3_70b_cached": lambda name: _cached(name, (*LLAMA3_70B, *EAGER)),
    "plan_llama3_8b_cached": lambda name: _cached(name, ("-m", "llama", "-mr", "llama3_8b", "-g", "h100", "--json")),
    "plan_deepseek_v3_cached": lambda name: _cached(name, (*DEEPSEEK_V3, "--json")),
    "plan_deepseek_v3": lambda name: _cold(name, (*DEEPSEEK_V3, "--only", *SIXTEEN), goal=10.0),
    "plan_with_replay": _replayed,
    "plan_llama31_405b": lambda name: _cold(
        name, ("-m", "llama", "-mr", "llama31_405b", "-g", "h100", "-ng", "1024"), goal=5.0
    ),
    "search_llama3_70b": lambda name: _search(name, ("-m", "llama", "-mr", "llama3_70b", *SPACE), goal=20.0),
    "search_deepseek_v3": lambda name: _search(name, ("-m", "deepseek", "-mr", "deepseek_v3", *SPACE), goal=60.0),
    "search_mixtral": lambda name: _search(
        name, ("-m", "mixtral", "-mr", "mixtral_8x7b", "--point_gpu", "a100", *SPACE), goal=60.0
    ),
}
"""The time of plans and searches by name: without traces (composition grows with GPUs and layers), and asked again."""
