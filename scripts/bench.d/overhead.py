"""What the harness adds to a training step, over a bare megatron-core loop: steps of both kinds in turn in one run."""

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import median

from processes import BenchmarkFailedError
from result import Result

from harness.launch.environment import this_host
from harness.launch.execute import execute
from harness.launch.plan import LaunchPlan
from harness.recipes.request import Request
from harness.runner.machine import settled_gpu
from harness.runner.request import RunRequest
from harness.runner.understanding import Understood, understand

PAIRS = 200
WARM_UP = 5
GOAL = 1.01
ALTERNATING = Path(__file__).with_name("alternating.py")
GPU_MODEL = Path(__file__).parents[1] / "gpu-check.d" / "dense.yaml"


def overhead() -> Result:
    """200 pairs of steps under the real launcher and its watchdog; its own processor time is added to the ratio."""
    host = this_host()
    gpu, _ = settled_gpu("", host)
    recipe = ("llama3_8b", None) if gpu == "cpu" else (str(GPU_MODEL), "h100")
    asked = Request(model_recipe_name=recipe[0], gpu=gpu, point_gpu=recipe[1], max_steps=PAIRS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        understood = understand(RunRequest(asked=asked), host, folder)
        (folder / "spec.json").write_text(understood.spec.model_dump_json())
        watching = train_pairs(understood, folder, PAIRS)
        pairs = _pairs([json.loads(p.read_text()) for p in sorted(folder.glob("seconds_*.json"))])
    return ratio(f"{understood.spec.recipe} on {gpu}", pairs, watching)


def train_pairs(understood: Understood, folder: Path, num_pairs: int) -> float:
    """Run the pairs; the share of one core that this process took, which watches over them as `mbr-perf run` does."""
    plan = understood.plan
    assert isinstance(plan, LaunchPlan)
    worker = (str(ALTERNATING), str(folder), str(num_pairs))
    cpu, wall = time.process_time(), time.perf_counter()
    outcome = execute(replace(plan, worker=worker), on_progress=lambda _: None)
    if outcome.status != "ok":
        raise BenchmarkFailedError(f"{outcome.reason}\n{plan.launcher_log.read_text()[-2000:]}")
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def _pairs(ranks: Sequence[dict[str, list[float]]]) -> list[tuple[float, float]]:
    """Seconds of the slowest rank, harness and bare, pair by pair after the warm-up."""
    harness, bare = (
        [max(step) for step in zip(*(rank[k] for rank in ranks), strict=True)] for k in ("harness", "bare")
    )
    if len(harness) != PAIRS:
        raise BenchmarkFailedError("a rank has not trained every step")
    return list(zip(harness, bare, strict=True))[WARM_UP:]


def ratio(what: str, pairs: Sequence[tuple[float, float]], watching: float) -> Result:
    """Median of the pairs' ratios plus ``watching``, the watchdog's share of one core, as if it stole it from a rank.

    Inconclusive where the 95 % interval of the median (order statistics) reaches the goal.
    """
    ratios = sorted(harness / bare for harness, bare in pairs)
    reach = 0.98 * sqrt(len(ratios))
    low, high = (ratios[round(len(ratios) / 2 + sign * reach)] + watching for sign in (-1, 1))
    details = {
        "harness_ms": round(median(h for h, _ in pairs) * 1000, 2),
        "bare_ms": round(median(b for _, b in pairs) * 1000, 2),
        "interval_95": [round(low, 4), round(high, 4)],
        "watchdog_share_of_a_core": round(watching, 5),
        "num_pairs": len(pairs),
    }
    doubt = f"the 95 % interval is {low:.4f} to {high:.4f}" if low <= GOAL <= high else ""
    return Result(
        "overhead",
        f"step time over a bare loop, {what}",
        round(median(ratios) + watching, 4),
        GOAL,
        "ratio",
        details,
        doubt,
    )
