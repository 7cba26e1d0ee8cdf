"""Readings of memory over time, kept as a bounded number of maxima however long it takes."""

from harness.records.rank import MAX_POINTS, MemorySeries


class SeriesRecorder:
    """Maxima of equal intervals; when there are too many, neighbours become one and the interval doubles.

    ``first_interval_s`` is the finest resolution. Readings must come in order of time.
    """

    def __init__(self, first_interval_s: float) -> None:
        self.interval_s = first_interval_s
        self._start_s: float | None = None
        self._level = 0
        self._maxima: list[int] = []

    def add(self, time_s: float, num_bytes: int) -> None:
        """The level is ``num_bytes`` from ``time_s`` on."""
        if self._start_s is None:
            self._start_s = time_s
        while (place := int((time_s - self._start_s) / self.interval_s)) >= MAX_POINTS:
            self._halve()
        while len(self._maxima) <= place:  # nothing happened in between: the level stayed
            self._maxima.append(self._level)
        self._maxima[place] = max(self._maxima[place], num_bytes)
        self._level = num_bytes

    def series(self, what: str) -> MemorySeries | None:
        """What was recorded so far; None without a reading."""
        if not self._maxima:
            return None
        return MemorySeries(what=what, interval_s=self.interval_s, max_bytes=tuple(self._maxima))

    def _halve(self) -> None:
        pairs = range(0, len(self._maxima), 2)
        self._maxima = [max(self._maxima[place : place + 2]) for place in pairs]
        self.interval_s *= 2
