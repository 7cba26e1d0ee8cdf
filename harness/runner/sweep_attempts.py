"""Folders of a sweep's runs: a fresh one for each, with what a killed attempt left moved aside, never deleted."""

from pathlib import Path

from harness.errors import RunFailedError
from harness.records.run import RunRecord
from harness.records.store import RECORD
from harness.records.strict_json import read_document
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
                record = read_document(path, RunRecord)
                if record.status != "interrupted":
                    found[cell.index, repeat] = record
    return found


def fresh_run_dir(sweep_dir: Path, place: Place) -> Path:
    """A new, empty folder for that run. RunFailedError where it cannot be made."""
    run_dir = run_dir_of(sweep_dir, *place)
    try:
        if run_dir.exists():
            run_dir.rename(_free_name(run_dir))
        for inner in ("ranks", "logs"):
            (run_dir / inner).mkdir(mode=0o750, parents=True)
    except OSError as error:
        raise RunFailedError(f"{run_dir}: cannot be made: {error.strerror}") from error
    return run_dir


def _free_name(run_dir: Path) -> Path:
    number = 1
    while (aside := run_dir.with_name(f"{run_dir.name}.incomplete-{number}")).exists():
        number += 1
    return aside
