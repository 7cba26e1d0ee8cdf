"""Step time: a roofline per operation at real efficiencies, pipeline bubble, gradient reduction, optimizer step."""

from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import inf
from typing import Literal, NamedTuple, get_args

from harness.experiment.communication import Group, extent, group_bandwidth
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import PeakKey
from harness.experiment.optimizer_states import HOST_ADAM_PER_S, on_host
from harness.predict.compose import ChunkCost, Op, Parameters
from harness.predict.experts import captured, expert_launch_s
from harness.predict.model_states import Adam, owned_parameters, state_bytes
from harness.predict.products import Widths, slowdown_of
from harness.predict.ranges import borrowed
from harness.predict.schedule import schedule_of
from harness.predict.step_ranges import StepSource, fitted, generation_of, source_of, sources_of, step_spread
from harness.records.trace import OpKind, Phase


@dataclass(frozen=True)
class Efficiency:
    """Shares of data-sheet rates that operations reach, and the seconds of the host.

    ``gemm_bf16``, ``gemm_low_precision``: of a product of full waves, without its bytes (`products`); ``fp4_of_fp8``:
    of the latter, what products in FP4 reach. ``link``: of NVLink; ``network``: of InfiniBand. ``exposed``: share of a
    communication beside computation that makes it longer, because both need the same multiprocessors. ``launch_s``: of
    the host, for one simple operation of a trace; ``call_s``: for a matrix product or attention, which a module starts
    from Python. ``norm``: the seconds of GPU and host make those of a pass as ``(gpu^norm + host^norm)^(1/norm)``; a
    large one leaves the slower of the two. ``step_s``: of the host, for one step: data, logging, gradient norm.
    """

    gemm_bf16: float
    gemm_low_precision: float
    attention: float
    memory: float
    link: float
    network: float
    exposed: float = 0.0
    launch_s: float = 20e-6
    call_s: float = 160e-6
    norm: float = 4.0
    step_s: float = 0.02
    fp4_of_fp8: float = 1.0


# Where the fit of each generation starts, and what no row determines.
LIKELY = Efficiency(gemm_bf16=0.75, gemm_low_precision=0.65, attention=0.55, memory=0.80, link=0.80, network=0.80)


@cache
def typical(gpu: str) -> Efficiency:
    """The efficiencies of a GPU type, else of its generation; what no row of it determines is Hopper's or fixed."""
    generation, constants = generation_of(gpu), fitted().constants
    own = {**constants.get(generation, {}), **constants.get(gpu, {})}
    return replace(base_of(generation, replace(LIKELY, **constants["9.x"])), **own)


def kind_of_error(spec: ExperimentSpec, time: "StepTime") -> str:
    """Return the highest precision of a step and its class without the generation: ``fp8 dense``."""
    return f"{spec.precision.peak} {kind_of_step(spec, time).partition(' ')[2]}"


def base_of(generation: str, hopper: Efficiency) -> Efficiency:
    """Return what holds before the generation's own constants: later GPUs take Hopper's, earlier ones its host's."""
    if generation != "8.x":
        return hopper
    return replace(LIKELY, launch_s=hopper.launch_s, call_s=hopper.call_s, norm=hopper.norm)


def kind_of_step(spec: ExperimentSpec, time: "StepTime") -> str:
    """Return the class of rows for a step's range; below a second the script's work around a step shows."""
    pace = "short " if time.likely_s < 1 else "host-bound " if time.host_bound else ""
    return f"{generation_of(spec.gpu)} {pace}{'experts' if spec.model.moe else 'dense'}"


# What runs again takes the host's processor alone; launch_s and call_s also hold the waits of published steps. A simple
# operation takes AGAIN of launch_s: chosen by hand, with published costs of Moonlight's settings in view. A product, a
# norm or the like takes as long as CALL of them, an attention as ATTENTION products (results/accuracy/host.md).
AGAIN, CALL, ATTENTION = 0.4, 11.7, 3.7
_AGAIN = {"gemm": AGAIN * CALL, "attention": AGAIN * CALL * ATTENTION}

