"""Two or more GPUs: overlap, CUDA graphs and interleaving change no loss, and the ranks end cleanly."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import checks
from case import Case, Check, Unfinished, case_name, judged
from machine import Target
from runs import Ran, Runs, case_of
from shapes import Shape

from harness.launch.heartbeats import UNENDED
from harness.records.run import RunRecord

NUM_GPUS = 2
FINISH_S = 30.0  # the ranks only free graphs and buffers and leave their process groups there


@dataclass(frozen=True)
class Layout:
    """A variant of parallel.yaml. ``plain`` are the `--set` values that switch its overlap or graphs off: the control.

    ``most_gpus``: it is run on as many where the machine has them.
    """

    name: str
    plain: tuple[str, ...]
    most_gpus: int = NUM_GPUS
    needs_gpu: bool = False

    def asked(self, target: Target) -> dict[str, Any]:
        """Return the fields of `Request` for a run on ``target``."""
        num_gpus = self.most_gpus if len(target.uuids) >= self.most_gpus else NUM_GPUS
        return {"variant": self.name, "num_gpus": num_gpus, "recompute": "none"}


_NO_OVERLAP = ("ddp.overlap_grad_reduce=false", "ddp.overlap_param_gather=false")
LAYOUTS = (
    Layout("user_buffers", ("kernels.tp_comm_overlap=false",)),
    Layout("distributed_optimizer", _NO_OVERLAP),
    Layout("te_graphs", ("cuda_graph.impl=none", "cuda_graph.scope=[]"), needs_gpu=True),
    Layout("interleaved", _NO_OVERLAP, most_gpus=4),  # with four, each stage has a copy to reduce gradients with
)


def compare_layouts(runs: Runs, recipes: Path) -> Iterator[Case]:
    """Run every layout without and with its overlap; the second run must train the same and end cleanly."""
    shape = Shape("parallel", recipes / "parallel.yaml")
    for layout in LAYOUTS:
        name = case_name("parallel", layout.name)
        if why := _why_not(runs.target, layout):
            yield Case(name, checks=(Check("trained", "skipped", why),))
        else:
            yield from _compared(runs, shape, layout, name)


def _why_not(target: Target, layout: Layout) -> str:
    if target.is_rehearsal:
        return f"{checks.GPU_ONLY}: CUDA graphs" if layout.needs_gpu else ""
    if len(target.uuids) < NUM_GPUS:
        return f"needs {NUM_GPUS} GPUs, ranks may use {len(target.uuids)} here"
    return "" if target.software.transformer_engine else "transformer-engine is not installed"


def _compared(runs: Runs, shape: Shape, layout: Layout, name: str) -> Iterator[Case]:
    asked, plain = layout.asked(runs.target), case_name(name, "plain")
    if {plain, name} <= set(runs.kept):
        yield from (runs.kept[plain], runs.kept[name])
        return
    control = runs.run(plain, shape, **asked, set_values=layout.plain)
    yield case_of(plain, control, checks.of_training)
    yield case_of(name, runs.run(name, shape, **asked), partial(_checked, control))


def _checked(control: Ran | Unfinished, ran: Ran) -> Iterator[Check]:
    yield from checks.of_training(ran)
    if ran.record and ran.record.status == "ok":
        yield clean_end(ran.record)
        yield checks.same_losses(ran.record, control.record, "overlap")


def clean_end(record: RunRecord) -> Check:
    """Check that every rank ended by itself, within FINISH_S of the last step."""
    if UNENDED in record.notes:
        return judged("clean_end", holds=False, found=UNENDED)
    slowest = max(rank.seconds.get("finish", 0.0) for rank in record.ranks)
    return judged("clean_end", holds=slowest <= FINISH_S, found=f"the slowest rank ended in {slowest:.1f} s")
