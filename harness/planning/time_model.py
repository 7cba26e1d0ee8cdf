"""Step time: a roofline per operation at real efficiencies, pipeline bubble, gradient reduction, optimizer step."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import PeakKey
from harness.planning.compose import ChunkCost, Op, Parameters, Work
from harness.planning.model_states import owned_parameters, state_bytes
from harness.planning.schedule import schedule_of
from harness.records.trace import OpKind

GIGA = 1e9

Group = Literal["tp", "cp", "ep", "etp", "dp", "edp"]


@dataclass(frozen=True)
class Efficiency:
    """Reached share of the data-sheet peak."""

    gemm_bf16: float
    gemm_low_precision: float
    attention: float
    memory: float
    link: float


# Fixed before any comparison. With the likely column, a 22B layer on A100 comes out at 19.16 ms where Korthikanti et al.
# 2022 (arXiv 2205.05198, table 4) measured 19.6, and at 26.36 for 27.2 with full recompute. Ratios between settings move
# by less than one point between the columns; absolute times are no more precise than the columns differ.
LIKELY = Efficiency(gemm_bf16=0.75, gemm_low_precision=0.65, attention=0.55, memory=0.80, link=0.80)
FAST = Efficiency(gemm_bf16=0.85, gemm_low_precision=0.75, attention=0.70, memory=0.90, link=0.90)
SLOW = Efficiency(gemm_bf16=0.55, gemm_low_precision=0.45, attention=0.40, memory=0.65, link=0.55)

# On Blackwell the 16 steps of a 12-layer Llama3-70B that SimuMax published for B200 took 1.5 to 2.3 times as long as the
# likely column says; kernels for it are young, so the range reaches as far. The likely column keeps its fixed values.
SLOW_BLACKWELL = Efficiency(gemm_bf16=0.33, gemm_low_precision=0.30, attention=0.20, memory=0.50, link=0.40)


def slowest(spec: ExperimentSpec) -> Efficiency:
    """Return the efficiencies that the GPU of ``spec`` nearly always reaches."""
    return SLOW_BLACKWELL if spec.gpu_type.is_at_least(10) else SLOW


# From launch of one kernel to the next on the host, eager execution; used only to set ``host_bound``.
LAUNCH_S = 5e-6


@dataclass(frozen=True)
class Links:
    """Bytes/s in one direction of one GPU: inside its NVLink (or PCIe) domain of ``domain_gpus``, and over the network."""

    nvlink: float
    network: float
    domain_gpus: int
    source: str


_PCIE = Links(32 * GIGA, 12.5 * GIGA, 8, "PCIe 4.0 x16, 64 GB/s in both directions together; 100 Gb/s Ethernet")

LINKS: dict[str, Links] = {
    "a100": Links(
        300 * GIGA, 25 * GIGA, 8, "NVLink 3, half of 600 GB/s; HDR InfiniBand 200 Gb/s (DGX A100 data sheet)"
    ),
    "h100": Links(
        450 * GIGA, 50 * GIGA, 8, "NVLink 4, half of 900 GB/s; NDR InfiniBand 400 Gb/s (DGX H100 data sheet)"
    ),
    "h200": Links(
        450 * GIGA, 50 * GIGA, 8, "NVLink 4, half of 900 GB/s; NDR InfiniBand 400 Gb/s (DGX H200 data sheet)"
    ),
    "b200": Links(900 * GIGA, 50 * GIGA, 8, "NVLink 5, half of 1.8 TB/s; 400 Gb/s per GPU (DGX B200 data sheet)"),
    "b300": Links(900 * GIGA, 100 * GIGA, 8, "NVLink 5, half of 1.8 TB/s; 800 Gb/s per GPU (DGX B300 data sheet)"),
    "gb200": Links(900 * GIGA, 50 * GIGA, 72, "NVLink 5, half of 1.8 TB/s; 400 Gb/s per GPU (GB200 NVL72 data sheet)"),
    "gb300": Links(900 * GIGA, 100 * GIGA, 72, "NVLink 5, half of 1.8 TB/s; 800 Gb/s per GPU (GB300 NVL72 data sheet)"),
    "l40s": _PCIE,
}


def group_bandwidth(spec: ExperimentSpec, group: Group) -> float:
    """Return the bytes/s at which one rank sends to the others of its group, at 100 % efficiency.

    Ranks are numbered tp-cp-dp-pp and etp-ep-edp-pp (megatron-core `parallel_state`). What leaves the NVLink domain goes
    over the network, at a rate that the share of it lowers.
    """
    links = LINKS[spec.gpu]
    size, stride = _extent(spec, group)
    inside = max(1, min(size, links.domain_gpus // stride))
    if inside >= size:
        return links.nvlink
    crossing = 1 - inside / size
    return min(links.nvlink, links.network / crossing)


def group_size(spec: ExperimentSpec, group: Group) -> int:
    """Return the number of ranks in the group."""
    return _extent(spec, group)[0]


def _extent(spec: ExperimentSpec, group: Group) -> tuple[int, int]:
    """Return the size of a group, and the distance between its neighbours in rank numbers."""
    p = spec.parallelism
    tp, cp, ep, etp = (
        p.tensor_model_parallel_size,
        p.context_parallel_size,
        p.expert_model_parallel_size,
        p.expert_tensor_size,
    )
    per_stage = max(1, spec.num_gpus // p.pipeline_model_parallel_size)
    extents: dict[Group, tuple[int, int]] = {
        "tp": (tp, 1),
        "cp": (cp, tp),
        "ep": (ep, etp),
        "etp": (etp, 1),
        # gradients are reduced over data-parallel and context-parallel ranks together
        "dp": (max(1, per_stage // tp), tp),
        "edp": (max(1, per_stage // (etp * ep)), etp * ep),
    }
    return extents[group]


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step, and what they consist of at the likely efficiencies.

    ``low_s`` and ``high_s`` are the same model at efficiencies that are rarely beaten or missed. ``compute_s`` is the
    slowest pipeline stage without waiting, ``recompute_s`` the part of it that runs a second time. ``host_bound``: the
    host may not launch kernels as fast as the GPU finishes them.
    """

    likely_s: float
    low_s: float
    high_s: float
    compute_s: float
    recompute_s: float
    bubble_s: float
    reduction_s: float
    optimizer_s: float
    host_bound: bool


