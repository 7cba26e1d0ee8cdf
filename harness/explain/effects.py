"""What a difference can move, in the order of how much it usually moves, and how much where arithmetic can say so."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from harness.experiment.experiment import ExperimentSpec
from harness.explain.values import NONE_SEEN, Departure, Group, Key, Side
from harness.planning import flops
from harness.units import format_percent


@dataclass(frozen=True)
class Estimate:
    """Relative changes that a cause would make on our side, with how that was reckoned.

    ``step_time``: None where arithmetic cannot say. ``*_sign``: +1 or -1 where only the direction is known.
    """

    text: str
    step_time: float | None = None
    step_time_sign: int | None = None
    memory_sign: int | None = None


Estimator = Callable[[Side, Side], Estimate | None]


def disturbance(key: Key, what: str, *, adds_memory: bool = False) -> Estimator:
    """What lengthens the steps of the side that has it; with ``adds_memory`` its device memory is fuller, too."""

    def estimate(ours: Side, theirs: Side) -> Estimate | None:
        here, there = (side.facts.get(key, NONE_SEEN) != NONE_SEEN for side in (ours, theirs))
        if here == there:
            return None
        sign = 1 if here else -1
        text = f"{what} {'here' if here else 'there'}"
        return Estimate(text, step_time_sign=sign, memory_sign=sign if adds_memory else None)

    return estimate


_THROTTLED: Key = ("clocks", "throttling")


def products(ours: Side, theirs: Side) -> Estimate | None:
    """Step times in inverse proportion to the dense peaks of the two GPU types in our precision."""
    return _by_peak(ours.spec, ours.spec, theirs.spec, ours.spec)


def precisions(ours: Side, theirs: Side) -> Estimate | None:
    """Step times in inverse proportion to the dense peaks of our GPU type in the two precisions."""
    return _by_peak(ours.spec, ours.spec, ours.spec, theirs.spec)


def _by_peak(*specs: ExperimentSpec | None) -> Estimate | None:
    """``specs``: what names the product and what the precision, here and there."""
    product, precision, other_product, other_precision = specs
    if product is None or precision is None or other_product is None or other_precision is None:
        return None
    here = product.gpu_type.peak_flops.get(precision.precision.peak)
    there = other_product.gpu_type.peak_flops.get(other_precision.precision.peak)
    if here is None or there is None or here == there:
        return None
    text = f"dense peak {here / 1e12:.0f} TFLOP/s here, {there / 1e12:.0f} there"
    return Estimate(text, step_time=there / here - 1)


def work(ours: Side, theirs: Side) -> Estimate | None:
    """Step times in proportion to the model FLOPs of a step per GPU."""
    if ours.spec is None or theirs.spec is None:
        return None
    here, there = (flops.model_flops_per_step(spec) / spec.num_gpus for spec in (ours.spec, theirs.spec))
    if here == there:
        return None
    change = here / there - 1
    return Estimate(f"model FLOPs of a step per GPU {format_percent(change)}", step_time=change)


def recompute(ours: Side, theirs: Side) -> Estimate | None:
    """What is executed again, as a share of the model FLOPs; who executes more keeps less."""
    here, there = _again(ours), _again(theirs)
    if here is None or there is None:
        return None
    if here == there:
        return Estimate("as many FLOPs are executed again on both sides")
    text = f"recompute executes {here * 100:.1f} % of the model FLOPs again here, {there * 100:.1f} % there"
    return Estimate(text, step_time=(1 + here) / (1 + there) - 1, memory_sign=-1 if here > there else 1)


def _again(side: Side) -> float | None:
    if side.spec is None or side.effective is None:
        return None
    return flops.recompute_flops_per_step(side.spec, side.effective) / flops.model_flops_per_step(side.spec)


def clocks(ours: Side, theirs: Side) -> Estimate | None:
    """Steps wait for the slowest GPU, whose kernels take longer in proportion to its SM clock (most: compute-bound).

    Against a side without clocks the fastest GPU of the same run stands for what the clock should be.
    """
    here, there = ours.numbers.get("sm_clock_min_mhz"), theirs.numbers.get("sm_clock_min_mhz")
    whose = "there"
    if here is not None and there is None:
        there, whose = ours.numbers.get("sm_clock_max_mhz"), "on the fastest GPU of this run"
    if here is None or there is None or not here:
        return disturbance(_THROTTLED, "throttled")(ours, theirs)
    text = f"slowest SM clock {here:.0f} MHz here, {there:.0f} MHz {whose}"
    if abs(there / here - 1) < 0.01:
        return disturbance(_THROTTLED, f"{text}; throttled")(ours, theirs)
    return Estimate(text, step_time=there / here - 1)


def unsteadiness(ours: Side, theirs: Side) -> Estimate | None:
    """What makes single steps slow makes the others slower, if anything."""
    here, there = ours.numbers.get("spread_of_steps"), theirs.numbers.get("spread_of_steps")
    if here is None or there is None:
        return None
    return Estimate(f"less steady {'here' if here > there else 'there'}", step_time_sign=1 if here > there else -1)


def imbalance(ours: Side, theirs: Side) -> Estimate | None:
    """Every step ends with the slowest rank; without a reading of the other side it is taken for balanced."""
    here, there = ours.numbers.get("imbalance"), theirs.numbers.get("imbalance", 0.0)
    if here is None:
        return None
    change = (1 + here) / (1 + there) - 1
    return Estimate(f"the slowest rank is {here * 100:.1f} % behind the middle one here", step_time=change)


def threads(ours: Side, theirs: Side) -> Estimate | None:
    """More threads per rank make CPU steps shorter, as long as there are cores for them."""
    here, there = (side.facts.get(("environment", "OMP_NUM_THREADS"), "") for side in (ours, theirs))
    if not (here.isdigit() and there.isdigit()) or here == there:
        return None
    return Estimate(f"{here} threads per rank here, {there} there", step_time_sign=-1 if int(here) > int(there) else 1)


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
    estimate: Estimator = lambda _ours, _theirs: None


_SETTINGS: tuple[Effect, ...] = (
    Effect("another recompute setting", "settings", ("recompute",), WORK, "time up to a third, memory several times",
           "forward work is executed again instead of kept; full recompute repeats the whole forward pass, a third of all work",
           recompute),
    Effect("other work in a step", "settings", ("model.*", "batch.*", "num_gpus", "task", "recipe"), WORK,
           "in proportion to the work", "FLOPs of a step by the model formula; activations grow with the tokens of a micro-batch",
           work),
    Effect("another precision", "settings", ("compute_dtype",), BOTH, "time up to two times",
           "tensor cores have another peak; weights and activations have another size", precisions),
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
           "arithmetic on the processor is spread over threads", threads),
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
           "peak, bandwidth and memory of the product; cards of one generation differ by form factor", products),
    *_SETTINGS,
    Effect("other recompute in effect", "recompute", ("*",), WORK, "as another recompute setting",
           "modules may be inert in one megatron-core and act in another", recompute),
    Effect("throttling or other clocks", "clocks", ("*",), TIME, "up to the ratio of the clocks",
           "compute-bound kernels take longer in proportion to the SM clock, and all ranks wait for the slowest GPU",
           clocks),
    Effect("other processes on the GPU", "processes", ("*",), (*TIME, *DEVICE), "up to a half of the time",
           "they take turns with the ranks and hold memory of their own",
           disturbance(("processes", "foreign_processes"), "shared", adds_memory=True)),
    Effect("the allocator freed and tried again", "memory", ("alloc_retries",), TIME, "some percent to several times",
           "each retry waits for the GPU and gives memory back to the driver",
           disturbance(("memory", "alloc_retries"), "retries")),
    Effect("a slow rank", "ranks", ("*",), TIME, "by as much as it is behind",
           "a step ends with its slowest rank; waiting hides part of it, so the true excess may be larger", imbalance),
    *_ENVIRONMENT,
    *_SOFTWARE,
    Effect("less steady steps", "window", ("spread_of_steps",), TIME, "0 to some percent",
           "single slow steps leave the median alone; many of them say that something disturbs the machine",
           unsteadiness),
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
    asked, acting = (effect.name for effect in EFFECTS if effect.estimate is recompute)
    if asked in taken and acting in taken:  # one follows from the other
        taken[asked] += taken.pop(acting)
    return [(effect, tuple(taken[effect.name])) for effect in EFFECTS if effect.name in taken]


def effect_of(departure: Departure) -> Effect:
    """The first row that takes it; there is one for every group."""
    rows = (effect for effect in EFFECTS if effect.group == departure.group)
    return next(effect for effect in rows if any(fnmatchcase(departure.name, name) for name in effect.names))
