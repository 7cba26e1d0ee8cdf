"""The order in which a pipeline rank runs its micro-batches, and the hidden states it holds beside them.

The arithmetic is that of megatron-core 0.16 `pipeline_parallel/schedules.py`: no pipelining, 1F1B, and interleaved 1F1B
with overlapped point-to-point messages, the only form that ranks of this harness use with several virtual stages.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from operator import ge
from typing import NamedTuple

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout import num_virtual_stages
from harness.predict.interleaved import Event, Interleaved, Pass


@dataclass(frozen=True)
class Schedule:
    """The settings that decide the order on one pipeline rank. ``group_size`` is `microbatch_group_size_per_vp_stage`.

    ``extra_warmup`` is 1 where expert-parallel communication overlaps with the next micro-batch: a backward pass and
    the forward pass beside it then take turns layer by layer (`TransformerModelChunkSchedulePlan.run`).
    ``num_deferred``: micro-batches whose weight gradients of the output layer wait on this rank until all passes are
    over. ``keeps_outputs``: an output lives until its backward pass, as part of its micro-batch.
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


class Instant(NamedTuple):
    """A pass, and how many micro-batches of each chunk are between their passes when it starts.

    ``ended``: by chunk, whether its latest pass was a backward one. ``deferred``: micro-batches whose weight gradients
    of the output layer wait.
    """

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


def fullest_instants(schedule: Schedule, alike: tuple[int, ...] = (), *, lingers: bool = True) -> tuple[Instant, ...]:
    """Return the :func:`instants` that may hold the most memory: no other of their kind holds as much of every part.

    ``alike``: for every chunk, the number of a chunk of equal cost; empty where each has its own. ``lingers``: the
    latest pass of a chunk makes a difference.
    """
    return _fullest(without_repeats(schedule), alike or tuple(range(schedule.vp_size)), lingers=lingers)


@cache
def _fullest(schedule: Schedule, alike: tuple[int, ...], *, lingers: bool) -> tuple[Instant, ...]:
    kinds: dict[object, dict[_Held, Instant]] = {}
    for instant in instants(schedule):
        kind, held = _held(instant, alike)
        alone = kind if lingers else kind[:2]
        others = kinds.setdefault(alone, {})
        if not any(_covers(other, held) for other in others):
            kinds[alone] = {o: i for o, i in others.items() if not _covers(held, o)} | {held: instant}
    kept = {instant for kind in kinds.values() for instant in kind.values()}
    return tuple(instant for instant in instants(schedule) if instant in kept)


class Load(NamedTuple):
    """An instant of a rank some of whose chunks are alike; counts are by the first chunk of each kind, in their order.

    ``earlier``: micro-batches that are not the latest of their chunk, the running one counted. ``idle``: for each chunk
    that waits and whose latest pass was a backward one, its kind, and whether micro-batches of it are in flight.
    """

    event: Event
    again: bool
    in_flight: tuple[int, ...]
    earlier: tuple[int, ...]
    idle: tuple[tuple[int, bool], ...]
    deferred: int


@cache
def fullest_loads(schedule: Schedule, alike: tuple[int, ...], *, lingers: bool = True) -> tuple[Load, ...]:
    """Return :func:`fullest_instants` by kinds of chunks; arguments as there."""
    return tuple(_load(instant, alike) for instant in fullest_instants(schedule, alike, lingers=lingers))


def _load(instant: Instant, alike: tuple[int, ...]) -> Load:
    event, (kind, held) = instant.event, _held(instant, alike)
    earlier = dict.fromkeys(alike, 0)
    for chunk, (like, num) in enumerate(zip(alike, instant.in_flight, strict=True)):
        earlier[like] += max(0, num - 1 + (chunk == event.chunk and event.direction == "forward"))
    return Load(event, kind.again, held[2:], tuple(earlier.values()), kind.idle, instant.deferred)


class _Kind(NamedTuple):
    direction: Pass
    chunk: int
    again: bool
    idle: tuple[tuple[int, bool], ...]


_Held = tuple[int, ...]


def _held(instant: Instant, alike: tuple[int, ...]) -> tuple[_Kind, _Held]:
    """The kind of an instant, and what it holds: micro-batches in flight count together in chunks that are alike."""
    event, in_flight, idle = instant.event, dict.fromkeys(alike, 0), []
    for chunk, (like, num, ended) in enumerate(zip(alike, instant.in_flight, instant.ended, strict=True)):
        in_flight[like] += num
        if ended and chunk != event.chunk:
            idle.append((like, num > 0))
    kind = _Kind(event.direction, alike[event.chunk], instant.ended[event.chunk], tuple(sorted(idle)))
    return kind, (event.buffers, instant.deferred, *in_flight.values())


def _covers(first: _Held, second: _Held) -> bool:
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
    its output. The output's graph keeps the input that the stage received. `deferred_bytes` already counts the input
    and the gradient of a micro-batch that waits.
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