def likely_seconds(spec: ExperimentSpec, stages: tuple[tuple[ChunkCost, ...], ...], likely: Efficiency) -> float:
    """Return the seconds of one step at the given efficiencies."""
    return _Clock(spec, likely).step(stages).total


def step_time(
    spec: ExperimentSpec,
    stages: tuple[tuple[ChunkCost, ...], ...],
    efficiency: Efficiency = LIKELY,
    spread: float | None = None,
) -> StepTime:
    """Return the time of ``stages[pp_rank][vp_stage]``; for GPUs only.

    ``spread``: by which share a step may take more or less, where it is known; else slow and fast efficiencies give the range.
    """
    likely, fast, slow = (_Clock(spec, each).step(stages) for each in (efficiency, FAST, slowest(spec)))
    launches = max(sum(count for chunk in stage for _, count in chunk.work) for stage in stages)
    launch_s = LAUNCH_S * launches * spec.num_microbatches
    return StepTime(
        likely_s=likely.total,
        low_s=min(likely.total, fast.total) if spread is None else likely.total / (1 + spread),
        high_s=max(likely.total, slow.total if spread is None else likely.total * (1 + spread), launch_s),
        compute_s=likely.compute,
        recompute_s=likely.recompute,
        bubble_s=likely.bubble,
        reduction_s=likely.reduction,
        optimizer_s=likely.optimizer,
        host_bound=launch_s > likely.compute,
    )


class _Passes(NamedTuple):
    """Seconds of one micro-batch by phase."""

    forward: float
    backward: float
    recompute: float


@dataclass(frozen=True)
class _Step:
    compute: float
    recompute: float
    bubble: float
    reduction: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.compute + self.bubble + self.reduction + self.optimizer