# A kernel that follows another begins so much later than the other ends (NVIDIA, Getting Started with CUDA Graphs,
# 2019: 3.8 us from kernel to kernel of 2.9 us each).
KERNEL_S = 0.9e-6


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step, and what they consist of at the likely efficiencies.

    ``low`` and ``high`` times these seconds hold 90 of 100 steps of its class, by residuals of measured ones.
    ``compute_s`` is the slowest pipeline stage without waiting. ``host_bound``: the host launches kernels more slowly
    than the GPU finishes them. ``source``: None for steps that no constants of a GPU type time.
    """

    compute_s: float
    bubble_s: float
    reduction_s: float
    optimizer_s: float
    host_bound: bool
    low: float = 1.0
    high: float = 1.0
    source: StepSource | None = None

    @cached_property
    def likely_s(self) -> float:
        return self.compute_s + self.bubble_s + self.reduction_s + self.optimizer_s

    @property
    def range_s(self) -> tuple[float, float]:
        return self.likely_s * self.low, self.likely_s * self.high


def step_time(
    spec: ExperimentSpec,
    stages: tuple[tuple[ChunkCost, ...], ...],
    efficiency: Efficiency | None = None,
    spread: float | None = None,
    adam: Adam = "fused",
    origin: str = "",
    made_by: Literal["probe", "runs"] = "runs",
) -> StepTime:
    """Return the time of ``stages[pp_rank][vp_stage]``; for GPUs only. ``efficiency``: None for the GPU's own.

    ``spread``: by which share a step may take more or less; None: residuals of steps of its class give the range.
    Constants that do not decide a step narrow no range.
    """
    own, efficiency = typical(spec.gpu), efficiency or typical(spec.gpu)
    likely = Clock(spec, efficiency, adam).step(stages)
    kind, (low, high, _) = kind_of_error(spec, likely), step_spread(kind_of_step(spec, likely), fitted().spreads)
    measured = {name for name, value in vars(efficiency).items() if value != getattr(own, name)}
    decided = measured >= {_RATE[spec.precision.peak], *(("launch_s", "call_s") if likely.host_bound else ())}
    if not decided and (spec.gpu, kind) not in sources_of(spec.gpu, kind):
        low, high = borrowed((low, high), fitted().transfer)
    if spread is not None:
        ends = 1 / (1 + spread), 1 + spread
        low, high = ends if decided else (min(low, ends[0]), max(high, ends[1]))
    source = source_of(spec.gpu, kind)
    text = f"{origin}; with built-in constants, {source.text}"
    source = replace(source, kind=made_by, text=text) if measured else source
    return replace(likely, low=min(1.0, low), high=max(1.0, high), source=source)


# What products of a step's highest precision take; no probe measures FP4.
_RATE = {"fp32": "gemm_bf16", "bf16": "gemm_bf16", "fp8": "gemm_low_precision", "fp4": "fp4_of_fp8"}


class _Passes(NamedTuple):
    """Seconds of a micro-batch through a chunk on ``gpu`` and ``host``; ``phases``: of the slower of the two."""

    gpu: float
    host: float
    phases: tuple[float, float, float]
    norm: float

    @property
    def seconds(self) -> float:
        """Seconds of both. Neither hides the other: the GPU waits for launches, and ranks for the slowest host."""
        return max(self.gpu, self.host) * self._longer

    @property
    def returning(self) -> float:
        """Of ``seconds``, those of the backward pass with what it recomputes."""
        return (self.phases[1] + self.phases[2]) * self._longer

    @property
    def _longer(self) -> float:
        """Return by which factor both take longer than the slower one alone."""
        slower = max(self.gpu, self.host)
        share = min(self.gpu, self.host) / slower if slower else 0.0
        return float((1 + share**self.norm) ** (1 / self.norm))


class Exchange(NamedTuple):
    """Seconds of gradients or weights between ranks, and the passes of a micro-batch that hide them."""

    seconds: float
    backward: bool = False
    forward: bool = False

    def left(self, backward_s: float, forward_s: float) -> float:
        """Return the seconds that passes of these lengths do not hide."""
        return max(0.0, self.seconds - self.backward * backward_s - self.forward * forward_s)


@dataclass(frozen=True)
class Clock:
    """One set of efficiencies on the GPUs of ``spec``."""

    spec: ExperimentSpec
    efficiency: Efficiency
    adam: Adam = "fused"

    def step(self, stages: tuple[tuple[ChunkCost, ...], ...]) -> StepTime:
        """Time a step of 1F1B: every stage runs M micro-batches; first and last wait PP - 1 of one chunk."""
        schedule = schedule_of(self.spec, 0)
        chunks = {id(chunk): chunk for stage in stages for chunk in stage}  # stages share chunks that are alike
        passes = {key: self.passes(chunk) for key, chunk in chunks.items()}
        seconds = [sum(passes[id(chunk)].seconds for chunk in stage) for stage in stages]
        slowest = max(seconds)
        worst = stages[seconds.index(slowest)]
        parameters = Parameters.total(chunk.parameters for chunk in worst)
        num, own = self.spec.num_microbatches, [passes[id(chunk)] for chunk in worst]
        backward = sum(each.returning for each in own)
        return StepTime(
            compute_s=num * slowest + self.messages(worst),
            bubble_s=(len(stages) - 1) / schedule.vp_size * sum(seconds) / len(seconds),
            reduction_s=sum(each.left(backward, slowest - backward) for each in self.exchanges(parameters)),
            optimizer_s=self.optimizer(parameters) + self.efficiency.step_s,
            host_bound=sum(each.host for each in own) > sum(each.gpu for each in own),
        )

    def passes(self, chunk: ChunkCost) -> "_Passes":
        """Return the seconds of one micro-batch; of overlapped communication, what computation does not hide."""
        phases = get_args(Phase)
        computing, hidden, waiting, launching = (dict.fromkeys(phases, 0.0) for _ in range(4))
        e, dispatch, overlaps = self.efficiency, 0.0, self.spec.kernels.overlap_moe_expert_parallel_comm
        for op, count in chunk.work:
            once, again = e.call_s if op.kind in _AGAIN else e.launch_s, e.launch_s * _AGAIN.get(op.kind, AGAIN)
            launching[op.phase] += count * (again if op.phase == "recompute" else once)
            if op.kind != "comm":
                computing[op.phase] += count * self._compute(op)
            elif op.comm_group == "ep" and overlaps:
                dispatch += count * self._communicate(op)
            elif op.overlapped:
                hidden[op.phase] += count * self._communicate(op)
            else:
                waiting[op.phase] += count * self._communicate(op)
        both = ((computing[phase], hidden[phase]) for phase in phases)
        gpu = [max(pair) + e.exposed * min(pair) + waiting[phase] for phase, pair in zip(phases, both, strict=True)]
        more, eager = expert_launch_s(self.spec, chunk, e.launch_s), 1 - captured(self.spec)
        host = [(launching[phase] + more[phase]) * eager for phase in phases]
        per_s = (self.spec.gpu_type.host_bandwidth or inf) * COPY
        copies = chunk.copied / per_s  # each way, beside the computation of a pass
        gpu = [max(gpu[0], copies), max(gpu[1], copies - gpu[2]), gpu[2]]
        on_gpu, on_host = self._beside(sum(gpu), dispatch), sum(host)
        slower = host if on_host > on_gpu else gpu
        return _Passes(on_gpu, on_host, (slower[0], slower[1], slower[2]), self.efficiency.norm)

    def _beside(self, computing_s: float, dispatch_s: float) -> float:
        """Return the seconds of a micro-batch whose experts' messages run beside the passes of another one.

        Passes of the warm-up, and as many backward ones at the end, have no other beside them.
        """
        if not dispatch_s:
            return computing_s
        schedule = schedule_of(self.spec, 0)
        alone = min(1.0, max(1, schedule.num_warmup) / schedule.num_passes)
        beside = max(computing_s, dispatch_s) + self.efficiency.exposed * min(computing_s, dispatch_s)
        return alone * (computing_s + dispatch_s) + (1 - alone) * beside

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
            return peak * e.gemm_low_precision * (e.fp4_of_fp8 if dtype == "fp4" else 1)
        return peak * (e.attention if kind == "attention" else e.gemm_bf16)

    @cached_property
    def _sent_per_s(self) -> dict[Group, float]:
        e = self.efficiency
        return {group: group_bandwidth(self.spec, group, e.link, e.network) for group in get_args(Group)}

    def _compute(self, op: Op) -> float:
        moving = op.bytes / self._bytes_per_s
        if op.kind == "elementwise":
            return moving + KERNEL_S
        computing = op.flops / self._flops_per_s[op.kind, op.dtype]
        if op.kind == "gemm":  # beside its first loads and last stores nothing runs
            computing *= slowdown_of(op.phase, op.dtype, op.flops, op.bytes, self._widths)
            return computing + moving + KERNEL_S
        return max(computing, moving) + KERNEL_S

    @cached_property
    def _widths(self) -> Widths:
        return Widths.of(self.spec)

    def _communicate(self, op: Op) -> float:
        return op.comm_bytes / self._sent_per_s[op.comm_group] if op.comm_group else 0.0

    def messages(self, stage: tuple[ChunkCost, ...]) -> float:
        """Return the seconds of hidden states and gradients between stages; interleaved schedules hide them."""
        if self.spec.parallelism.pipeline_model_parallel_size == 1 or len(stage) > 1:
            return 0.0
        # the next stage is at least as far away as the next data-parallel rank
        return 2 * self.spec.num_microbatches * stage[0].hidden_bytes / self._sent_per_s["dp"]

    def exchanges(self, parameters: Parameters) -> tuple[Exchange, ...]:
        """Return what ranks of a stage exchange once in a step."""
        ddp = self.spec.ddp
        per_weight = 1 if self.spec.precision.fp8_param_gather and not quantises_on_arrival(self.spec) else 2
        gradients = self._exchanged(parameters, state_bytes(self.spec).gradient)
        weights = self._exchanged(parameters, per_weight)
        if not self.spec.optimizer.use_distributed_optimizer:
            reduced = Exchange(2 * gradients, backward=ddp.overlap_grad_reduce)
            return (reduced, Exchange(weights)) if self.spec.optimizer.optimizer == "dist_muon" else (reduced,)
        return (
            Exchange(gradients, backward=ddp.overlap_grad_reduce),
            Exchange(weights, forward=ddp.overlap_param_gather),
        )

    def _exchanged(self, parameters: Parameters, bytes_each: int) -> float:
        seconds = 0.0
        owners: dict[Group, int] = {"dp": parameters.dense, "edp": parameters.expert}
        for group, count in owners.items():
            size, _ = extent(self.spec, group)
            sent = bytes_each * count * (size - 1) / size
            seconds += sent / self._sent_per_s[group]
        return seconds

    def optimizer(self, parameters: Parameters) -> float:
        """Return the seconds of the optimizer's step."""
        return optimizer_seconds(self.spec, parameters, self._bytes_per_s, self._flops_per_s["gemm", "bf16"], self.adam)


