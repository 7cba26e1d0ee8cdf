"""The order in which a pipeline rank runs its micro-batches, and the hidden states it holds beside them.

The arithmetic is that of megatron-core 0.16 `pipeline_parallel/schedules.py`: no pipelining, 1F1B, and interleaved 1F1B
with overlapped point-to-point messages, the only form that ranks of this harness use with several virtual stages.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from operator import ge
from typing import Literal, NamedTuple

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout import num_virtual_stages

Pass = Literal["forward", "backward"]


class Event(NamedTuple):
    """One forward or backward pass of one micro-batch through one model chunk of the rank.

    ``buffers``: hidden states, or gradients of them, that are alive during the pass and belong neither to it nor to a
    micro-batch between its passes: received ahead of use, or not yet let go after sending.
    """

    direction: Pass
    chunk: int
    buffers: int = 0


@dataclass(frozen=True)
class Schedule:
    """The settings that decide the order on one pipeline rank. ``group_size`` is `microbatch_group_size_per_vp_stage`.

    ``extra_warmup`` is 1 where expert-parallel communication overlaps with the next micro-batch: a backward pass and
    the forward pass beside it take turns layer by layer. ``num_deferred``: micro-batches whose weight gradients of the
    output layer wait until all passes are over. ``keeps_outputs``: an output lives until its backward pass.
    """

    pp_size: int
    pp_rank: int
    num_microbatches: int
    vp_size: int = 1
    group_size: int | None = None
    extra_warmup: int = 0
    num_deferred: int = 0
    keeps_outputs: bool = False

    @property
    def is_first(self) -> bool:
        return self.pp_rank == 0

    @property
    def is_last(self) -> bool:
        return self.pp_rank == self.pp_size - 1

    @property
    def num_passes(self) -> int:
        return self.num_microbatches * self.vp_size

    @property
    def num_warmup(self) -> int:
        """Return the number of forward passes before the steady phase (`get_pp_rank_microbatches`)."""
        behind = self.pp_size - self.pp_rank - 1
        if self.vp_size == 1:
            return min(behind, self.num_microbatches)
        warmup = 2 * behind + (self.vp_size - 1) * (self.group_size or self.pp_size) + self.extra_warmup
        return min(warmup, self.num_passes)

    @cached_property
    def chunk_of(self) -> tuple[int, ...]:
        """Return the model chunk of every forward pass in order (`get_schedule_table`); backward passes mirror it."""
        group = self.group_size or self.pp_size
        starts = range(0, self.num_microbatches, group)
        sizes = (min(group, self.num_microbatches - start) for start in starts)
        return tuple(chunk for size in sizes for chunk in range(self.vp_size) for _ in range(size))

    def events(self) -> tuple[Event, ...]:
        """Return all passes of one step in order."""
        if self.vp_size > 1:
            return tuple(Interleaved(self).run())
        if self.pp_size > 1:
            return tuple(_one_forward_one_backward(self))
        return (Event("forward", 0), Event("backward", 0)) * self.num_microbatches


_MicroBatch = tuple[int, int]  # chunk, and its number in that chunk


class Interleaved:
    """Interleaved 1F1B: counts tensors received before their use, and tensors not yet freed.

    A chunk keeps the input of its latest forward pass (`TransformerBlock.input_tensor`), and with it the gradient of
    that input, until its next forward pass; the loop keeps the last input received during warm-up: two buffers each,
    once the backward pass is over. With groups larger than PP the ring of received tensors may hold one more, which is
    not counted.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._s = schedule
        self._has_input = tuple(chunk > 0 or not schedule.is_first for chunk in range(schedule.vp_size))
        self._inputs = int(not schedule.is_first)  # the first input is received before the loop
        self._gradients = 0
        self._sent: _MicroBatch | None = None  # whose input gradient was sent last
        self._begun = [0] * schedule.vp_size
        self._finished = [0] * schedule.vp_size
        self._last_of_warmup: _MicroBatch | None = None

    def run(self) -> Iterator[Event]:
        """All passes; no input follows the last one of a step."""
        s = self._s
        num_warmup, num_steady = s.num_warmup, s.num_passes - s.num_warmup
        for k in range(num_warmup):
            yield self._forward(k)
            received = k < s.num_passes - 1 and self._receives(k, forward=True)
            self._inputs += received
            self._last_of_warmup = self._micro_batch(self._awaited(k)) if received else None
        self._gradients += int(not s.is_last)
        for k in range(num_steady):
            if s.extra_warmup:
                # The loss goes backward first, layers are freed as those of the forward pass are saved, and the new
                # logits come last: as if the backward pass were over before the forward pass began.
                yield self._backward(k, unsent_output=0)
            forward = self._forward(num_warmup + k)
            yield forward
            self._inputs += k < num_steady - 1 and self._receives(num_warmup + k, forward=True)
            if not s.extra_warmup:
                ends_here = s.is_last and forward.chunk == s.vp_size - 1
                yield self._backward(k, unsent_output=int(not (ends_here or s.keeps_outputs)))
            self._gradients += self._receives(k, forward=False)
        for k in range(num_steady, s.num_passes):
            yield self._backward(k, unsent_output=0)
            self._gradients += k < s.num_passes - 1 and self._receives(k, forward=False)

    def _forward(self, k: int) -> Event:
        chunk = self._s.chunk_of[k]
        self._inputs -= int(self._has_input[chunk])
        self._begun[chunk] += 1
        return Event("forward", chunk, self._inputs + self._gradients + self._kept())

    def _backward(self, k: int, unsent_output: int) -> Event:
        """Return a backward pass. The next forward pass frees the output of the previous pass."""
        s = self._s
        chunk = s.vp_size - 1 - s.chunk_of[k]
        self._gradients -= int(not (s.is_last and chunk == s.vp_size - 1))
        buffers = self._inputs + self._gradients + self._kept() + unsent_output
        self._sent = (chunk, self._finished[chunk]) if self._has_input[chunk] else None
        self._finished[chunk] += 1
        return Event("backward", chunk, buffers)

    def _kept(self) -> int:
        """Count the inputs of finished micro-batches and their gradients; the gradient sent last may be among them."""
        over = enumerate(zip(self._begun, self._finished, strict=True))
        kept = {
            (chunk, begun - 1) for chunk, (begun, done) in over if begun == done and begun and self._has_input[chunk]
        }
        if self._last_of_warmup and self._last_of_warmup[1] < self._finished[self._last_of_warmup[0]]:
            kept.add(self._last_of_warmup)
        sent = {self._sent} - kept if self._sent else set()
        return sum((2 if each in kept else 1) for each in kept | sent if not self._waits(each))

    def _waits(self, micro_batch: _MicroBatch) -> bool:
        """Return whether the micro-batch waits for the flush, and so has its input and gradient anyway."""
        chunk, number = micro_batch
        return chunk == self._s.vp_size - 1 and number < self._s.num_deferred

    def _awaited(self, k: int) -> int:
        """Return the forward pass whose input is received after pass ``k``: one chunk further for what comes around."""
        s = self._s
        if not s.is_first:
            return k + 1
        chunk, number = self._micro_batch(k - (s.pp_size - 1))
        passes = (i for i, c in enumerate(s.chunk_of) if c == chunk + 1)
        return next(i for n, i in enumerate(passes) if n == number)

    def _micro_batch(self, k: int) -> _MicroBatch:
        chunk = self._s.chunk_of[k]
        return chunk, self._s.chunk_of[:k].count(chunk)

    def _receives(self, k: int, *, forward: bool) -> bool:
        """Whether the rank awaits a message for a later pass after pass ``k`` (`recv_tensor_from_previous_stage`).

        The leading rank of a direction receives from the rank at the other end. That rank is PP - 1 passes behind, and
        its last chunk sends nothing on.
        """
        s = self._s
        leads = s.is_first if forward else s.is_last
        if not leads:
            return True
        behind = k - (s.pp_size - 1)
        return behind >= 0 and s.chunk_of[behind] != s.vp_size - 1


