"""Where a composition looks up its traces."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.predict.compose import ChunkCost, Piece
from harness.records.trace import ChunkTrace, TraceCase

_NOTHING = ChunkTrace(
    saved_bytes=0,
    forward_peak_bytes=0,
    backward_peak_bytes=0,
    persistent_bytes=0,
    hidden_bytes=0,
    num_parameters_dense=0,
    num_parameters_expert=0,
    parameter_bytes=0,
)


class MissingTraceError(LookupError):
    """Composition needs a trace that does not exist: the tracer refused it, or it was not requested."""


class Book:
    """Returns the traces of cases, and makes every piece of a request once.

    Without ``traces`` it records the ``cases`` that are asked for, and returns traces of nothing.
    """

    def __init__(self, traces: Mapping[str, ChunkTrace] | None = None) -> None:
        self._traces = traces
        self._made: dict[object, Piece] = {}
        self.costs: dict[object, ChunkCost] = {}
        self.cases: list[TraceCase] = []

    def once(self, name: object, make: Callable[[], Piece]) -> Piece:
        """Return the piece with this name; make it if it is new."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def __getitem__(self, case: TraceCase) -> ChunkTrace:
        if self._traces is None:
            self.cases.append(case)
            return _NOTHING
        if case.key not in self._traces:
            raise MissingTraceError(case.key)
        return self._traces[case.key]


@dataclass(frozen=True)
class Shared:
    """Values that the settings of one request share, and all but ``steps`` the requests that differ in the pipeline.

    ``listed``: the cases of each chunk. A book holds its traces, so that their ids stay valid.
    """

    cases: dict[object, TraceCase] = field(default_factory=dict)
    listed: dict[object, list[TraceCase]] = field(default_factory=dict)
    steps: dict[object, Any] = field(default_factory=dict)
    books: dict[int, Book] = field(default_factory=dict)
