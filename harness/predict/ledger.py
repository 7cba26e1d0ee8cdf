"""Books every byte of a pipeline stage over a step, workspaces of kernels included."""

import re
from dataclasses import dataclass
from operator import mul
from typing import Literal, NamedTuple

from harness.experiment.experiment import ExperimentSpec
from harness.predict.compose import ChunkCost, Parameters, PassSizes
from harness.predict.model_states import Adam, ModelStates, model_states
from harness.predict.schedule import Event, Instant, Pass, Schedule, fullest_instants, keeps_outputs, schedule_of
from harness.units import MIB, grouped

KIB = 1024

# The thread of the forward pass and autograd's own have a cuBLAS handle each, and each handle its workspace.
_TORCH_HANDLES = 2
_TORCH_BYTES = {True: 32 * MIB, False: 2 * 4 * MIB + 8 * 16 * KIB}

_TE_BYTES = {True: 32 * MIB, False: 4 * MIB}  # from Hopper on transformer-engine 2.11 adds 1 KiB
_TE_GROUPED_STREAMS = 4
_TE_USER_BUFFER_STREAMS = 3

# GEMMs with a user buffer, by what goes through it (transformer-engine 2.9 to 2.19, `initialize_ub`).
_GATHERED = ("qkv_fprop", "qkv_dgrad", "proj_dgrad", "proj_wgrad", "fc1_fprop", "fc1_dgrad", "fc2_dgrad", "fc2_wgrad")
_SCATTERED = ("proj_fprop", "fc2_fprop", "qkv_wgrad", "fc1_wgrad")
_BF16_BYTES = 2

_PART = re.compile(r":(\d+):(\d+)")


def workspace_bytes(spec: ExperimentSpec, *, has_experts: bool, has_loss: bool) -> int:
    """Return the workspace bytes on a rank; torch has its own in local layers, the output layer and the router."""
    if spec.gpu_type.is_cpu:
        return 0
    in_torch = has_experts or has_loss or spec.kernels.transformer_impl == "local"
    return in_torch * _torch(spec) + _transformer_engine(spec, has_experts=has_experts)


def user_buffer_bytes(spec: ExperimentSpec) -> int:
    """Return the bytes of a rank's user buffers, outside torch's allocator (CommOverlapBase, CommOverlapP2PBase).

    Llama3-70B, 4096 tokens, TP 4, bf16, defaults: 12 buffers of 4096 x 8192 x 2 bytes are 805,306,368.
    """
    if not spec.makes_user_buffers:
        return 0
    tokens, width = spec.user_buffer_shape
    tp = spec.parallelism.tensor_model_parallel_size
    gathered_bytes = 1 if spec.precision.peak == "fp8" else _BF16_BYTES
    total = 0
    for gemm in (*_GATHERED, *_SCATTERED):
        buffer, is_scattered = getattr(spec.kernels.tp_comm_overlap_cfg, gemm, None), gemm in _SCATTERED
        element = gathered_bytes if getattr(buffer, "fp8_buf", False) or not is_scattered else _BF16_BYTES
        ring_of_parts = is_scattered and getattr(buffer, "method", "") == "ring_exchange"  # and the others' parts
        total += tokens * width * element * (2 * tp - 1 if ring_of_parts else tp) // tp
    return total


