"""Step time under the harness over that of a bare megatron-core loop, both in turn on the same machine."""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from processes import BenchmarkFailedError, mbr_perf, timed
from result import Result

from harness.launch.environment import this_host
from harness.launch.plan import LaunchPlan
from harness.launch.rendezvous import free_port
from harness.recipes.request import Request
from harness.records.store import read_run
from harness.runner.machine import settled_gpu
from harness.runner.request import RunRequest
from harness.runner.understanding import Understood, understand

PAIRS = 3
STEPS = 30
WARM_UP = 5
GOAL = 1.01
BARE_LOOP = Path(__file__).with_name("bare_loop.py")
GPU_MODEL = Path(__file__).parents[1] / "gpu-check.d" / "dense.yaml"


def overhead() -> Result:
    """ABAB: harness, bare loop, three times; the ratio of the medians of the runs' medians after the warm-up."""
    host = this_host()
    gpu, _ = settled_gpu("", host)
    recipe = ("llama3_8b", None) if gpu == "cpu" else (str(GPU_MODEL), "h100")
    asked = Request(model_recipe_name=recipe[0], gpu=gpu, point_gpu=recipe[1], max_steps=STEPS)
    options = ("-mr", recipe[0], "-g", gpu, "-ms", str(STEPS), *(("--point_gpu", recipe[1]) if recipe[1] else ()))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        understood = understand(RunRequest(asked=asked), host, folder)
        (folder / "spec.json").write_text(understood.spec.model_dump_json())
        under_harness, bare = list[list[float]](), list[list[float]]()
        for number in range(PAIRS):
            under_harness.append(_under_harness(options, folder / f"run_{number}"))
            bare.append(_bare(understood, folder / "spec.json", folder / f"bare_{number}"))
    return ratio(f"{understood.spec.recipe} on {gpu}", under_harness, bare)


def _under_harness(options: Sequence[str], run_dir: Path) -> list[float]:
    timed((*mbr_perf("run", *options), "--run_dir", str(run_dir)))
    return _steps([[step.seconds for step in rank.steps] for rank in read_run(run_dir).ranks])


def _bare(understood: Understood, spec: Path, out: Path) -> list[float]:
    plan, out_files = understood.plan, range(understood.spec.num_gpus)
    assert isinstance(plan, LaunchPlan)
    out.mkdir()
    torchrun = (sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={plan.num_local_ranks}",
                "--master-addr=127.0.0.1", f"--master-port={free_port()}", str(BARE_LOOP), str(spec), str(out))  # fmt: skip
    timed(torchrun, env={v.name: v.value for v in plan.env})
    return _steps([json.loads((out / f"rank_{rank}.json").read_text()) for rank in out_files])


def _steps(seconds_of_rank: Sequence[Sequence[float]]) -> list[float]:
    """The slowest rank's seconds of every step after the warm-up."""
    if {len(seconds) for seconds in seconds_of_rank} != {STEPS}:
        raise BenchmarkFailedError("a rank has not trained every step")
    return [max(step) for step in zip(*seconds_of_rank, strict=True)][WARM_UP:]


def ratio(what: str, under_harness: Sequence[Sequence[float]], bare: Sequence[Sequence[float]]) -> Result:
    """Inconclusive above the goal where runs of one kind differ among themselves by more than the two kinds do."""
    medians = [[median(run) for run in kind] for kind in (under_harness, bare)]
    fastest = [min(min(run) for run in kind) for kind in (under_harness, bare)]
    value = median(medians[0]) / median(medians[1])
    spread = max(max(kind) / min(kind) - 1 for kind in medians)
    details = {
        "harness_ms": [round(s * 1000, 2) for s in medians[0]],
        "bare_ms": [round(s * 1000, 2) for s in medians[1]],
        "ratio_of_fastest_steps": round(fastest[0] / fastest[1], 4),
        "spread": round(spread, 4),
        "num_steps": STEPS,
    }
    noise = f"runs of one kind differ by {spread:.1%}" if spread > value - 1 else ""
    return Result("overhead", f"step time over a bare loop, {what}", round(value, 4), GOAL, "ratio", details, noise)
