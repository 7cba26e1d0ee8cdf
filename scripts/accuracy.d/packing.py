"""Writes the files of traces and of requests that travel with mbr-perf: the same bytes for the same content."""

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO

from harness.predict.shipped_traces import About, address_of, defaults_of, json_text
from harness.predict.trace_cases import CachedTrace
from harness.records.events import OWN, ChunkEvents, Part, freed, owner_of
from harness.records.trace import OpCost, TraceCase

# Smaller requests are left out: all of a rank's together take some MiB of the allocator's small segments.
LEAST_BYTES = 65536


def packed(about: About, traces: Iterable[tuple[TraceCase, float, CachedTrace]]) -> bytes:
    """Return the file with these traces, in whatever order they come."""
    members: dict[str, dict[str, CachedTrace]] = {}
    specs: dict[str, dict[str, object]] = {}
    for case, imbalance, trace in traces:
        address = address_of(case, imbalance)
        members.setdefault(address.member, {})[address.name] = trace
        specs.setdefault(address.member, defaults_of(case))
    return _zipped(about, {name: json_text(_traces(specs[name], held)) for name, held in members.items()})


def _traces(spec: dict[str, object], traces: dict[str, CachedTrace]) -> dict[str, object]:
    ops: dict[OpCost, int] = {}
    rows: dict[str, object] = {}
    for name in sorted(traces):
        chunk = traces[name].chunk
        if chunk is None:
            rows[name] = {"refused": traces[name].refused}
            continue
        row = chunk.model_dump(mode="json", exclude={"ops"}, exclude_defaults=True)
        rows[name] = {**row, "ops": [ops.setdefault(op, len(ops)) for op in chunk.ops]}
    return {"spec": spec, "ops": [op.model_dump(mode="json", exclude_defaults=True) for op in ops], "traces": rows}


def packed_events(about: About, chunks: Iterable[tuple[TraceCase, ChunkEvents]]) -> bytes:
    """Return the file with these chunks, in whatever order they come."""
    members: dict[str, dict[str, ChunkEvents]] = {}
    for case, chunk in chunks:
        address = address_of(case, 1.0)
        members.setdefault(address.member, {})[address.name] = without_small(chunk)
    return _zipped(about, {name: _events(held) for name, held in members.items()})


def _events(chunks: dict[str, ChunkEvents]) -> str:
    parts: dict[Part, int] = {}
    rows = {
        name: [*(parts.setdefault(part, len(parts)) for part in (held.before, held.layer, held.behind)), held.shared]
        for name, held in sorted(chunks.items())
    }
    return json.dumps(
        {"parts": [[*part.model_dump().values()] for part in parts], "chunks": rows}, separators=(",", ":")
    )


def _zipped(about: About, members: Mapping[str, str]) -> bytes:
    """Return a zip file that depends on nothing but its texts: ``about.json``, and each member by name."""
    content, texts = BytesIO(), {"about": about.model_dump_json(indent=1)} | dict(sorted(members.items()))
    with zipfile.ZipFile(content, "w", zipfile.ZIP_LZMA) as archive:
        for name, text in texts.items():
            info = zipfile.ZipInfo(f"{name}.json", date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type, info.external_attr = zipfile.ZIP_LZMA, 0o644 << 16
            archive.writestr(info, text)
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
