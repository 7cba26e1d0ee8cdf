"""What the parts of a model chunk ask of torch's allocator: the file between the tracer and the planner."""

from pydantic import Field

from harness.experiment.frozen import Frozen
from harness.records.rank import SCHEMA_VERSION, SchemaVersion

# Whose request a row gives back: of the part itself, of the forward pass of the part before or behind it, or of the
# backward pass of the part behind it, which runs just before its own.
OWN, BEFORE, BEHIND, BEHIND_BACKWARD = range(4)
_NUM_OWNERS = 4


def freed(owner: int, what: int) -> int:
    """Return the row that gives back the part's own request of this number, or a neighbour's of so many bytes."""
    return -(_NUM_OWNERS * what + owner + 1)


def owner_of(row: int) -> tuple[int, int]:
    """Return owner, and number or bytes, of a row that is not a request."""
    return (-row - 1) % _NUM_OWNERS, (-row - 1) // _NUM_OWNERS


class Part(Frozen):
    """One layer, or what lies before or behind the layers, through one micro-batch.

    Rows above 0 are requests in bytes, others give back (:func:`freed`); requests are numbered from 0. ``parameters``,
    ``experts``: stored bytes of each, in order. ``stay``: bytes that its first pass makes and that stay.
    """

    forward: tuple[int, ...] = ()
    backward: tuple[int, ...] = ()
    parameters: tuple[int, ...] = ()
    experts: tuple[int, ...] = ()
    stay: tuple[int, ...] = ()


class ChunkEvents(Frozen):
    """The parts of a traced chunk. ``shared``: bytes of buffers that the first pass makes, and that all layers use."""

    before: Part
    layer: Part
    behind: Part
    shared: tuple[int, ...] = ()


class EventsFile(Frozen):
    """The answer of ``python -m harness.engine.trace --events``: parts by the key of their case."""

    schema_version: SchemaVersion = SCHEMA_VERSION
    chunks: dict[str, ChunkEvents] = Field(default_factory=dict)
    refused: dict[str, str] = Field(default_factory=dict)
