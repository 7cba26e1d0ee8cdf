"""A model chunk of any length and mix of layers, put together from pieces."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.planning.pieces import Parameters, Piece
from harness.planning.work import Work


@dataclass(frozen=True)
class PassSizes:
    """Bytes of one micro-batch: kept between its passes, and the peaks above the state before and after forward."""

    saved: int
    forward_peak: int
    backward_peak: int


@dataclass(frozen=True)
class ChunkCost:
    """One model chunk of a rank. ``sizes`` holds everything, ``body`` leaves the output layer and loss out.

    ``persistent`` belongs to the chunk's layers and ends; ``shared`` is kept once per rank by all its chunks.
    """

    sizes: PassSizes
    body: PassSizes
    persistent: int
    shared: int
    hidden_bytes: int
    parameters: Parameters
    work: Work
    has_loss: bool


@dataclass(frozen=True)
class Ends:
    """What a chunk has besides layers. ``first``: the embedding; ``last``: output layer, loss and MTP layers.

    A chunk with both has ``last`` measured on top of ``first``, because tied embeddings are stored once.
    """

    first: Piece | None = None
    last: Piece | None = None


def compose(frame: Piece, units: Sequence[Piece], ends: Ends, hidden_bytes: int) -> ChunkCost:
    """A chunk whose layers are ``units`` in forward order."""
    parts = [frame, *units, *(end for end in (ends.first, ends.last) if end)]
    parameters, work = Parameters(), Work()
    for part in parts:
        parameters, work = parameters + part.parameters, work + part.work
    return ChunkCost(
        sizes=_sizes(frame, units, ends),
        body=_sizes(frame, units, Ends(first=ends.first)),
        persistent=sum(part.persistent for part in parts[1:]),
        shared=frame.persistent,
        hidden_bytes=hidden_bytes,
        parameters=parameters,
        work=work,
        has_loss=ends.last is not None,
    )


def _sizes(frame: Piece, units: Sequence[Piece], ends: Ends) -> PassSizes:
    """Forward: what was saved so far plus the running unit. Backward: the other way round, the loss first."""
    start = frame.saved + (ends.first.saved if ends.first else 0)
    tail = ends.last.saved if ends.last else 0
    forward, backward, saved = start, 0, start
    for unit in units:
        saved += unit.saved
        forward = max(forward, saved + unit.forward_over)
    after_units = 0
    for unit in reversed(units):
        backward = max(backward, unit.backward_over - after_units - tail)
        after_units += unit.saved
    if ends.first:
        last_out = units[0].saved if units else 0
        forward = max(forward, start + last_out + ends.first.forward_over)
        backward = max(backward, ends.first.backward_over - (after_units - last_out) - tail)
    saved += tail
    if ends.last:
        forward = max(forward, saved + ends.last.forward_over)
        backward = max(backward, ends.last.backward_over)
    return PassSizes(saved, forward, backward)
