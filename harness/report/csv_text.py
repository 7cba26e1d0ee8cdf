"""Rows as CSV that a spreadsheet opens as text and numbers, and never runs."""

import csv
import io
from collections.abc import Iterable, Sequence

# What a spreadsheet would run as a formula when a text begins with it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

Value = str | float | int | bool | None


def csv_text(titles: Sequence[str], rows: Iterable[Iterable[Value]]) -> str:
    """Header and rows. An absent value is an empty field; a text that a spreadsheet would run begins with an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_safe(title) for title in titles)
    writer.writerows([_safe(value) for value in row] for row in rows)
    return out.getvalue()


def _safe(value: Value) -> Value:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return value