def _torch(spec: ExperimentSpec) -> int:
    """`CUBLAS_WORKSPACE_CONFIG` is a list of `:KiB:count`; without it torch has 32 MiB from Hopper on."""
    parts = _PART.findall(spec.env.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if parts:
        return _TORCH_HANDLES * sum(int(size) * KIB * int(count) for size, count in parts)
    return _TORCH_HANDLES * _TORCH_BYTES[spec.gpu_type.is_at_least(9)]


def _transformer_engine(spec: ExperimentSpec, *, has_experts: bool) -> int:
    """One for plain GEMMs, one per stream for grouped ones and for those that overlap tensor-parallel communication."""
    if spec.kernels.transformer_impl == "local":
        return 0
    moe, size = spec.model.moe, _TE_BYTES[spec.gpu_type.is_at_least(9)]
    overlaps = spec.makes_user_buffers
    grouped = moe is not None and moe.moe_grouped_gemm and has_experts
    return size * (1 + _TE_USER_BUFFER_STREAMS * overlaps + _TE_GROUPED_STREAMS * grouped)


PeakName = Literal["schedule", "loss and logits", "optimizer step", "eager steps", "graph capture"]

_BEFORE_REPLAY: tuple[PeakName, ...] = ("eager steps", "graph capture")


class Moment(NamedTuple):
    """Live bytes at one moment of the schedule, without model states.

    ``logits``: what the output layer, the loss and MTP layers add, deferred weight gradients included. ``captured``,
    ``pool``, ``static``: of the captured layers of all micro-batches in flight, as in `Piece`; not in ``total``.
    """

    activations: int
    logits: int
    transient: int
    in_loss: bool
    direction: Pass
    captured: int = 0
    pool: int = 0
    static: int = 0

    @property
    def total(self) -> int:
        return self.activations + self.logits + self.transient


@dataclass(frozen=True)
class StageMemory:
    """Peak of one pipeline stage. The parts add up to ``total``, the fullest of the candidates in ``peaks``.

    Under CUDA graphs ``peaks`` also has those of the eager steps and of the capture; ``total`` is of later steps.
    ``passes``: the fullest moment of all forward passes, and of all backward passes. ``pool``: what captured layers
    save and hand on in private pools of CUDA graphs.
    """

    pp_rank: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    transient: int
    overhead: int
    total: int
    peak: PeakName
    peaks: dict[PeakName, int]
    passes: dict[Pass, int]
    parameters: Parameters
    pool: int = 0
    adam: Adam = "fused"

    @property
    def whole_run(self) -> int:
        return max(self.total, *(self.peaks.get(name, 0) for name in _BEFORE_REPLAY))


def stage_memory(
    spec: ExperimentSpec, pp_rank: int, chunks: tuple[ChunkCost, ...], *, adam: Adam = "fused"
) -> StageMemory:
    """Return the ledger of one stage; ``chunks`` in order of virtual stages, ``adam`` as in `model_states`."""
    parameters = Parameters.total(chunk.parameters for chunk in chunks)
    states = model_states(spec, parameters, adam=adam)
    schedule = schedule_of(spec, pp_rank)
    overhead = overhead_bytes(spec, chunks) + (gathered_inputs_bytes(spec) if schedule.num_deferred else 0)
    eager = _moments(spec, schedule, chunks, states)
    pool, static = (max(sizes) for sizes in zip(*((moment.pool, moment.static) for moment in eager), strict=True))
    moments = tuple(moment._replace(activations=moment.activations + static) for moment in eager)
    passes = grouped((moment.direction, states.total + overhead + moment.total) for moment in moments)
    fullest = max(moments, key=lambda moment: moment.total)
    # What backward passes leave, alive between steps, until the next forward pass replaces it.
    left = sum(chunk.sizes.lingering for chunk in chunks) + static
    step = Moment(left, 0, states.step_transient, in_loss=False, direction="backward")
    before = _before_replay(spec, states, chunks, eager, left + pool) if pool else {}
    peaks = _peaks(states, overhead, {"optimizer step": step, **before}, moments)
    name: PeakName = "loss and logits" if fullest.in_loss and fullest.total > _bare(moments) else "schedule"
    if step.total >= fullest.total:
        fullest, name = step, "optimizer step"
    return StageMemory(
        pp_rank=pp_rank,
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        activations=fullest.activations,
        logits=fullest.logits,
        transient=fullest.transient,
        overhead=overhead,
        total=states.total + overhead + fullest.total,
        peak=name,
        peaks=peaks,
        passes={direction: max(sizes) for direction, sizes in passes.items()},
        parameters=parameters,
        pool=pool,
        adam=adam,
    )


def _before_replay(
    spec: ExperimentSpec, states: ModelStates, chunks: tuple[ChunkCost, ...], moments: tuple[Moment, ...], held: int
) -> dict[PeakName, Moment]:
    """Return the fullest eager moment, and the last moment of the capture, beside what graphs have ``held`` by then.

    Without warm-up steps nothing is eager. Else the capture runs after an optimizer step, whose copies of gradients
    live until the next step begins.
    """
    moments = tuple(moment._replace(activations=moment.activations + moment.captured) for moment in moments)
    running = max(chunk.body.backward_peak for chunk in chunks if chunk.pool)
    if not spec.cuda_graph.warmup_steps:
        return {"graph capture": Moment(held, 0, running, in_loss=False, direction="backward")}
    return {
        "eager steps": max(moments, key=lambda moment: moment.total),
        "graph capture": Moment(held, 0, states.copies + running, in_loss=False, direction="backward"),
    }


def _peaks(
    states: ModelStates, overhead: int, at_once: dict[PeakName, Moment], moments: tuple[Moment, ...]
) -> dict[PeakName, int]:
    standing = states.total + overhead
    peaks: dict[PeakName, int] = {"schedule": standing + _bare(moments)}
    losses = [moment.total for moment in moments if moment.in_loss]
    peaks |= {name: standing + moment.total for name, moment in at_once.items()}
    return peaks | ({"loss and logits": standing + max(losses)} if losses else {})


def _bare(moments: tuple[Moment, ...]) -> int:
    """Return the bytes at the fullest moment outside the loss's chunk; at any moment if that is the only chunk."""
    elsewhere = [moment.total for moment in moments if not moment.in_loss]
    return max(elsewhere or [moment.total - moment.logits for moment in moments])


def _moments(
    spec: ExperimentSpec, schedule: Schedule, chunks: tuple[ChunkCost, ...], states: ModelStates
) -> tuple[Moment, ...]:
    """Return the instants of a step that may be the fullest. ``states``: of them, what Megatron-FSDP adds to each pass.

    Where a forward and a backward pass take turns layer by layer, one layer of each is saved at once. Beside the loss
    no layer runs.
    """
    beside = max(chunk.largest_unit for chunk in chunks) if schedule.extra_warmup else 0
    waiting = deferred_bytes(spec) if schedule.num_deferred else 0
    saved, with_loss = [chunk.body.saved for chunk in chunks], [chunk.sizes.saved for chunk in chunks]
    outputs = [int(keeps_outputs(spec) and not chunk.has_loss) for chunk in chunks]
    graphs, latest = [(chunk.captured, chunk.pool, chunk.static) for chunk in chunks], [c.latest for c in chunks]
    # Empty where all are zero, so that nothing is added up: a search does this for every moment of every layout.
    graphs, latest = graphs * any(map(any, graphs)), latest * any(latest)
    lingers = bool(latest) or any(map(_lingers, {id(chunk): chunk for chunk in chunks}.values()))

    def moment(instant: Instant) -> Moment:
        """Return the bytes of an instant. The running micro-batch counts as held, also in its forward pass."""
        event, in_flight, ended, deferred = instant
        running, again, begins = chunks[event.chunk], ended[event.chunk], event.direction == "forward"
        held = sum(map(mul, in_flight, saved)) + begins * running.body.saved
        of_loss = sum(map(mul, in_flight, with_loss)) + begins * running.sizes.saved - held
        buffers = event.buffers + sum(map(mul, in_flight, outputs))
        # What backward passes of idle chunks left. Of layers that are not run again it belongs to the micro-batch that
        # came last, which is then the last to finish.
        left = 0
        for n, num in enumerate(in_flight) if lingers else ():
            if ended[n] and n != event.chunk:
                left += chunks[n].sizes.replaced if num else chunks[n].sizes.lingering
        # Routing of all micro-batches but the latest of each chunk, the running one counted.
        earlier = (max(0, num - 1 + (begins and n == event.chunk)) for n, num in enumerate(in_flight))
        replaced = sum(map(mul, earlier, latest))
        body, sizes = _transient(running.body, event, again=again), _transient(running.sizes, event, again=again)
        in_graphs = [
            sum(map(mul, in_flight, of_chunks)) + begins * of_running
            for *of_chunks, of_running in zip(*graphs, (running.captured, running.pool, running.static), strict=True)
        ]
        logits = of_loss + max(0, sizes - body) + deferred * waiting
        in_layers = states.fetched + (0 if begins else states.queued)
        in_layers -= min(body, sizes) + logits - body  # by so much the loss is higher, where no layer runs
        return Moment(
            activations=held + buffers * running.hidden_bytes + left - replaced,
            logits=logits,
            transient=min(body, sizes) + states.gathered + max(0, beside - running.has_loss * logits, in_layers),
            in_loss=running.has_loss,
            direction=event.direction,
            captured=in_graphs[0],
            pool=in_graphs[1],
            static=in_graphs[2],
        )

    return tuple(map(moment, fullest_instants(schedule, lingers=lingers)))


def _lingers(chunk: ChunkCost) -> bool:
    """Return whether a backward pass leaves anything behind that changes later passes."""
    every = chunk.sizes, chunk.body
    return any(s.lingering or (s.forward_again, s.backward_again) != (s.forward_peak, s.backward_peak) for s in every)


def deferred_bytes(spec: ExperimentSpec) -> int:
    """Return the bytes that a micro-batch keeps after its backward pass for the output layer's weight gradient.

    The gradient of its logits, the layer's input, and what the graph behind it keeps (megatron-core 0.16
    `tensor_parallel/layers.py`, `grad_output_buffer` and `embedding_activation_buffer`).
    """
    tp = spec.parallelism.tensor_model_parallel_size
    logits = tokens_of_rank(spec) * spec.model.padded_vocab_size(tp) // tp
    hidden = tokens_of_rank(spec) * spec.model.hidden_size // (tp if spec.parallelism.sequence_parallel else 1)
    return (logits + 3 * hidden) * spec.precision.params_bytes


def gathered_inputs_bytes(spec: ExperimentSpec) -> int:
    """Return the bytes of megatron-core's two buffers that gather the output layer's hidden states; they stay."""
    p = spec.parallelism
    if not p.sequence_parallel or p.tensor_model_parallel_size == 1:
        return 0
    return 2 * tokens_of_rank(spec) * spec.model.hidden_size * spec.precision.params_bytes


def tokens_of_rank(spec: ExperimentSpec) -> int:
    """Return the number of tokens of a micro-batch on one rank, before sequence parallelism."""
    return spec.batch.micro_batch_size * spec.batch.seq_length // spec.parallelism.context_parallel_size


def _transient(sizes: PassSizes, event: Event, *, again: bool) -> int:
    """Return the bytes that a pass needs beyond its saved tensors."""
    if event.direction == "forward":
        return (sizes.forward_again if again else sizes.forward_peak) - sizes.saved
    return sizes.backward_again if again else sizes.backward_peak


def overhead_bytes(spec: ExperimentSpec, chunks: tuple[ChunkCost, ...]) -> int:
    """Return the bytes that stay: buffers of layers and of all chunks, rotary tables, workspaces of libraries."""
    tables = (sum(bool(chunk.sizes.saved) for chunk in chunks) - 1) * rotary_table_bytes(spec)
    shared = max(chunk.shared for chunk in chunks)
    return sum(chunk.persistent for chunk in chunks) + shared + tables + library_bytes(spec, chunks)


def library_bytes(spec: ExperimentSpec, chunks: tuple[ChunkCost, ...]) -> int:
    """Return the bytes of libraries' workspaces on one rank, which no trace shows."""
    has_experts, has_loss = any(chunk.parameters.expert for chunk in chunks), any(chunk.has_loss for chunk in chunks)
    return workspace_bytes(spec, has_experts=has_experts, has_loss=has_loss)


def rotary_table_bytes(spec: ExperimentSpec) -> int:
    """Return the bytes of the fp32 tables that chunks cache beside the first chunk's, which is traced."""
    model = spec.model
    if model.position_embedding_type not in ("rope", "yarn") or model.mla is not None:
        return 0
    return 4 * spec.batch.seq_length * int(model.head_dim * model.rotary_percent)
