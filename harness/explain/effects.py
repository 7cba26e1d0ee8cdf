"""Which metrics a difference can change, the largest usual effect first."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from harness.records.golden import Difference
from harness.units import grouped

TIME = ("step_time_s",)
DEVICE = ("peak_device_bytes",)
RESERVED = ("peak_reserved_bytes", *DEVICE)
MEMORY = ("peak_allocated_bytes", *RESERVED)
BOTH = (*TIME, *MEMORY)
WORK = ("counted_flops_per_step", *BOTH)
_UNKNOWN = "unknown"
_FEW = "0 to a few percent"


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
