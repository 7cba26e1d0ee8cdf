"""Runs of a sweep that need not be done again."""

from pathlib import Path

from harness.records.run import RunRecord
from harness.records.store import RECORD, read_record
from harness.records.sweep import SweepPlan
from harness.records.sweeps import run_dir_of

Place = tuple[int, int]
"""Index of a cell, repeat."""


def committed(sweep_dir: Path, plan: SweepPlan) -> dict[Place, RunRecord]:
    """Every run that needs not be done again; one that a signal cut short does."""
    found: dict[Place, RunRecord] = {}
    for repeat in range(plan.repeats):
        for cell in plan.cells:
            path = run_dir_of(sweep_dir, cell.index, repeat) / RECORD
            if path.is_file():
                record = read_record(path)
                if record.status != "interrupted":
                    found[cell.index, repeat] = record
    return found
