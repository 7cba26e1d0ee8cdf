"""Explains a difference: which causes can account for it."""

import math
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from harness.explain.contrast import contrast
from harness.explain.values import Cause, Change, Explanation, Side
from harness.records.golden import Difference
from harness.records.metrics import BY_NAME, METRICS, SUMMARY_METRICS, Metric
from harness.records.run import BUILT_OTHERWISE
from harness.units import grouped

# A smaller change needs no explanation, whatever its noise.
NOTHING = 0.002
_TWO_SIGMA = 2.0
_FIND_COMMIT = "find the commit: mbr-perf bisect RUN --metric recompute --good REV --bad REV --repo FOLDER"
_TIME, _RATE = "step_time_s", "tflops_per_gpu"


def changes(ours: Side, theirs: Side) -> tuple[Change, ...]:
    """Return every gated or stored metric that either side has."""
    stored = [metric for metric in METRICS if metric.gate or metric.name in SUMMARY_METRICS]
    return tuple(_change(metric, ours, theirs) for metric in stored if metric.name in {*ours.metrics, *theirs.metrics})


def moved(change: Change) -> bool:
    """Return whether there are two values, and they differ."""
    return change.change is not None and abs(change.change) >= NOTHING


def _change(metric: Metric, ours: Side, theirs: Side) -> Change:
    here, there = ours.metrics.get(metric.name), theirs.metrics.get(metric.name)
    if here is None or there is None:
        return Change(metric.name, here, there, None)
    return Change(metric.name, here, there, (here - there) / there, _noise(metric, ours, theirs))


def _noise(metric: Metric, ours: Side, theirs: Side) -> float | None:
    """Return the difference that 19 of 20 pairs of equal runs stay within; on a CPU, that of its thresholds."""
    spread = max(side.spreads.get(metric.name, -1) for side in (ours, theirs))
    if spread >= 0:
        return _TWO_SIGMA * spread * math.sqrt(1 / ours.num_runs + 1 / theirs.num_runs)
    if metric.gate == "exact":
        return 0.0
    row = ours.spec.gpu_type if ours.spec else None
    if row is None or not row.is_cpu:
        return None
    return row.memory_threshold if metric.unit == "bytes" else row.timing_threshold


def verdict(changes: Sequence[Change]) -> tuple[str, ...]:
    """Say what is not known of the changes."""
    if all(change.change is None for change in changes):
        return ("No metric has a value on both sides, so the list shows only what differs.",)
    unknown = ", ".join(BY_NAME[each.metric].title for each in changes if moved(each) and each.noise is None)
    return (f"{unknown}: the noise is unknown, because neither side has repeats.",) if unknown else ()


def advice(changes: Sequence[Change], causes: Sequence[Cause]) -> tuple[str, ...]:
    """Return the next step; none if no metric changed."""
    able = next((cause.name for cause in causes if cause.can_explain), "")
    if not any(map(moved, changes)):
        return ()
    remove = f"remove one difference at a time, beginning with: {able}"
    return (remove if able else "repeat the run at least three times, on other nodes, and compare with --repeat",)


TIME = ("step_time_s",)
DEVICE = ("peak_device_bytes",)
RESERVED = ("peak_reserved_bytes", *DEVICE)
MEMORY = ("peak_allocated_bytes", *RESERVED)
BOTH = (*TIME, *MEMORY)
WORK = ("counted_flops_per_step", *BOTH)
_UNKNOWN = "unknown"
_FEW = "0 to a few percent"
SMALL = (_FEW, "usually none")
"""Usual effects that explain no change above ``FEW_PERCENT``."""
FEW_PERCENT = 0.04


class Effect(NamedTuple):
    """A row. ``takes``: patterns of ``group:name``, the first row that fits. ``moves``: metrics. ``size``: usually."""

    name: str
    takes: str
    moves: tuple[str, ...]
    size: str


