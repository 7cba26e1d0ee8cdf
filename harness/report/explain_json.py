"""`mbr-perf explain --json` and `golden diff --json`."""

from dataclasses import asdict

from harness.analysis.explain_values import Contrast, Explanation, Key, Side
from harness.report.json import SCHEMA_VERSION, Document


def explain_document(found: Explanation) -> Document:
    """Everything that the text says, and the departures that it shortens; keys only grow."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run": side_document(found.ours),
        "reference": side_document(found.theirs),
        "metrics": [asdict(change) | {"is_noise": change.is_noise} for change in found.changes],
        "verdict": list(found.verdict),
        "causes": [asdict(cause) | {"can_explain": cause.can_explain} for cause in found.causes],
        **contrast_document(found.contrast),
        "advice": list(found.advice),
        "exit_code": 0,
    }


def side_document(side: Side) -> Document:
    """Which side it is, and how far to trust it."""
    return {
        "name": side.name,
        "kind": side.kind,
        "num_runs": side.num_runs,
        "derived": sorted(side.derived),
        "caveats": list(side.caveats),
    }


def contrast_document(contrast: Contrast, *, ours: str = "run", theirs: str = "reference") -> Document:
    """What agrees, and what was not recorded by whom."""
    return {
        "same": dict(contrast.same),
        "not_recorded": {
            ours: _keys(contrast.unrecorded_ours),
            theirs: _keys(contrast.unrecorded_theirs),
            "neither": list(contrast.neither),
        },
    }


def _keys(keys: tuple[Key, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for group, name in keys:
        found.setdefault(group, []).append(name)
    return found
