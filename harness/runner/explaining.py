"""What `explain` needs from disk beside the two that it compares: how much earlier nights of the case differed."""

import math
from dataclasses import replace
from pathlib import Path

from harness.analysis.explain.values import Side
from harness.analysis.history.record import case_of
from harness.analysis.metrics import METRICS
from harness.analysis.night.noise import KnownNoise
from harness.analysis.night.noise_history import noise_of
from harness.records.histories import read_history
from harness.records.run import RunRecord
from harness.records.store import results_dir
from harness.units import counted


def with_history(side: Side, record: RunRecord, results: Path | None = None) -> Side:
    """The run's side with the spread of one run as nights of its settings, device and software show it, where they do."""
    history = read_history(results_dir(results), case=case_of(record.spec), fingerprint=record.fingerprint)
    start = record.provenance.started_at
    known = {m.name: noise_of(history, m.name, record, since=start, before=start) for m in METRICS}
    found = {name: noise for name, noise in known.items() if noise is not None and noise.within_df + noise.night_df > 0}
    if not found:
        return side
    runs = max(round((noise.night_df + 1) * noise.runs_per_night) for noise in found.values())
    basis = f"about {counted(runs, 'run')} of earlier nights"
    return replace(side, spreads={name: spread_of_one(noise) for name, noise in found.items()}, spread_basis=basis)


def spread_of_one(noise: KnownNoise) -> float:
    """Relative standard deviation of one run of any night: that of means of nights, plus what their runs averaged out."""
    return math.sqrt(noise.night_sd**2 + noise.within_sd**2 * (1 - 1 / noise.runs_per_night))
