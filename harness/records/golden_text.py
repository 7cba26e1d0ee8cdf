"""A golden as text for review: fields in a fixed order, one per line."""

import json
from typing import Any

from harness.records.golden import GoldenRecord

# Younger than the first goldens: left out where they say nothing, so that a file does not change by being read.
_YOUNG = frozenset({
    "environment", "container", "hostnames", "sm_clock_mhz", "power_cap_share", "max_steps", "window",
    "night_id", "overridden", "retired_at", "retired_by", "retired_reason",
})  # fmt: skip


def golden_text(golden: GoldenRecord) -> str:
    """The golden as it lies on disk: fields in schema order; spec, versions and environment by name."""
    fields = _spoken(golden.model_dump(mode="json"))
    where = _spoken(fields["measured_on"])
    for name in where.keys() & {"versions", "environment"}:
        where[name] = _sorted(where[name])
    fields |= {"spec": _sorted(fields["spec"]), "measured_on": where}
    return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"


def _spoken(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _YOUNG or value not in (None, [])}


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return value
