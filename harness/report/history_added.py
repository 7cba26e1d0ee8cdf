"""What `mbr-perf history add` answers."""

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from harness.records.history import HistoryRecord
from harness.report.console import Console
from harness.report.json import SCHEMA_VERSION, Document
from harness.report.printing import plain_table, print_lines, show

Added = tuple[HistoryRecord, Path, bool]


def print_added(console: Console, rows: Sequence[Added]) -> None:
    """A line per run, and how many are new."""
    table = plain_table("Run", "Case", "Status", "In history")
    for record, _, is_new in rows:
        status = f"{record.status}, suspect" if record.suspect else record.status
        table.add_row(Text(record.run_id), Text(record.case), status, "added" if is_new else "was there already")
    show(console, table)
    num_new = sum(is_new for *_, is_new in rows)
    print_lines(console, [f"{num_new} of {len(rows)} {'run' if len(rows) == 1 else 'runs'} added"])


def added_document(rows: Sequence[Added]) -> Document:
    """As JSON."""
    runs = [
        {"run_id": record.run_id, "case": record.case, "status": record.status, "suspect": list(record.suspect),
         "path": str(path), "added": is_new}
        for record, path, is_new in rows
    ]  # fmt: skip
    return {"schema_version": SCHEMA_VERSION, "runs": runs}
