"""Composes traces, and keeps them in a cache."""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from harness.experiment.gpu import Frozen
from harness.planning.pieces import Parameters, Piece, Work
from harness.records.store import write_atomically
from harness.records.trace import ChunkTrace


@dataclass(frozen=True)
class PassSizes:
    """Bytes of one micro-batch: kept between its passes, and the peaks above the state before and after forward.

    ``forward_again``, ``backward_again``: those peaks where the chunk's latest pass was a backward one, whose leftovers go
    layer by layer. ``lingering``: all that a backward pass leaves; ``replaced``: of it, what the next backward pass would
    replace too, because it runs the layer again.
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


def compose(
    frame: Piece, units: Sequence[Piece], ends: Ends, hidden_bytes: int, window: int | None = None
) -> ChunkCost:
    """A chunk whose layers are ``units`` in forward order.

    ``window``: at most so many layers in a row, the running one the last, are on the device; None for all.
    """
    window = len(units) if window is None else window
    parts = [frame, *units, *(end for end in (ends.first, ends.last) if end)]
    parameters, work = Parameters(), Work()
    for part in parts:
        parameters, work = parameters + part.parameters, work + part.work
    return ChunkCost(
        sizes=_sizes(frame, units, ends, window),
        body=_sizes(frame, units, Ends(first=ends.first), window),
        persistent=sum(part.persistent for part in parts[1:]),
        shared=frame.persistent,
        hidden_bytes=hidden_bytes,
        parameters=parameters,
        work=work,
        has_loss=ends.last is not None,
    )


def _sizes(frame: Piece, units: Sequence[Piece], ends: Ends, window: int) -> PassSizes:
    """Forward: what was saved so far plus the running unit. Backward: the other way round, the loss first."""
    tail = ends.last.saved if ends.last else 0
    left_by_loss = ends.last.lingering if ends.last else 0
    lingering = sum(unit.lingering for unit in units) + left_by_loss
    replaced = sum(unit.lingering for unit in units if unit.runs_again)
    away = _away(units, window)
    forward, saved = _forward_peaks(frame, units, ends, away, lingering)
    backward = _backward_peaks(units, ends, away, left_by_loss, replaced)
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
    units: Sequence[Piece], ends: Ends, away: Sequence[int], left_by_loss: int, replaced: int
) -> tuple[int, int]:
    """Peaks without and with leftovers of the chunk's own earlier pass; those of this pass are in both."""
    tail = ends.last.saved if ends.last else 0
    clean = again = ends.last.backward_over if ends.last else 0
    again += replaced if ends.last else 0
    after_units, left, shared = 0, left_by_loss, 0
    for unit, gone in zip(reversed(units), reversed(away), strict=True):
        replaced -= unit.lingering if unit.runs_again else 0
        returned = away[-1] - gone
        own = unit.backward_over - after_units + returned - tail + left - shared
        clean, again = max(clean, own), max(again, own + replaced)
        after_units, left = after_units + unit.saved, left + unit.lingering
        shared = unit.shared_behind
    if ends.first:
        last_out = units[0].saved if units else 0
        returned = away[-1] - away[0] if away else 0
        clean = max(clean, ends.first.backward_over - (after_units - last_out) + returned - tail)
    return clean, max(clean, again)


class CachedTrace(Frozen):
    """A traced chunk, or the reason why the tracer declined it; the versions are for people who look inside."""

    megatron_core: str
    torch: str
    stand_in: str | None = None
    chunk: ChunkTrace | None = None
    refused: str | None = Field(default=None)


def tracer_fingerprint(package: Path, installed: Iterable[str | None]) -> str:
    """Sixteen hex digits of the tracer's sources, the tables behind specs, and what is ``installed``.

    ``package`` is the folder of this package; ``installed``: versions, and stamps of files where a version says too
    little. A changed stand-in, adaptation or precision row never meets old traces.
    """
    return source_fingerprint(package, ("engine", "experiment", "records/trace.py"), installed)


def source_fingerprint(package: Path, parts: Iterable[str], installed: Iterable[str | None]) -> str:
    """Sixteen hex digits of what is ``installed`` and of the sources in ``parts``, files and folders of ``package``."""
    digest = hashlib.sha256("\n".join(map(str, installed)).encode())
    for part in parts:
        root = package / part
        for source in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            digest.update(str(source.relative_to(package)).encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class TraceCache:
    """Safe for concurrent use: files are written whole and renamed, and equal names hold equal content."""

    folder: Path

    def read(self, key: str, imbalance: float) -> CachedTrace | None:
        """None where there is nothing, or nothing readable: the trace is then made and written again."""
        try:
            return CachedTrace.model_validate_json(self._file(key, imbalance).read_bytes())
        except (OSError, ValidationError):
            return None

    def write(self, key: str, imbalance: float, trace: CachedTrace) -> None:
        """Keep one trace. A folder that cannot be written costs time at the next question, not the answer to this one."""
        file = self._file(key, imbalance)
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, trace.model_dump_json())

    def _file(self, key: str, imbalance: float) -> Path:
        return self.folder / f"{key}-{imbalance:g}.json"
