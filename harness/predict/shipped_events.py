"""Reads and writes the requests for memory that travel with mbr-perf: parts of chunks, from which steps are composed.

There is one zip file per release of megatron-core beside the traces. ``about.json`` says what made it. Every other
member holds all chunks of one reduced request; equal parts are stored once, as lists of numbers.
"""

import json
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from pathlib import Path

from harness.experiment.software import Software
from harness.predict.shipped_traces import (
    About,
    address_of,
    code_digest,
    made_here,
    shipped_file,
    why_not,
    write_member,
)
from harness.records.events import OWN, ChunkEvents, Part, freed, owner_of
from harness.records.trace import TraceCase

# Smaller requests are left out: all of a rank's together take some MiB of the allocator's small segments.
LEAST_BYTES = 65536
_RECORDER = ("engine/trace_events.py", "engine/tracing/recording.py", "records/events.py")


def events_file(megatron_core: str) -> Path:
    """Return the file of a release; it need not exist."""
    traces = shipped_file(megatron_core)
    return traces.with_name(f"requests-{traces.name}")


@cache
def _recorder_code() -> str:
    return code_digest(_RECORDER)


def events_made_here() -> About:
    """As `made_here`, with the code of the recorder in that of the tracer."""
    about = made_here()
    return about.model_copy(update={"tracer": f"{about.tracer}-{_recorder_code()}"})


@dataclass(frozen=True)
class ShippedEvents:
    """The chunks of one file. Reads a member when one of its chunks is asked for."""

    path: Path
    _members: dict[str, dict[str, ChunkEvents]] = field(default_factory=dict, repr=False, compare=False)

    def read(self, case: TraceCase) -> ChunkEvents | None:
        """Return the chunk of ``case``; None if the file has none."""
        address = address_of(case, 1.0)
        if address.member not in self._members:
            self._members[address.member] = self._read(address.member)
        return self._members[address.member].get(address.name)

    def _read(self, member: str) -> dict[str, ChunkEvents]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                content = json.loads(archive.read(f"{member}.json"))
        except KeyError:
            return {}
        parts = [Part(**dict(zip(Part.model_fields, map(tuple, row), strict=True))) for row in content["parts"]]
        return {
            name: ChunkEvents(before=parts[row[0]], layer=parts[row[1]], behind=parts[row[2]], shared=tuple(row[3]))
            for name, row in content["chunks"].items()
        }


def find_events(megatron_core: str, installed: Software) -> ShippedEvents | None:
    """Return the requests of a release; None where there are none that hold here."""
    path = events_file(megatron_core)
    try:
        with zipfile.ZipFile(path) as archive:
            about = About.model_validate_json(archive.read("about.json"))
    except (OSError, KeyError, zipfile.BadZipFile, ValueError):
        return None
    tracer, _, recorder = about.tracer.partition("-")
    known = about.model_copy(update={"tracer": tracer})
    return None if recorder != _recorder_code() or why_not(known, installed) else ShippedEvents(path)


def packed_events(about: About, chunks: Iterable[tuple[TraceCase, ChunkEvents]]) -> bytes:
    """Return the file with these chunks: the same bytes for the same chunks, in whatever order they come."""
    members: dict[str, dict[str, ChunkEvents]] = {}
    for case, chunk in chunks:
        address = address_of(case, 1.0)
        members.setdefault(address.member, {})[address.name] = without_small(chunk)
    content = BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_LZMA) as archive:
        write_member(archive, "about.json", about.model_dump_json(indent=1))
        for member in sorted(members):
            parts: dict[Part, int] = {}
            rows = {
                name: [
                    *(parts.setdefault(part, len(parts)) for part in (chunk.before, chunk.layer, chunk.behind)),
                    chunk.shared,
                ]
                for name, chunk in sorted(members[member].items())
            }
            body = {"parts": [[*part.model_dump().values()] for part in parts], "chunks": rows}
            write_member(archive, f"{member}.json", json.dumps(body, separators=(",", ":")))
    return content.getvalue()


def without_small(chunk: ChunkEvents) -> ChunkEvents:
    """Return a chunk without its small requests."""
    before, layer, behind = map(_large_only, (chunk.before, chunk.layer, chunk.behind))
    return ChunkEvents(before=before, layer=layer, behind=behind, shared=_large(chunk.shared))


def _large_only(part: Part) -> Part:
    """Return a part without small requests, numbered anew."""
    sizes = [row for row in (*part.forward, *part.backward) if row > 0]
    numbers = {number: place for place, number in enumerate(n for n, size in enumerate(sizes) if size >= LEAST_BYTES)}

    def kept(rows: tuple[int, ...]) -> Iterator[int]:
        for row in rows:
            owner, what = owner_of(row) if row <= 0 else (OWN, 0)
            if row > 0 and row >= LEAST_BYTES:
                yield row
            elif row <= 0 and owner == OWN and what in numbers:
                yield freed(OWN, numbers[what])
            elif row <= 0 and owner != OWN and what >= LEAST_BYTES:
                yield row

    return Part(
        forward=tuple(kept(part.forward)),
        backward=tuple(kept(part.backward)),
        parameters=_large(part.parameters),
        experts=_large(part.experts),
        stay=_large(part.stay),
    )


def _large(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in sizes if size >= LEAST_BYTES)
