"""Where a composition looks up its traces: one book records what is needed, the other one reads it."""

from abc import abstractmethod
from collections.abc import Callable, Mapping

from harness.predict.compose import Piece
from harness.records.trace import ChunkTrace, TraceCase


class MissingTraceError(LookupError):
    """Composition needs a trace that does not exist: the tracer refused it, or it was not requested."""


class Book:
    """Returns the cost of a case, and makes every piece of a request once."""

    def __init__(self) -> None:
        self._made: dict[object, Piece] = {}

    def once(self, name: object, make: Callable[[], Piece]) -> Piece:
        """Return the piece with this name; make it if it is new."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    @abstractmethod
    def __getitem__(self, case: TraceCase) -> ChunkTrace: ...


class Recorder(Book):
    """Records every requested case, and returns no cost."""

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

    def __init__(self) -> None:
        super().__init__()
        self.cases: list[TraceCase] = []

    def __getitem__(self, case: TraceCase) -> ChunkTrace:
        self.cases.append(case)
        return self._NOTHING


class Reader(Book):
    """Reads costs from traces."""

    def __init__(self, traces: Mapping[str, ChunkTrace]) -> None:
        super().__init__()
        self._traces = traces

    def __getitem__(self, case: TraceCase) -> ChunkTrace:
        if case.key not in self._traces:
            raise MissingTraceError(case.key)
        return self._traces[case.key]
