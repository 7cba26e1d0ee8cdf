"""Pieces of traces with their work, and the chunks composed of them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from harness.experiment.gpu import PeakKey
from harness.records.trace import ChunkTrace, CommGroup, OpCost, OpKind, Phase


class Op(NamedTuple):
    """One execution of an operation; see `OpCost`. A plain tuple, because compositions read millions of them."""

    phase: Phase
    kind: OpKind
    dtype: PeakKey
    flops: int
    bytes: int
    comm_bytes: int
    comm_group: CommGroup | None
    overlapped: bool


@dataclass(frozen=True)
class Work:
    """How often each operation runs; differences may hold negative counts, mixtures of loads parts of counts."""

    counts: Mapping[Op, float] = field(default_factory=dict)

    @staticmethod
    def of(ops: tuple[OpCost, ...]) -> "Work":
        """Make the work from the rows of a trace, whose figures are totals over ``count`` executions."""
        counts: dict[Op, float] = {}
        for op in ops:
            n = op.count
            each = Op(
                op.phase,
                op.kind,
                op.dtype,
                op.flops // n,
                op.bytes // n,
                op.comm_bytes // n,
                op.comm_group,
                op.overlapped,
            )
            counts[each] = counts.get(each, 0) + n
        return Work(counts)

    def __sub__(self, other: "Work") -> "Work":
        return self._plus(other, -1)

    @staticmethod
    def total(works: Iterable["Work"]) -> "Work":
        """Add up works, of which many are the same object."""
        times, found = Counter(map(id, works := [*works])), Work()
        for work in {id(work): work for work in works}.values():
            found = found._plus(work, times[id(work)])
        return found

    def towards(self, other: "Work", share: float) -> "Work":
        """Return the work so far from this to ``other``; its seconds are as far between theirs."""
        return self._plus(other - self, share) if share else self

    def _plus(self, other: "Work", times: float) -> "Work":
        counts = dict(self.counts)
        for op, count in other.counts.items():
            total = counts.get(op, 0) + times * count
            if total:
                counts[op] = total
            else:
                counts.pop(op, None)
        return Work(counts)

    def __iter__(self) -> Iterator[tuple[Op, float]]:
        return iter(self.counts.items())

    def flops(self, *phases: str) -> float:
        """Return the FLOPs of the named phases; of all phases without a name."""
        return sum(op.flops * count for op, count in self if not phases or op.phase in phases)


@dataclass(frozen=True)
class Parameters:
    """Trained parameters of one rank, as elements, and the bytes of all its parameters as stored for compute."""

    dense: int = 0
    expert: int = 0
    stored_bytes: int = 0

    @staticmethod
    def of(trace: ChunkTrace) -> "Parameters":
        """Add up the parameters of a chunk."""
        return Parameters(trace.num_parameters_dense, trace.num_parameters_expert, trace.parameter_bytes)

    @staticmethod
    def total(parts: "Iterable[Parameters]") -> "Parameters":
        """Add up the parameters of ``parts``."""
        each = [(part.dense, part.expert, part.stored_bytes) for part in parts]
        return Parameters(*map(sum, zip(*each, strict=True)))

    def __sub__(self, other: "Parameters") -> "Parameters":
        return Parameters.total([self, Parameters(-other.dense, -other.expert, -other.stored_bytes)])


@dataclass(frozen=True)
class Piece:
    """The memory and work that one layer, one checkpointed unit, or an end of the model adds to a chunk.

    ``saved``: bytes kept from forward to backward. ``forward_over``: peak of its forward pass above the state after it.
    ``backward_over``: peak of its backward pass above the state before it. ``persistent``: bytes that stay.
    ``offloadable``: of ``saved``, what goes to the host where the layer is offloaded. ``awaited``: what the layer saves
    beyond ``saved`` in modules that are offloaded, or the copies that return, if these are more: a tensor that two
    operations save returns twice. A rank holds it for one layer at a time: of the chunk that runs backward next, the
    last layer is on the device. ``leaving``: what its forward peak is higher, above the state after it, where its
    modules leave as it runs. ``received``: of what its modules offload, the input that the schedule keeps where the
    chunk received it. ``lingering``: bytes that its backward pass leaves behind until it runs again
    (`ChunkTrace.lingering_bytes`). ``runs_again``: its backward pass runs what lingers a second time, and so replaces
    what an earlier one left. ``captured``: what it saves in eager steps and replayed graphs do not allocate; not in
    ``saved``. ``pool``: what its captured parts save and hand on in private pools. ``static``: what they read.
    ``copied``: bytes that its offloaded modules copy to the host and back. ``shared_behind``: what lingers of it and is
    also among the ``backward_over`` of the layer before: a gradient of its input, which is that layer's
    output gradient. ``latest``: of ``saved``, what its token dispatcher keeps of the latest micro-batch alone.
    """

    saved: int
    forward_over: int
    backward_over: int
    persistent: int
    parameters: Parameters
    work: Work
    offloadable: int = 0
    awaited: int = 0
    leaving: int = 0
    received: int = 0
    lingering: int = 0
    runs_again: bool = False
    shared_behind: int = 0
    captured: int = 0
    pool: int = 0
    static: int = 0
    copied: int = 0
    latest: int = 0


def layer_piece(single: ChunkTrace, double: ChunkTrace, *, runs_again: bool = False) -> Piece:
    """Return one layer, from the traces of a chunk with one layer and of a chunk with two."""
    layer = added_piece(double, single)
    apart = single.backward_peak_bytes - layer.saved + layer.lingering + single.hidden_bytes
    return replace(
        layer,
        forward_over=single.forward_peak_bytes - single.saved_bytes,
        backward_over=single.backward_peak_bytes,
        runs_again=runs_again,
        shared_behind=max(0, apart - double.backward_peak_bytes) if layer.lingering else 0,
    )


def offloaded_piece(kept: Piece, single: ChunkTrace, double: ChunkTrace) -> Piece:
    """Return the layer ``kept`` under layer-wise offloading, from traces with all layers on the host."""
    away = kept.saved - (double.saved_bytes - single.saved_bytes)
    return replace(kept, offloadable=away, backward_over=max(kept.backward_over, single.backward_peak_bytes - away))


def modules_piece(kept: Piece, whole: int, single: ChunkTrace, double: ChunkTrace, triple: ChunkTrace) -> Piece:
    """Return ``kept`` with its modules offloaded, from traces of chunks whose last layer stays, as in megatron-core.

    ``whole``: bytes that the layer of ``one`` saved. The second of three layers is the one that no end of the chunk
    touches; in the backward pass of the one behind it, it comes back.
    """
    saved = triple.saved_bytes - double.saved_bytes
    forward_over = single.forward_peak_bytes - single.saved_bytes
    return replace(
        kept,
        saved=saved,
        forward_over=forward_over,
        backward_over=max(single.backward_peak_bytes, triple.backward_peak_bytes),
        work=Work.of(triple.ops) - Work.of(double.ops),
        awaited=max(whole - saved, single.reloaded_bytes),
        leaving=single.leaving_over_bytes - forward_over,
        received=double.saved_bytes - single.saved_bytes - saved,
        copied=single.reloaded_bytes,
    )


def frame_piece(single: ChunkTrace, layer: Piece) -> Piece:
    """Return the memory of a chunk besides its layers: tokens and labels of the micro-batch, shared buffers."""
    return Piece(
        saved=single.saved_bytes - layer.saved,
        forward_over=0,
        backward_over=0,
        persistent=single.persistent_bytes - layer.persistent,
        parameters=Parameters.of(single) - layer.parameters,
        work=Work.of(single.ops) - layer.work,
    )


def added_piece(more: ChunkTrace, without: ChunkTrace) -> Piece:
    """Return what another layer, an embedding, or an output layer with its loss adds to a chunk of one layer."""
    return Piece(
        saved=more.saved_bytes - without.saved_bytes,
        forward_over=more.forward_peak_bytes - more.saved_bytes,
        backward_over=more.backward_peak_bytes,
        persistent=more.persistent_bytes - without.persistent_bytes,
        parameters=Parameters.of(more) - Parameters.of(without),
        work=Work.of(more.ops) - Work.of(without.ops),
        lingering=more.lingering_bytes - without.lingering_bytes,
    )


def unit_piece(checkpointed: list[Piece], kept: list[Piece], input_bytes: int) -> Piece:
    """Return the layers under one checkpoint, from the same layers recomputed singly and kept.

    Of the inputs, ``input_bytes`` each, only the unit's is saved. Its backward pass recomputes all layers before the
    last one's gradients are due. Inside its forward pass one more hidden state is alive.
    """
    last, further = checkpointed[-1], len(checkpointed) - 1
    held = sum(piece.saved for piece in kept[:-1])
    return Piece(
        saved=sum(piece.saved for piece in checkpointed) - further * input_bytes,
        forward_over=max(piece.forward_over for piece in checkpointed) + input_bytes * (further > 0),
        backward_over=last.backward_over + held,
        persistent=sum(piece.persistent for piece in checkpointed),
        parameters=Parameters.total(piece.parameters for piece in checkpointed),
        work=Work.total(piece.work for piece in checkpointed),
        lingering=sum(piece.lingering for piece in checkpointed),
        runs_again=True,
        shared_behind=last.shared_behind,
        copied=sum(piece.copied for piece in checkpointed),
        latest=sum(piece.latest for piece in checkpointed),
    )


@dataclass(frozen=True)
class PassSizes:
    """Bytes of one micro-batch: kept between its passes, and the peaks above the state before and after forward.

    ``forward_again``, ``backward_again``: those peaks where the chunk's latest pass was a backward one. ``lingering``:
    all that a backward pass leaves; ``replaced``: of it, what the next one replaces, because it runs the layer again.
    """

    saved: int
    forward_peak: int
    backward_peak: int
    forward_again: int
    backward_again: int
    lingering: int = 0
    replaced: int = 0


@dataclass(frozen=True)
class ChunkCost:
    """One model chunk of a rank. ``sizes`` holds everything, ``body`` leaves the output layer and loss out.

    ``persistent`` belongs to the chunk's layers and ends; ``shared`` is kept once per rank by all its chunks. The last
    five fields are as of its layers.
    """

    sizes: PassSizes
    body: PassSizes
    persistent: int
    shared: int
    hidden_bytes: int
    parameters: Parameters
    work: Work
    has_loss: bool
    largest_unit: int = 0
    captured: int = 0
    pool: int = 0
    static: int = 0
    copied: int = 0
    latest: int = 0


@dataclass(frozen=True)
class Ends:
    """The ends of a chunk. ``last`` is measured on top of ``first``, because tied embeddings are stored once."""

    first: Piece | None = None
    last: Piece | None = None


def compose(
    frame: Piece, units: Sequence[Piece], ends: Ends, hidden_bytes: int, window: int | None = None
) -> ChunkCost:
    """Return a chunk of ``units`` in forward order, of which at most ``window`` in a row are on the device."""
    window = len(units) if window is None else window
    received = 0 if ends.last else hidden_bytes
    parts = [frame, *units, *(end for end in (ends.first, ends.last) if end)]
    return ChunkCost(
        sizes=_sizes(frame, units, ends, window, received),
        body=_sizes(frame, units, Ends(first=ends.first), window, received),
        persistent=sum(part.persistent for part in parts[1:]),
        shared=frame.persistent,
        hidden_bytes=hidden_bytes,
        parameters=Parameters.total(part.parameters for part in parts),
        work=Work.total(part.work for part in parts),
        has_loss=ends.last is not None,
        largest_unit=max((unit.saved for unit in units), default=0),
        captured=sum(unit.captured for unit in units),
        pool=sum(unit.pool for unit in units),
        static=sum(unit.static for unit in units),
        copied=sum(unit.copied for unit in units) + max(_away(units, window), default=0),
        latest=sum(unit.latest for unit in units),
    )


def _sizes(frame: Piece, units: Sequence[Piece], ends: Ends, window: int, received: int) -> PassSizes:
    """Forward: what was saved so far plus the running unit. Backward: in reverse order, the loss first."""
    tail = ends.last.saved if ends.last else 0
    left_by_loss = ends.last.lingering if ends.last else 0
    lingering = sum(unit.lingering for unit in units) + left_by_loss
    replaced = sum(unit.lingering for unit in units if unit.runs_again)
    away = _away(units, window)
    forward, saved = _forward_peaks(frame, units, ends, away, lingering)
    backward = _backward_peaks(units, ends, away, left_by_loss, replaced, received)
    awaited = max((unit.awaited for unit in units), default=0)
    clean, again = (forward[0] + awaited, backward[0] + awaited), (forward[1] + awaited, backward[1] + awaited)
    return PassSizes(saved + tail, *clean, *again, lingering, replaced)


def _away(units: Sequence[Piece], window: int) -> list[int]:
    """Bytes on the host while each unit runs, forward or backward (2.11 `DefaultOffloadSynchronizer`).

    A layer leaves when the one ``window`` places behind it begins its forward pass, and comes back when the one a place
    nearer begins its backward pass.
    """
    return [sum(unit.offloadable for unit in units[: max(0, i + 1 - window)]) for i in range(len(units))]


def _forward_peaks(
    frame: Piece, units: Sequence[Piece], ends: Ends, away: Sequence[int], lingering: int
) -> tuple[tuple[int, int], int]:
    """Peaks without and with leftovers, and what the units keep."""
    start = saved = frame.saved + (ends.first.saved if ends.first else 0)
    clean = again = start
    for unit, gone in zip(units, away, strict=True):
        saved, lingering = saved + unit.saved, lingering - unit.lingering
        clean = max(clean, saved - gone + unit.forward_over)
        again = max(again, saved - gone + unit.forward_over + lingering)
    saved -= away[-1] if away else 0
    if ends.first:
        last_out = units[0].saved if units else 0
        clean = max(clean, start + last_out + ends.first.forward_over)
    if ends.last:
        clean = max(clean, saved + ends.last.saved + ends.last.forward_over)
    return (clean, max(clean, again)), saved


def _backward_peaks(
    units: Sequence[Piece], ends: Ends, away: Sequence[int], left_by_loss: int, replaced: int, received: int
) -> tuple[int, int]:
    """Peaks without and with leftovers of the chunk's own earlier pass; those of this pass are in both.

    The schedule holds the ``received`` gradient until the pass is over. What the last layer needs includes it; what an
    earlier layer needs is beside it.
    """
    tail = ends.last.saved if ends.last else 0
    clean = again = ends.last.backward_over if ends.last else 0
    again += replaced if ends.last else 0
    after_units, left, shared, held = 0, left_by_loss, 0, 0
    for unit, gone in zip(reversed(units), reversed(away), strict=True):
        replaced -= unit.lingering if unit.runs_again else 0
        returned = away[-1] - gone
        own = unit.backward_over - after_units + returned - tail + left - shared + held
        clean, again = max(clean, own), max(again, own + replaced)
        after_units, left = after_units + unit.saved, left + unit.lingering
        shared, held = unit.shared_behind, received
    if ends.first:
        last_out = units[0].saved if units else 0
        returned = away[-1] - away[0] if away else 0
        clean = max(clean, ends.first.backward_over - (after_units - last_out) + returned - tail)
    return clean, max(clean, again)
