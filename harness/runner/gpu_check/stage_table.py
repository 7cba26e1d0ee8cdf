"""The stages of gpu-check by name, in the order in which they are gone through."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.launch.warm import WarmParents
from harness.runner.gpu_check.case import Case, case_name
from harness.runner.gpu_check.checks import Check
from harness.runner.gpu_check.killing import kill_a_rank
from harness.runner.gpu_check.noise import weigh_sampler
from harness.runner.gpu_check.ooms import make_ooms
from harness.runner.gpu_check.planner import compare_groups
from harness.runner.gpu_check.runs import Runs
from harness.runner.gpu_check.shapes import Shape
from harness.runner.gpu_check.snapshots import read_snapshots
from harness.runner.gpu_check.stages import survive_oom, train_settings


@dataclass(frozen=True)
class Asked:
    """What the stages are about. ``recompute``: only these settings, beside none. ``named``: shapes were chosen by name."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    recompute: tuple[str, ...] | None = None
    named: bool = False


def _oom(runs: Runs, asked: Asked) -> Iterator[Case]:
    yield from survive_oom(runs, asked.shapes[0])
    yield from make_ooms(runs)


def _snapshot(runs: Runs, asked: Asked) -> Iterator[Case]:
    yield from read_snapshots(runs, asked.shapes[0])


def _kill(runs: Runs, asked: Asked) -> Iterator[Case]:
    yield from kill_a_rank(runs, asked.shapes[0])


def _noise(runs: Runs, asked: Asked) -> Iterator[Case]:
    yield from weigh_sampler(runs, asked.shapes[0])


def _planner(runs: Runs, asked: Asked) -> Iterator[Case]:
    with WarmParents() as parents:
        for shape in asked.shapes:
            missing = _needs_te(runs, asked, shape, "planner")
            yield from [missing] if missing else compare_groups(runs, shape, asked.dtypes, asked.recompute, parents)


def _train(runs: Runs, asked: Asked) -> Iterator[Case]:
    for shape in asked.shapes:
        missing = _needs_te(runs, asked, shape, "train")
        yield from [missing] if missing else train_settings(runs, shape, asked.recompute)


def _needs_te(runs: Runs, asked: Asked, shape: Shape, stage: str) -> Case | None:
    """A shape that was named is tried without transformer-engine, too."""
    if not shape.needs_te or asked.named or runs.target.is_rehearsal or runs.target.software.transformer_engine:
        return None
    return Case(case_name(shape.name, stage), checks=(Check(stage, "skipped", "transformer-engine is not installed"),))


STAGES: dict[str, tuple[Callable[[Runs, Asked], Iterator[Case]], str]] = {
    "oom": (_oom, "a run out of memory and the next one; memory made to run out in every way, each text classified"),
    "snapshot": (_snapshot, "real memory snapshots, their sums against torch's own counters"),
    "kill": (_kill, "kill -9 of a rank leaves nothing behind"),
    "noise": (_noise, "step time with and without the NVML sampler, and of equal runs"),
    "planner": (_planner, "predicted and measured bytes, phase by phase, under every legal recompute setting"),
    "train": (_train, "runs under every module and whole layers: memory readings in order, same losses"),
}
