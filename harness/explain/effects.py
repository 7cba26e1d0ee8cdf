"""What a difference can move, as a table in the order of how much it usually moves."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from harness.explain import sizes
from harness.explain.values import Departure, Group

TIME = ("step_time_s",)
DEVICE = ("peak_device_bytes",)
RESERVED = ("peak_reserved_bytes", *DEVICE)
MEMORY = ("peak_allocated_bytes", *RESERVED)
BOTH = (*TIME, *MEMORY)
WORK = ("counted_flops_per_step", *BOTH)


@dataclass(frozen=True)
class Effect:
    """One row. It takes the departures of ``group`` whose name matches one of ``names`` and no earlier row's.

    ``moves``: metrics. ``size``: how much, roughly. ``why``: how it acts, or where that is said. ``estimate``: what
    arithmetic says of the two sides.
    """

    name: str
    group: Group
    names: tuple[str, ...]
    moves: tuple[str, ...]
    size: str
    why: str
    estimate: sizes.Estimator = sizes.unknown


_SETTINGS: tuple[Effect, ...] = (
    Effect("another recompute setting", "settings", ("recompute",), WORK, "time up to a third, memory several times",
           "forward work is executed again instead of kept; full recompute repeats the whole forward pass, a third of all work",
           sizes.recompute),
    Effect("other work in a step", "settings", ("model.*", "batch.*", "num_gpus", "task", "recipe"), WORK,
           "in proportion to the work", "FLOPs of a step by the model formula; activations grow with the tokens of a micro-batch",
           sizes.work),
    Effect("another precision", "settings", ("compute_dtype",), BOTH, "time up to two times",
           "tensor cores have another peak; weights and activations have another size", sizes.precisions),
    Effect("another parallel layout", "settings", ("parallelism.*",), BOTH, "tens of percent of time, memory several times",
           "communication, pipeline bubbles, and what a rank holds of the model"),
    Effect("other CUDA graphs", "settings", ("cuda_graph.*",), BOTH, "time up to tens of percent where launches limit it",
           "no launches by the processor; graphs keep buffers of their own"),
    Effect("other offloading", "settings", ("offload.*",), BOTH, "tens of percent of either",
           "activations move to the host and back over PCIe or NVLink-C2C"),
    Effect("other kernels", "settings", ("kernels.*",), BOTH, "some percent to tens of percent",
           "another implementation or overlap of the same arithmetic"),
    Effect("other optimizer or data-parallel settings", "settings", ("optimizer.*", "ddp.*"), BOTH,
           "time some percent; memory by the bytes of state per parameter",
           "optimizer state and gradients have another size or are exchanged at another time"),
    Effect("another memory limit", "settings", ("measure.memory_limit_bytes",), BOTH, "time where memory is short",
           "near its limit the allocator frees and asks again, and waits for the GPU each time"),
    Effect("another seed", "settings", ("measure.seed",), BOTH, "some percent with experts, else nothing",
           "the seed routes tokens to experts"),
    Effect("other settings", "settings", ("*",), BOTH, "not known", "no rule is known for them"),
)  # fmt: skip

_ENVIRONMENT: tuple[Effect, ...] = (
    Effect("kernels launched one by one", "environment", ("CUDA_LAUNCH_BLOCKING", "NVTE_DEBUG*", "TORCH_*DEBUG*", "NCCL_DEBUG*"),
           TIME, "some percent to several times", "debugging makes the processor wait, or write logs"),
    Effect("another number of hardware queues", "environment", ("CUDA_DEVICE_MAX_CONNECTIONS",), TIME, "some percent",
           "1 keeps communication ahead of the compute it overlaps with (megatron arguments); more lets them pass each other"),
    Effect("another attention or other switches of transformer-engine", "environment", ("NVTE_*",), BOTH,
           "some percent to tens of percent",
           "they choose the attention kernel, determinism, and SMs left to communication"),
    Effect("other communication settings", "environment", ("NCCL_*", "TORCH_NCCL_*", "GLOO_*", "UCX_*"), (*TIME, *DEVICE),
           "some percent; device memory by hundreds of MiB",
           "algorithm, channels and buffers of collectives; NVLS keeps buffers outside the allocator"),
    Effect("another allocator setting", "environment", ("PYTORCH_*ALLOC*",), (*TIME, *RESERVED),
           "reserved memory by some percent to tens of percent",
           "expandable segments fragment less; allocated bytes stay the same"),
    Effect("other threads", "environment", ("OMP_*", "MKL_*", "*_NUM_THREADS"), TIME, "in proportion, on a processor",
           "arithmetic on the processor is spread over threads", sizes.threads),
    Effect("another memory allocator of the host", "environment", ("MALLOC_*", "LD_PRELOAD"), TIME,
           "some percent on a processor", "pages that are given back are mapped anew"),
    Effect("other environment variables", "environment", ("*",), BOTH, "not known", "no rule is known for them"),
)  # fmt: skip

_SOFTWARE: tuple[Effect, ...] = (
    Effect("another transformer-engine", "software", ("transformer-engine",), BOTH, "some percent to tens of percent",
           "it brings the attention, GEMM and norm kernels and decides what they save for backward"),
    Effect("another torch", "software", ("torch",), BOTH, "some percent",
           "it brings cuBLAS, NCCL, the allocator and autograd"),
    Effect("another megatron-core", "software", ("megatron-core",), BOTH, "some percent",
           "schedules, overlap, and what recompute does"),
    Effect("another CUDA or communication library", "software", ("cuda", "cudnn", "nccl", "cublas"), (*TIME, *DEVICE),
           "some percent", "it chooses other kernels or algorithms"),
    Effect("another container image", "software", ("container",), BOTH, "what the libraries in it bring",
           "the versions above say most of it; system libraries and their patches come with it too"),
    Effect("other packages", "software", ("*",), TIME, "seldom anything", "no kernel of a step comes from them"),
    Effect("another driver", "driver", ("*",), (*TIME, *DEVICE), "0 to some percent",
           "clocks and power management, and what the driver keeps for itself on the device"),
)  # fmt: skip

EFFECTS: tuple[Effect, ...] = (
    Effect("another GPU or processor", "device", ("*",), BOTH, "as the products differ, up to several times",
           "peak, bandwidth and memory of the product; cards of one generation differ by form factor", sizes.products),
    *_SETTINGS,
    Effect("other recompute in effect", "recompute", ("*",), WORK, "as another recompute setting",
           "modules may be inert in one megatron-core and act in another", sizes.recompute),
    Effect("throttling or other clocks", "clocks", ("*",), TIME, "up to the ratio of the clocks",
           "compute-bound kernels take longer in proportion to the SM clock, and all ranks wait for the slowest GPU",
           sizes.clocks),
    Effect("other processes on the GPU", "processes", ("*",), (*TIME, *DEVICE), "up to a half of the time",
           "they take turns with the ranks and hold memory of their own",
           sizes.disturbance(("processes", "foreign_processes"), "shared", adds_memory=True)),
    Effect("the allocator freed and tried again", "memory", ("alloc_retries",), TIME, "some percent to several times",
           "each retry waits for the GPU and gives memory back to the driver",
           sizes.disturbance(("memory", "alloc_retries"), "retries")),
    Effect("a slow rank", "ranks", ("*",), TIME, "by as much as it is behind",
           "a step ends with its slowest rank; waiting hides part of it, so the true excess may be larger", sizes.imbalance),
    *_ENVIRONMENT,
    *_SOFTWARE,
    Effect("less steady steps", "window", ("spread_of_steps",), TIME, "0 to some percent",
           "single slow steps leave the median alone; many of them say that something disturbs the machine",
           sizes.unsteadiness),
    Effect("another window", "window", ("*",), TIME, "0 to some percent",
           "early steps contain warm-up (compilation, allocator, clocks); few steps have a less certain median"),
    Effect("the highest peak lies on another rank", "memory", ("worst_rank.*",), (), "nothing by itself",
           "it says where to look: another pipeline stage grew"),
    Effect("other hosts", "place", ("*",), BOTH, "0 to some percent",
           "cooling, silicon and cabling differ between nodes of one kind"),
    Effect("another formula", "formula", ("*",), ("tflops_per_gpu",), "as the formulas differ",
           "TFLOP/s are worked out from step times; those do not depend on it"),
    Effect("another harness or command", "harness", ("*",), (), "nothing that is not listed above",
           "what was asked and what was in effect are compared one by one"),
    Effect("other readings of memory", "memory", ("*",), MEMORY, "not known", "no rule is known for them"),
)  # fmt: skip


def grouped(departures: Iterable[Departure]) -> list[tuple[Effect, tuple[Departure, ...]]]:
    """The rows that take any of the departures, in the table's order, each departure in exactly one."""
    taken: dict[str, list[Departure]] = {}
    for departure in departures:
        taken.setdefault(effect_of(departure).name, []).append(departure)
    asked, acting = (effect.name for effect in EFFECTS if effect.estimate is sizes.recompute)
    if asked in taken and acting in taken:  # one follows from the other
        taken[asked] += taken.pop(acting)
    return [(effect, tuple(taken[effect.name])) for effect in EFFECTS if effect.name in taken]


def effect_of(departure: Departure) -> Effect:
    """The first row that takes it; there is one for every group."""
    return next(
        effect
        for effect in EFFECTS
        if effect.group == departure.group and any(fnmatchcase(departure.name, name) for name in effect.names)
    )
