"""Where a composition looks up its traces."""

from collections.abc import Callable, Mapping

from harness.predict.compose import Piece
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
