"""Sweeps made by hand."""

import pytest

from harness.records.prediction import PredictionRecord, StagePrediction
from harness.sweep.judge import judge_sweep


def predicted(*totals, **changes):
    """Return a prediction of these bytes of each stage. ``changes``: its other fields."""
    stages = tuple(
        StagePrediction(pp_rank=stage, weights=total, gradients=0, optimizer=0, activations=0, logits=0, transient=0,
                        overhead=0, total=total, peak="forward")
        for stage, total in enumerate(totals)
    )  # fmt: skip
    known = {"peak_bytes": max(totals), "range_bytes": (max(totals), max(totals)), "model_flops": 1}
    return PredictionRecord(**known | {"recompute_flops": 0, "stages": stages} | changes)


@pytest.fixture
def judged(runs, make_cell, make_sweep):
    """The verdict on a sweep. Of a cell: seconds of its runs, their peak in GiB, what else changes; or why it has no runs."""

    def cell(name, found):
        if isinstance(found, dict):
            return make_cell(name, [], **found)
        seconds, gib, *more = found
        changes = {"recompute": name} | dict(*more)
        return make_cell(name, runs(changes.pop("recompute"), seconds, gib, **changes))

    return lambda cells, **changes: judge_sweep(make_sweep([cell(*each) for each in cells.items()], **changes))