COPY = 0.80
"""Share of the link to the host that copies of pinned memory reach. Chosen by hand, with the only published H100 row of
activation offloading in view: with 0.80 that row is predicted 4 % too fast."""

_NEWTON_SCHULZ_STEPS = 5  # megatron-core's default
_PRODUCTS_PER_STEP = 3


def optimizer_seconds(
    spec: ExperimentSpec, parameters: Parameters, bytes_per_s: float, flops_per_s: float, adam: Adam = "fused"
) -> float:
    """Return the seconds: the step reads and writes states, gradients and weights; bound by memory."""
    per, owned = state_bytes(spec, adam), owned_parameters(spec, parameters)
    kept = sum(owned) * (1 - on_host(spec))
    moved = 2 * per.optimizer * sum(owned) + kept * (2 * (per.cast + per.widened) + per.gradient + 2)
    if quantises_on_arrival(spec):
        moved += (2 + 2 + 2) * (parameters.dense + parameters.expert)
    muon = muon_flops(spec, owned) / flops_per_s if spec.optimizer.is_muon else 0.0
    return moved / bytes_per_s + muon + host_seconds(spec, sum(owned))


def quantises_on_arrival(spec: ExperimentSpec) -> bool:
    """MXFP8 weights are gathered in BF16, and every rank quantises its stage (`param_and_grad_buffer.py`)."""
    in_buffer = spec.optimizer.use_distributed_optimizer and not spec.ddp.use_megatron_fsdp
    return in_buffer and spec.precision.transformer_config.get("fp8_recipe") == "mxfp8"