@dataclass(frozen=True)
class _Clock:
    """One set of efficiencies on the GPUs of ``spec``."""

    spec: ExperimentSpec
    efficiency: Efficiency

    def step(self, stages: tuple[tuple[ChunkCost, ...], ...]) -> _Step:
        """Time a step of 1F1B: every stage runs M micro-batches; first and last wait PP - 1 micro-batches of one chunk."""
        schedule = schedule_of(self.spec, 0)
        chunks = {id(chunk): chunk for stage in stages for chunk in stage}  # stages share chunks that are alike
        passes = {key: self.passes(chunk.work) for key, chunk in chunks.items()}
        seconds = [sum(sum(passes[id(chunk)]) for chunk in stage) for stage in stages]
        slowest = max(seconds)
        worst = stages[seconds.index(slowest)]
        parameters = Parameters()
        for chunk in worst:
            parameters = parameters + chunk.parameters
        num = self.spec.num_microbatches
        backward = sum(passes[id(chunk)].backward + passes[id(chunk)].recompute for chunk in worst)
        return _Step(
            compute=num * slowest + self._messages(worst),
            recompute=num * sum(passes[id(chunk)].recompute for chunk in worst),
            bubble=(len(stages) - 1) / schedule.vp_size * sum(seconds) / len(seconds),
            reduction=self._reduction(parameters, backward, slowest - backward),
            optimizer=self._optimizer(parameters),
        )

    def passes(self, work: Work) -> "_Passes":
        """Return the seconds of one micro-batch; of overlapped communication, only what computation does not hide."""
        computing, hidden, waiting = (dict.fromkeys(_Passes._fields, 0.0) for _ in range(3))
        for op, count in work:
            if op.kind != "comm":
                computing[op.phase] += count * self._compute(op)
            elif op.overlapped:
                hidden[op.phase] += count * self._communicate(op)
            else:
                waiting[op.phase] += count * self._communicate(op)
        return _Passes(*(max(computing[phase], hidden[phase]) + waiting[phase] for phase in _Passes._fields))

    @cached_property
    def _bytes_per_s(self) -> float:
        return self.spec.gpu_type.memory_bandwidth * self.efficiency.memory

    @cached_property
    def _flops_per_s(self) -> dict[tuple[OpKind, PeakKey], float]:
        kinds: tuple[OpKind, ...] = ("gemm", "attention")
        return {(kind, dtype): self._peak(kind, dtype) for kind in kinds for dtype in get_args(PeakKey)}

    def _peak(self, kind: OpKind, dtype: PeakKey) -> float:
        gpu, e = self.spec.gpu_type, self.efficiency
        peak = gpu.peak_flops.get(dtype, gpu.peak_flops["bf16"] / 2)  # fp32 GEMMs run as TF32, at half of BF16
        if kind == "gemm" and dtype in ("fp8", "fp4"):
            return peak * e.gemm_low_precision
        return peak * (e.attention if kind == "attention" else e.gemm_bf16)

    @cached_property
    def _sent_per_s(self) -> dict[Group, float]:
        return {group: group_bandwidth(self.spec, group) * self.efficiency.link for group in get_args(Group)}

    def _compute(self, op: Op) -> float:
        moving = op.bytes / self._bytes_per_s
        if op.kind == "elementwise":
            return moving
        return max(op.flops / self._flops_per_s[op.kind, op.dtype], moving)

    def _communicate(self, op: Op) -> float:
        return op.comm_bytes / self._sent_per_s[op.comm_group] if op.comm_group else 0.0

    def _messages(self, stage: tuple[ChunkCost, ...]) -> float:
        """Return the seconds of hidden states and gradients between stages; interleaved schedules hide them."""
        if self.spec.parallelism.pipeline_model_parallel_size == 1 or len(stage) > 1:
            return 0.0
        # the next stage is at least as far away as the next data-parallel rank
        return 2 * self.spec.num_microbatches * stage[0].hidden_bytes / self._sent_per_s["dp"]

    def _reduction(self, parameters: Parameters, backward_s: float, forward_s: float) -> float:
        """Return the seconds to reduce gradients and gather parameters; overlapped, what one micro-batch does not hide."""
        ddp = self.spec.ddp
        per_gradient = state_bytes(self.spec).gradient
        per_weight = 1 if self.spec.precision.fp8_param_gather else 2
        gradients = self._exchanged(parameters, per_gradient)
        if not self.spec.optimizer.use_distributed_optimizer:
            return max(0.0, 2 * gradients - (backward_s if ddp.overlap_grad_reduce else 0.0))
        weights = self._exchanged(parameters, per_weight)
        return max(0.0, gradients - (backward_s if ddp.overlap_grad_reduce else 0.0)) + max(
            0.0, weights - (forward_s if ddp.overlap_param_gather else 0.0)
        )

    def _exchanged(self, parameters: Parameters, bytes_each: int) -> float:
        """Return the seconds of a reduce-scatter or all-gather of ``bytes_each`` per parameter."""
        seconds = 0.0
        owners: dict[Group, int] = {"dp": parameters.dense, "edp": parameters.expert}
        for group, count in owners.items():
            size = group_size(self.spec, group)
            sent = bytes_each * count * (size - 1) / size
            seconds += sent / self._sent_per_s[group]
        return seconds

    def _optimizer(self, parameters: Parameters) -> float:
        """Return Adam's seconds: it reads and writes its state, reads gradients, writes weights; bound by memory."""
        per = state_bytes(self.spec)
        moved = owned_parameters(self.spec, parameters) * (
            2 * per.optimizer + 2 * (per.cast + per.widened) + per.gradient + 2
        )
        return moved / self._bytes_per_s
