"""Predictions for rows whose measurements are not known here: same rows as the inputs, written before anyone compares."""

import json
from pathlib import Path
from typing import Any

import published

from harness.launch.environment import Host


def predictions(rows: Path, host: Host) -> dict[str, Any]:
    """By path: the predicted peak of the recorded stage, its range, or why there is none.

    A row needs ``path``, ``arguments``, ``hardware``, ``world_size``, ``environment``, ``software``, ``date`` and ``stage``,
    as in the inputs; ``peak_bytes`` and ``steady_bytes`` are not read.
    """
    cases, left_out = published.read_cases(rows, needs_peaks=False)
    compared, unpredicted = published.compare(cases, host)
    found: dict[str, Any] = {path: {"left_out": reason} for path, reason in (left_out | unpredicted).items()}
    for row in compared:
        low, high = (edge / row.prediction.peak_bytes for edge in row.prediction.range_bytes)
        time = row.prediction.time
        said = {
            "predicted_bytes": row.predicted, "range_bytes": [round(row.predicted * low), round(row.predicted * high)],
            "steady_bytes": row.steady, "taken_as": row.case.taken_as,
            "step_s": time.likely_s if time else None, "step_range_s": [time.low_s, time.high_s] if time else None,
        }  # fmt: skip
        found |= dict.fromkeys(row.case.paths, said)
    return {"rows": json.loads(rows.read_text())["source"], "predictions": found}