def host_seconds(spec: ExperimentSpec, owned: float) -> float:
    """Return the seconds of the processor's update and of its copies, gradients down and weights up, in fp32.

    torchrun gives a rank one thread, unless OMP_NUM_THREADS says otherwise. With `overlap_cpu_optimizer_d2h_h2d`
    gradients are copied during updates; weights go up from memory that is not pinned, for which the processor waits.
    Where the data sheet states no link to the host, copies take no time. 1e9 parameters on an H100: 0.81 s of update,
    78 ms for each way.
    """
    num = owned * on_host(spec)
    threads = spec.env.get("OMP_NUM_THREADS", "")
    update = num / (HOST_ADAM_PER_S * (int(threads) if threads.isdigit() and int(threads) else 1))
    link = spec.gpu_type.host_bandwidth
    copy = 4 * num / (link * COPY) if link else 0.0
    down = max(update, copy) if spec.optimizer.overlap_cpu_optimizer_d2h_h2d else update + copy
    return down + copy


def muon_flops(spec: ExperimentSpec, owned: tuple[float, float]) -> float:
    """Return the FLOPs of Newton-Schulz iterations over a rank's matrices, each taken as squares of its shorter side.

    A step multiplies a square of side n three times: 6 n per element; n = 4096 in 5 steps takes 122,880.
    """
    model, p = spec.model, spec.parallelism
    dense = min(model.hidden_size, model.ffn_hidden_size // p.tensor_model_parallel_size)
    expert = min(model.hidden_size, model.moe.moe_ffn_hidden_size // p.expert_tensor_size) if model.moe else 0
    per_side = _NEWTON_SCHULZ_STEPS * _PRODUCTS_PER_STEP * 2
    return per_side * (owned[0] * dense + owned[1] * expert)
