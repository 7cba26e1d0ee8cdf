"""Fields of a Megatron-Bridge `ConfigContainer` without a row in `container_fields`: container_known.yaml."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.records.reading import PlainValue
from harness.records.strict_yaml import table_in

OFF: tuple[PlainValue, ...] = (None, False, 0, "", (), {}, "none")
"""Values that switch a setting off."""


@dataclass(frozen=True)
class Known:
    """One field, and ``why`` its value matters or does not.

    ``values``: what the file may have; None for any value. Another value is refused, or, if ``is_noted``, read with a
    note. The row applies where the setting ``only`` is on, or, with ``>1``, where it is above 1.
    """

    path: str
    values: tuple[PlainValue, ...] | None
    why: str
    is_noted: bool = False
    only: str = ""


def _known(fields: Mapping[str, list[dict[str, Any]]]) -> Iterator[Known]:
    for section, rows in fields.items():
        for row in rows:
            values = None if "any" in row else tuple(row["values"]) if "values" in row else OFF
            for name in (row.get("any") or row["only"]).split():
                more = row.get("why", "mbr-perf does not have it"), row.get("noted", False), row.get("where", "")
                yield Known(f"{section}.{name}", values, *more)


_TABLE = table_in(Path(__file__).with_suffix(".yaml"))
SECTIONS: Mapping[str, str] = _TABLE["sections"]
"""Sections that may have any further field, and why."""

KNOWN: Mapping[str, Known] = {row.path: row for row in _known(_TABLE["fields"])}
"""By path, every field that is known and that no row of `container_fields` reads."""
