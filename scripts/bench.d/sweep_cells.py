"""Measures a sweep cell's cost beyond its training: forked from a warm parent, and with a fresh torchrun."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from processes import BenchmarkFailedError
from result import Result

from harness.launch.environment import this_host
from harness.launch.machine import settled_gpu
from harness.launch.plan import Nodes
from harness.launch.warm import WarmParents
from harness.measure.launched import Launch, launched
from harness.measure.prediction import KeptPrediction
from harness.measure.understanding import RunRequest, understand
from harness.records.collect import LaunchOutcome
from harness.records.strict_json import read_document
from harness.resolve.recipe import Request

SETTINGS = ("none", "core_attn", "mlp", "full:uniform:1")
ROUNDS = 2
STEPS = 2
GOAL_S = 1.5
TRAINING = ("step", "probe")  # the probe is a further step, in which FLOPs and memory are counted
GPU_MODEL = Path(__file__).parents[1] / "gpu-check.d" / "dense.yaml"


@dataclass(frozen=True)
class Cell:
    """Seconds of one cell: ``wall`` from the request to the committed record, ``phases`` of its slowest rank."""

    wall_s: float
    phases: dict[str, float]

    @property
    def training_s(self) -> float:
        return sum(self.phases.get(phase, 0.0) for phase in TRAINING)

    @property
    def beyond_s(self) -> float:
        """Return all the rest: start, imports, process groups, model, optimizer, end, collection, record."""
        return self.wall_s - self.training_s


def sweep_cells() -> Result:
    """Measure every setting twice each way, in the order A B B A, after one warm cell in which the parent imports."""
    gpu, _ = settled_gpu("", this_host())
    with tempfile.TemporaryDirectory() as name, WarmParents() as parents:
        folder = Path(name)
        first = measured(SETTINGS[0], gpu, folder / "first", parents)
        warm, fresh = list[Cell](), list[Cell]()
        for number, setting in enumerate(SETTINGS * ROUNDS):
            ways = [(warm, parents), (fresh, None)]
            for cells, kept in ways if number % 2 == 0 else reversed(ways):
                cells.append(measured(setting, gpu, folder / f"{number}_{kept is None}", kept))
    return summary(gpu, first, warm, fresh)


def measured(setting: str, gpu: str, run_dir: Path, parents: WarmParents | None) -> Cell:
    """Run one cell as a sweep does, with its prediction made before."""
    run_dir.mkdir()
    recipe = ("llama3_8b", None) if gpu == "cpu" else (str(GPU_MODEL), "h100")
    asked = Request(model_recipe_name=recipe[0], gpu=gpu, point_gpu=recipe[1], max_steps=STEPS, recompute=setting)
    began = time.perf_counter()
    understood = understand(RunRequest(asked=asked), this_host(), run_dir)
    launch = Launch(understood, run_dir, run_dir.name, Nodes())
    ran = launched(launch, progress=lambda _: nullcontext(lambda _: None), prediction=_predicted, parents=parents)
    wall = time.perf_counter() - began
    outcome = read_document(run_dir / "ranks" / "outcome.json", LaunchOutcome)
    if ran.record.status != "ok" or outcome.warm != (parents is not None):
        raise BenchmarkFailedError(ran.record.failure or "; ".join(outcome.notes))
    slowest = max(ran.record.ranks, key=lambda rank: sum(rank.seconds.values()))
    return Cell(wall, dict(slowest.seconds))


@contextmanager
def _predicted() -> Iterator[Callable[[int | None], KeptPrediction]]:
    yield lambda _: KeptPrediction(None, "predicted before")


def summary(gpu: str, first: Cell, warm: list[Cell], fresh: list[Cell]) -> Result:
    """Return the medians; the goal is for the warm cells."""
    beyond_warm, beyond_fresh = (median(cell.beyond_s for cell in cells) for cells in (warm, fresh))
    details = {
        "beyond_training_s": {"warm": _all(warm), "fresh": _all(fresh)},
        "fresh_s": round(beyond_fresh, 3),
        "fresh_over_warm": round(beyond_fresh / beyond_warm, 1),
        "cell_s": {"warm": _median([c.wall_s for c in warm]), "fresh": _median([c.wall_s for c in fresh])},
        "training_s": {"warm": _median([c.training_s for c in warm]), "fresh": _median([c.training_s for c in fresh])},
        "first_warm_cell_s": round(first.beyond_s, 3),
        "where_s": {"warm": _where(warm), "fresh": _where(fresh)},
    }
    title = f"a sweep's cell beyond its steps and probe, llama3_8b on {gpu}"
    return Result("sweep_cells", title, round(beyond_warm, 3), GOAL_S, "s", details)


def _all(cells: list[Cell]) -> list[float]:
    return [round(cell.beyond_s, 3) for cell in cells]


def _median(seconds: list[float]) -> float:
    return round(median(seconds), 3)


def _where(cells: list[Cell]) -> dict[str, float]:
    """Return medians of the slowest rank's phases, and of the time outside the ranks."""
    phases = [phase for phase in cells[0].phases if phase not in TRAINING]
    where = {phase: _median([cell.phases.get(phase, 0.0) for cell in cells]) for phase in phases}
    return where | {"outside_ranks": _median([cell.wall_s - sum(cell.phases.values()) for cell in cells])}
