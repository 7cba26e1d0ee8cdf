"""Step time: a roofline per operation with communication, pipeline bubble, gradient reduction, optimizer step."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, get_args

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import PeakKey
from harness.planning.compose import ChunkCost
from harness.planning.hardware import FAST, LAUNCH_S, LIKELY, Efficiency, Group, group_bandwidth, group_size, slowest
from harness.planning.model_states import owned_parameters, state_bytes
from harness.planning.pieces import Op, Parameters, Work
from harness.planning.schedule import schedule_of
from harness.records.trace import OpKind


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
    """Seconds of one step at the given efficiencies."""
    return _Clock(spec, likely).step(stages).total


def step_time(
    spec: ExperimentSpec,
    stages: tuple[tuple[ChunkCost, ...], ...],
    efficiency: Efficiency = LIKELY,
    spread: float | None = None,
) -> StepTime:
    """Time of ``stages[pp_rank][vp_stage]``; for GPUs only.

    ``spread``: by which share a step may take more or less, where it is known; else slow and fast efficiencies tell.
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
        """1F1B: every stage works M micro-batches; first and last wait PP - 1 micro-batches of one chunk."""
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
        """Seconds of one micro-batch; overlapped communication costs what exceeds the computation beside it."""
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
        """Hidden states and gradients between stages; interleaved schedules send them beside computation."""
        if self.spec.parallelism.pipeline_model_parallel_size == 1 or len(stage) > 1:
            return 0.0
        # the next stage lies at least as far away as the next data-parallel rank
        return 2 * self.spec.num_microbatches * stage[0].hidden_bytes / self._sent_per_s["dp"]

    def _reduction(self, parameters: Parameters, backward_s: float, forward_s: float) -> float:
        """Gradients to their owners and parameters back; overlapped, what one micro-batch does not hide."""
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
        """Seconds of a reduce-scatter or all-gather of ``bytes_each`` per parameter."""
        seconds = 0.0
        owners: dict[Group, int] = {"dp": parameters.dense, "edp": parameters.expert}
        for group, count in owners.items():
            size = group_size(self.spec, group)
            sent = bytes_each * count * (size - 1) / size
            seconds += sent / self._sent_per_s[group]
        return seconds

    def _optimizer(self, parameters: Parameters) -> float:
        """Adam reads and writes its state, reads gradients, writes weights: bound by memory."""
        per = state_bytes(self.spec)
        moved = owned_parameters(self.spec, parameters) * (
            2 * per.optimizer + 2 * per.step_transient + per.gradient + 2
        )
        return moved / self._bytes_per_s
