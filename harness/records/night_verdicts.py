"""How a night was judged, as its own report tells."""

import json
from pathlib import Path

REPORT = "report"
"""Folder of a night's reports."""

JUDGED = "night.json"
"""The report among them that is JSON."""


def told_verdict(night_dir: Path) -> str:
    """``judged inconclusive: tonight's own A/A differs: ...``: the outcome, and what its A/A leaves in doubt, if anything.

    Empty where there is no report yet; one that cannot be read is said to be so.
    """
    path = night_dir / REPORT / JUDGED
    try:
        document = json.loads(path.read_bytes())
        outcome, aa = document["outcome"], document.get("aa")
        doubts = [*aa["doubts"].values()] if aa else []
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"judged, but {path} cannot be read: mbr-perf nightly --resume {night_dir} writes it anew"
    return ": ".join((f"judged {outcome}", *map(str, doubts[:1])))