class Instant(NamedTuple):
    """A pass, micro-batches of each chunk in flight, and whether a chunk's latest pass ``ended`` one."""

    event: Event
    in_flight: tuple[int, ...]
    ended: tuple[bool, ...]
    deferred: int = 0


# Groups of micro-batches after which a steady phase has repeated itself: warm-up lasts less than three.
_MOST_GROUPS = 6


def without_repeats(schedule: Schedule) -> Schedule:
    """Return the shortest schedule with the same instants: a steady phase repeats itself group by group."""
    group = (schedule.group_size or schedule.pp_size) if schedule.vp_size > 1 else 1
    spare = schedule.num_microbatches - _MOST_GROUPS * max(group, schedule.pp_size)
    if spare < group or schedule.num_deferred:
        return schedule
    return replace(schedule, num_microbatches=schedule.num_microbatches - spare // group * group)


@cache
def instants(schedule: Schedule) -> tuple[Instant, ...]:
    """Return the different instants of a step, in order of their first occurrence; a steady phase repeats few."""
    in_flight, ended = [0] * schedule.vp_size, [False] * schedule.vp_size
    deferred, last = 0, schedule.vp_size - 1
    seen: dict[Instant, None] = {}
    for event in schedule.events():
        seen.setdefault(Instant(event, tuple(in_flight), tuple(ended), deferred))
        in_flight[event.chunk] += 1 if event.direction == "forward" else -1
        ended[event.chunk] = event.direction == "backward"
        if event.chunk == last and ended[last]:
            deferred = min(deferred + 1, schedule.num_deferred)
    return tuple(seen)


@cache
def fullest_instants(schedule: Schedule, *, lingers: bool = True) -> tuple[Instant, ...]:
    """Return the instants that may be the fullest; ``lingers``: the latest pass of a chunk makes a difference."""
    kinds: dict[object, dict[tuple[int, ...], Instant]] = {}
    found = instants(without_repeats(schedule))
    for instant in found:
        held = (instant.event.buffers, instant.deferred, *instant.in_flight)
        kind = *instant.event[:2], *(instant.ended, tuple(map(bool, instant.in_flight))) * lingers
        others = kinds.setdefault(kind, {})
        if not any(_covers(other, held) for other in others):
            kinds[kind] = {o: i for o, i in others.items() if not _covers(held, o)} | {held: instant}
    kept = {instant for kind in kinds.values() for instant in kind.values()}
    return tuple(instant for instant in found if instant in kept)


def _covers(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    return all(map(ge, first, second))


def schedule_of(spec: ExperimentSpec, pp_rank: int) -> Schedule:
    """Return the schedule of one pipeline rank of ``spec``."""
    parallelism = spec.parallelism
    defers = parallelism.defer_embedding_wgrad_compute and pp_rank == parallelism.pipeline_model_parallel_size - 1
    limit = parallelism.wgrad_deferral_limit or spec.num_microbatches
    return Schedule(
        pp_size=parallelism.pipeline_model_parallel_size,
        pp_rank=pp_rank,
        num_microbatches=spec.num_microbatches,
        vp_size=num_virtual_stages(parallelism),
        group_size=parallelism.microbatch_group_size_per_vp_stage,
        extra_warmup=int(spec.model.moe is not None and spec.kernels.overlap_moe_expert_parallel_comm),
        num_deferred=min(limit, spec.num_microbatches) if defers else 0,
        keeps_outputs=keeps_outputs(spec),
    )


def keeps_outputs(spec: ExperimentSpec) -> bool:
    """Return whether sent outputs live until their backward pass: by request, or interleaving over gloo (config.py)."""
    p = spec.parallelism
    kept = not p.deallocate_pipeline_outputs and p.pipeline_model_parallel_size > 1
    return kept or (spec.gpu_type.is_cpu and num_virtual_stages(p) > 1)


def _one_forward_one_backward(schedule: Schedule) -> Iterator[Event]:
    """1F1B. Local variables of megatron-core's loop keep tensors of the previous micro-batch alive.

    These are the gradient that the stage received, the gradient that it sent and, until the next forward pass returns,
    its output with the input that the stage received. `deferred_bytes` counts those of a micro-batch that waits.
    """
    received_grad, sent_grad = int(not schedule.is_last), int(not schedule.is_first)
    for _ in range(schedule.num_warmup):
        yield Event("forward", 0)
    num_steady = schedule.num_microbatches - schedule.num_warmup
    for i in range(num_steady):
        sent = sent_grad * (i > schedule.num_deferred)
        yield Event("forward", 0, buffers=received_grad * (i > 0) + 2 * sent)
        yield Event("backward", 0, buffers=sent)
    for i in range(schedule.num_warmup):
        yield Event("backward", 0, buffers=sent_grad * (i > 0 or num_steady > 0))
