"""Two kinds of steps taken in turn by one run: what one costs over the other."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from pathlib import Path
from statistics import median

from processes import BenchmarkFailedError

from harness.launch.environment import this_host
from harness.launch.machine import settled_gpu
from harness.launch.plan import LaunchPlan
from harness.launch.replay import execute
from harness.measure.understanding import RunRequest, Understood, understand
from harness.resolve.recipe import Request

PAIRS = 400
WARM_UP = 5
CPU_SEQ_LENGTH = 128  # short steps: the harness takes a fixed time of each
ALTERNATING = Path(__file__).with_name("alternating.py")
GPU_MODEL = Path(__file__).parents[1] / "gpu-check.d" / "dense.yaml"

Pairs = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Ratio:
    """The ratio of the times of two kinds of steps, with its 95 % interval."""

    value: float
    low: float
    high: float

    def doubt(self, goal: float) -> str:
        """Return why ``goal`` cannot be judged; empty if the interval does not reach it."""
        return f"the 95 % interval is {self.low:.4f} to {self.high:.4f}" if self.low <= goal <= self.high else ""


def understood_here(folder: Path) -> Understood:
    """Return a small dense model on this machine, and its ``spec.json`` in ``folder``."""
    host = this_host()
    gpu, _ = settled_gpu("", host)
    asked = Request(model_recipe_name="llama3_8b", gpu=gpu, seq_length=CPU_SEQ_LENGTH, max_steps=PAIRS)
    if gpu != "cpu":
        asked = Request(model_recipe_name=str(GPU_MODEL), gpu=gpu, point_gpu="h100", max_steps=PAIRS)
    understood = understand(RunRequest(asked=asked), host, folder)
    (folder / "spec.json").write_text(understood.spec.model_dump_json())
    return understood


def train_pairs(understood: Understood, folder: Path, num_pairs: int) -> float:
    """Run the pairs; return the share of one core that this process took to watch them, as `mbr-perf run` does."""
    plan = understood.plan
    assert isinstance(plan, LaunchPlan)
    worker = (str(ALTERNATING), str(folder), str(num_pairs))
    cpu, wall = time.process_time(), time.perf_counter()
    outcome = execute(replace(plan, worker=worker, sampler=None), on_progress=lambda _: None)
    if outcome.status != "ok":
        raise BenchmarkFailedError(f"{outcome.reason}\n{plan.launcher_log.read_text()[-2000:]}")
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def pairs_of(folder: Path, first_kind: str, second_kind: str, num_pairs: int) -> Pairs:
    """Return seconds of the slowest rank for the two kinds, pair by pair after the warm-up. ``num_pairs`` includes the warm-up."""
    ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("seconds_*.json"))]
    first, second = (
        [max(step) for step in zip(*(rank[kind] for rank in ranks), strict=True)] for kind in (first_kind, second_kind)
    )
    if len(first) != num_pairs:
        raise BenchmarkFailedError("a rank has not trained every step")
    return list(zip(first, second, strict=True))[WARM_UP:]


def ratio_of(pairs: Pairs) -> Ratio:
    """Estimate first / second by Hodges and Lehmann (1963), from the logarithms of the pairs' ratios.

    It is the median of the means of all two of them: as safe from a few slow steps as their own median, and less noisy.
    The interval is that of Wilcoxon's signed ranks.
    """
    logs = [log(first / second) for first, second in pairs]
    means = sorted((a + b) / 2 for place, a in enumerate(logs) for b in logs[place:])
    n = len(logs)
    outside = max(0, round(n * (n + 1) / 4 - 1.96 * sqrt(n * (n + 1) * (2 * n + 1) / 24)))
    return Ratio(exp(median(means)), exp(means[outside]), exp(means[-1 - outside]))


def median_ms(seconds: Sequence[float]) -> float:
    """Return the median in milliseconds."""
    return round(median(seconds) * 1000, 2)
