"""Reads the requests for memory that travel with mbr-perf: parts of chunks, from which steps are composed.

There is one zip file per release of megatron-core beside the traces. ``about.json`` says what made it. Every other
member holds all chunks of one reduced request; equal parts are stored once, as lists of numbers.
"""

import zipfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from harness.experiment.software import Software
from harness.predict.shipped_traces import (
    RECORDER,
    About,
    address_of,
    code_digest,
    made_here,
    read_member,
    shipped_file,
    sources_digest,
    why_not,
)
from harness.records.events import ChunkEvents, Part
from harness.records.trace import TraceCase


def events_file(megatron_core: str) -> Path:
    """Return the file of a release; it need not exist."""
    traces = shipped_file(megatron_core)
    return traces.with_name(f"requests-{traces.name}")


@cache
def _recorder_code() -> str:
    return code_digest(RECORDER)


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
        content = read_member(self.path, member)
        if content is None:
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
    is_same = about.sources == sources_digest() or recorder == _recorder_code()
    return ShippedEvents(path) if is_same and not why_not(known, installed) else None
