"""A case's history as CSV in the shape that Apache Otava reads: time, commit, branch, then metrics.

Its importer takes every field of a metric for a number, so that a metric which a row lacks is left out as a whole.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from harness.analysis.history.case_history import CaseHistory
from harness.analysis.metrics import METRICS
from harness.errors import BadRequestError
from harness.records.atomic import write_atomically
from harness.records.history import HistoryRecord
from harness.records.history_files import started
from harness.report.csv_text import Value, csv_text
from harness.units import counted

_Row = tuple[HistoryRecord, Callable[[str], float | None]]


def history_csv(history: CaseHistory, *, per_run: bool = False) -> tuple[str, tuple[str, ...]]:
    """One row per night that has the figure, or ``per_run`` one per run that counts; and notes on what was left out."""
    rows = _runs(history) if per_run else _nights(history)
    has = {metric.name: [read(metric.name) is not None for _, read in rows] for metric in METRICS}
    names = [name for name, present in has.items() if rows and all(present)]
    text = csv_text(["time", "commit", "branch", *names], [_values(row, names) for row in rows])
    return text, _notes(
        history, len(rows), [name for name, present in has.items() if any(present) and not all(present)]
    )


def write_csv(path: Path, text: str) -> Path:
    """Write it, replacing what is there. BadRequestError where it cannot be written."""
    try:
        write_atomically(path, text)
    except OSError as error:
        raise BadRequestError(f"--csv {path}: cannot be written: {error.strerror}") from error
    return path


def _nights(history: CaseHistory) -> list[_Row]:
    return [(night.last, night.value) for night, _ in history.measured]


def _runs(history: CaseHistory) -> list[_Row]:
    runs = (record for night, _ in history.measured for record in night.counted)
    return [(record, _of(record)) for record in runs if history.metric.name in record.metrics]


def _of(record: HistoryRecord) -> Callable[[str], float | None]:
    return lambda name: record.metrics[name].value if name in record.metrics else None


def _values(row: _Row, names: Sequence[str]) -> list[Value]:
    record, read = row
    return [started(record).isoformat(), record.git_commit, record.branch, *(read(name) for name in names)]


def _notes(history: CaseHistory, num_rows: int, partial: Sequence[str]) -> tuple[str, ...]:
    missing = len(history.series.nights) - len(history.measured)
    notes = []
    if partial:
        notes.append(f"not in the CSV, for some of its {num_rows} rows lack them: {', '.join(partial)}")
    if missing:
        notes.append(f"not in the CSV: {counted(missing, 'night')} without {history.metric.name}")
    return tuple(notes)
