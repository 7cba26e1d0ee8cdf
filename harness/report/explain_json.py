"""`mbr-perf explain --json` and `golden diff --json`."""

from dataclasses import asdict

from harness.analysis.explain.values import Cause, Change, Contrast, Explanation, Key, Side
from harness.report.json import SCHEMA_VERSION, Document


def explain_document(found: Explanation) -> Document:
    """Everything that the text says, and the departures that it shortens; keys only grow."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run": side_document(found.ours),
        "reference": side_document(found.theirs),
        "metrics": [_change(change) for change in found.changes],
        "verdict": list(found.verdict),
        "causes": [_cause(cause) for cause in found.causes],
        **contrast_document(found.contrast),
        "advice": list(found.advice),
        "exit_code": 0,
    }


def _change(change: Change) -> Document:
    return {
        "metric": change.metric,
        "run": change.ours,
        "reference": change.theirs,
        "change": change.change,
        "noise": change.noise,
        "basis": change.basis or None,
        "is_noise": change.is_noise,
    }


def _cause(cause: Cause) -> Document:
    return {
        "rank": cause.rank,
        "name": cause.name,
        "can_explain": cause.can_explain,
        "differences": [
            {"group": d.group, "name": d.name, "run": d.ours, "reference": d.theirs, "source": d.source or None}
            for d in cause.departures
        ],
        "says": [asdict(one) for one in cause.says],
        "size": cause.size,
        "why": cause.why,
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