_ROWS = (
    ("another GPU or CPU", "device:*", BOTH, "by the ratio of the peak FLOP/s"),
    ("another recompute setting", "settings:recompute recompute:*", WORK, "time up to a third, memory several times"),
    ("other work in a step", "settings:model.* settings:batch.* settings:num_gpus settings:task settings:recipe", WORK,
     "as the work changes"),
    ("another precision", "settings:compute_dtype", BOTH, "time up to two times"),
    ("another parallel layout", "settings:parallelism.*", BOTH, "time tens of percent, memory several times"),
    ("other CUDA graphs", "settings:cuda_graph.*", BOTH, "time tens of percent; graphs keep their own buffers"),
    ("other kernels or offloading", "settings:kernels.* settings:offload.*", BOTH, "up to tens of percent"),
    ("other optimizer or data-parallel settings", "settings:optimizer.* settings:ddp.*", BOTH, "some percent"),
    ("another memory limit", "settings:measure.memory_limit_bytes", BOTH, "slower near the limit"),
    ("other settings", "settings:*", BOTH, _UNKNOWN),
    ("throttling or other clocks", "clocks:*", TIME, "up to the ratio of the SM clocks"),
    ("other processes on the GPU", "processes:*", (*TIME, *DEVICE), "up to a half of the time"),
    ("the allocator freed memory and retried", "memory:*", TIME, "some percent to several times"),
    ("kernels launched one by one",
     "environment:CUDA_LAUNCH_BLOCKING environment:NVTE_DEBUG* environment:TORCH_*DEBUG* environment:NCCL_DEBUG*",
     TIME, "some percent to several times"),
    ("another number of hardware queues", "environment:CUDA_DEVICE_MAX_CONNECTIONS", TIME, "some percent"),
    ("other switches of transformer-engine", "environment:NVTE_*", BOTH, "up to tens of percent"),
    ("other communication settings", "environment:NCCL_* environment:TORCH_NCCL_* environment:GLOO_* environment:UCX_*",
     (*TIME, *DEVICE), "some percent; device memory: hundreds of MiB"),
    ("another allocator setting", "environment:PYTORCH_*ALLOC*", (*TIME, *RESERVED), "reserved: tens of percent"),
    ("other processors, threads or memory of the host", "place:cpus environment:OMP_* environment:MKL_* "
     "environment:*_NUM_THREADS environment:MALLOC_* environment:LD_PRELOAD", TIME, "on a CPU, by their ratio"),
    ("other environment variables", "environment:*", BOTH, _UNKNOWN),
    ("another transformer-engine", "software:transformer-engine", BOTH, "up to tens of percent"),
    ("other software", "software:torch software:megatron-core software:cuda "
     "software:cudnn software:nccl software:cublas software:container", BOTH, "some percent"),
    ("other packages", "software:*", TIME, "usually none"),
    ("another driver", "driver:*", (*TIME, *DEVICE), _FEW),
    ("other measured steps", "window:*", TIME, _FEW),
    ("another host", "place:*", BOTH, _FEW),
    ("another formula", "formula:*", ("tflops_per_gpu",), "TFLOP/s by the ratio of the formulas"),
)  # fmt: skip
EFFECTS = tuple(map(Effect._make, _ROWS))


def by_effect(differences: Iterable[Difference]) -> list[tuple[Effect, tuple[Difference, ...]]]:
    """Return the rows that take differences, in the table's order; each difference is in the first row that fits."""
    taken = grouped((effect_of(each).name, each) for each in differences)
    return [(effect, tuple(taken[effect.name])) for effect in EFFECTS if effect.name in taken]


def effect_of(difference: Difference) -> Effect:
    """Return the first row that takes it; every group has one."""
    name = f"{difference.group}:{difference.name}"
    return next(effect for effect in EFFECTS if any(fnmatchcase(name, each) for each in effect.takes.split()))


def explain(ours: Side, theirs: Side) -> Explanation:
    """Return changes, causes and next steps. Throughput counts where only it is known on both sides."""
    compared, (differences, num_compared, num_one_sided) = changes(ours, theirs), contrast(ours, theirs)
    open_changes = {each.metric for each in compared if moved(each) and not each.is_noise}
    has_time = any(each.metric == _TIME and each.change is not None for each in compared)
    each = []
    for effect, here in by_effect(differences):
        moves = (*effect.moves, _RATE) if _TIME in effect.moves and not has_time else effect.moves
        each.append(Cause.of(effect, differences=here, explains=tuple(filter(open_changes.__contains__, moves))))
    ordered = sorted(each, key=lambda cause: not cause.can_explain)
    causes = tuple(cause.model_copy(update={"rank": rank}) for rank, cause in enumerate(ordered, 1))
    built = tuple(why.removeprefix("suspect: ") for why in ours.caveats if BUILT_OTHERWISE in why)
    steps = advice(compared, causes) if ours.kind == "run" else ()
    return Explanation(
        run=ours,
        reference=theirs,
        metrics=compared,
        verdict=built or verdict(compared),
        causes=causes,
        num_compared=num_compared,
        num_one_sided=num_one_sided,
        advice=(_FIND_COMMIT,) if built else steps,
    )
