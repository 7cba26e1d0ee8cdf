"""Lines of JSON that are only ever added to: what was decided while something ran, in order, whatever killed it."""

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from harness.spec.frozen import Frozen

EVENTS = "events.jsonl"

Event = TypeVar("Event", bound=Frozen)


def append_line(path: Path, event: Frozen) -> None:
    """One more line; a line that a kill left half-written is closed first, so that it hurts none."""
    with path.open("ab+") as stream:
        if stream.tell():
            stream.seek(-1, 2)
            if stream.read(1) != b"\n":
                stream.write(b"\n")
        stream.write(event.model_dump_json().encode() + b"\n")


def read_lines(path: Path, schema: type[Event]) -> tuple[Event, ...]:
    """The events in order; none where there is no file. A line that is none is passed over: a kill cuts the last one short."""
    events = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            events.append(schema.model_validate_json(line))
        except ValidationError:
            continue
    return tuple(events)
