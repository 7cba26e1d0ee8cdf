"""A case over its nights: which runs belong together, and what each night measured."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from harness.errors import BadRequestError
from harness.history.record import HistoryRecord
from harness.judge.statistics import relative_spread
from harness.records.metrics import Metric
from harness.units import grouped

_REPEAT = re.compile(r"(.+-[0-9a-f]{8}\..+)\.\d+$")  # runs of a sweep's cell, or of a night's case
_BY_FORMULA = ("tflops_per_gpu", "mfu", "hfu")
_BADNESS = ("failed", "interrupted", "oom", "ok")


@dataclass(frozen=True)
class Night:
    """Runs of one case: of a night, of a sweep's cell, or one ad-hoc run. Failed and suspect runs do not count."""

    id: str
    records: tuple[HistoryRecord, ...]

    @cached_property
    def counted(self) -> tuple[HistoryRecord, ...]:
        return tuple(record for record in self.records if record.status == "ok" and not record.suspect)

    @property
    def started_at(self) -> str:
        return self.records[0].started_at

    @property
    def is_start_known(self) -> bool:
        """Return False for an imported run dated at its import."""
        return all(record.is_start_known for record in self.records)

    @property
    def last(self) -> HistoryRecord:
        """Return the run that shows what the night was measured with: the last that counts, else the last."""
        return (self.counted or self.records)[-1]

    @property
    def outcome(self) -> str:
        """Return the case's outcome in its night; for ad-hoc runs the worst end, or ``suspect``."""
        judged = [f"{each.outcome}{' (expected)' * each.is_expected}" for each in self.records if each.outcome]
        if judged:
            return judged[-1]
        worst = min((record.status for record in self.records), key=_BADNESS.index)
        return "suspect" if worst == "ok" and not self.counted else worst

    def values(self, metric: str) -> list[float]:
        """Return the figure of every run that counts and has one."""
        return [record.metrics[metric].value for record in self.counted if metric in record.metrics]

    def value(self, metric: str) -> float | None:
        """Return the median over the runs; None without any."""
        values = self.values(metric)
        return median(values) if values else None

    def spread(self, metric: str) -> float | None:
        """Return the relative standard deviation between the runs; None for fewer than two."""
        values = self.values(metric)
        return relative_spread(values) if values else None


@dataclass(frozen=True)
class Series:
    """Nights of one case with the same settings, oldest first. ``notes`` say what was left out, and why."""

    case: str
    fingerprint: str
    nights: tuple[Night, ...]
    notes: tuple[str, ...] = ()

    def measured(self, metric: Metric) -> tuple[tuple[Night, float], ...]:
        """Return the nights that have the figure, each with its value."""
        found = ((night, night.value(metric.name)) for night in self.nights)
        return tuple((night, value) for night, value in found if value is not None)


def nights_of(records: Iterable[HistoryRecord]) -> tuple[Night, ...]:
    """Group records of one case, in order of time, into nights; cases of one suite stay apart."""
    together = grouped(((each.night_id or _REPEAT.sub(r"\1", each.run_id), each.suite_case), each) for each in records)
    return tuple(Night(identifier, tuple(found)) for (identifier, _), found in together.items())


def series_of(records: Sequence[HistoryRecord], fingerprint: str | None = None) -> Series:
    """Return the series of ``fingerprint``, else of the newest run. BadRequestError if no run has it."""
    if not records:
        raise ValueError("no records")
    ours = [record for record in records if record.fingerprint.startswith(fingerprint or records[-1].fingerprint)]
    if not ours:
        known = ", ".join(sorted({record.fingerprint for record in records}))
        raise BadRequestError(f"--fingerprint {fingerprint}: no run of {records[-1].case}", remedy=f"known: {known}")
    chosen, formula = ours[-1].fingerprint, ours[-1].formula_version
    ours = [record for record in ours if record.fingerprint == chosen]
    nights = nights_of(_comparable(record, formula) for record in ours)
    return Series(records[-1].case, chosen, nights, _notes(records, ours))


def _comparable(record: HistoryRecord, formula: str) -> HistoryRecord:
    if record.formula_version == formula:
        return record
    metrics = {name: figure for name, figure in record.metrics.items() if name not in _BY_FORMULA}
    return record.model_copy(update={"metrics": metrics})


def _notes(every: Sequence[HistoryRecord], ours: Sequence[HistoryRecord]) -> tuple[str, ...]:
    newest = ours[-1]
    others = sorted({record.fingerprint for record in every} - {newest.fingerprint})
    num_old = sum(record.formula_version != newest.formula_version for record in ours)
    num_undated = sum(not record.is_start_known for record in ours)
    found = (
        (others, f"left out: {len(every) - len(ours)} of {len(every)} runs with other settings; "
                 f"--fingerprint {' or '.join(others[-3:])} shows them"),
        (num_old, f"not shown: throughput of {num_old} of {len(ours)} runs, by another formula than "
                  f"{newest.formula_version}"),
        (num_undated, f"?: {num_undated} of {len(ours)} runs have no start time; the date is that of their import"),
    )  # fmt: skip
    return tuple(text for holds, text in found if holds)
