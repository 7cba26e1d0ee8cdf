"""Run folders on disk: made exclusively, committed once by ``record.json``, found again by name."""

from datetime import datetime
from pathlib import Path

import harness
from harness.errors import BadRequestError, RunFailedError
from harness.records.atomic import write_once
from harness.records.folders import folder_named, new_folder
from harness.records.run import RunRecord
from harness.records.strict_json import OtherVersionError, RejectedError, read_document

RECORD = "record.json"

MEND_RECORD = "mbr-perf results doctor says what can be done about it"
_CHECKOUT = Path(harness.__file__).parents[1]


def checkout_dir() -> Path | None:
    """The source checkout this package runs from; None when it is installed as a wheel."""
    return _CHECKOUT if (_CHECKOUT / "pyproject.toml").is_file() else None


def results_dir(override: Path | None = None) -> Path:
    """Where runs are kept: ``--results_dir``, else the checkout's ``results``, else ``./results``."""
    if override is not None:
        return override
    checkout = checkout_dir()
    return checkout / "results" if checkout else Path("results")


def new_run_dir(results: Path, recipe: str, *, now: datetime | None = None) -> Path:
    """Make ``runs/<UTC time>-<recipe>-<8 hex>`` with its ``ranks`` and ``logs``; the name is the run's id.

    Two runs of one recipe in one second get two folders. BadRequestError where the folder cannot be made.
    """
    return new_folder(results / "runs", recipe, ("ranks", "logs"), now=now)


def write_record(run_dir: Path, record: RunRecord) -> Path:
    """Commit a run: ``record.json`` appears whole. RunFailedError when there is one already; OSError as the disk says."""
    path = run_dir / RECORD
    try:
        write_once(path, record.model_dump_json(indent=1) + "\n")
    except FileExistsError as error:
        raise RunFailedError(f"{path}: is there already, and a committed run is never overwritten") from error
    return path


def read_run(reference: str | Path, results: Path | None = None) -> RunRecord:
    """The committed record of a run folder, a ``record.json``, or the start of a run's id under ``results/runs``.

    BadRequestError for a reference that names none or several, a run that was never committed, or a file that is
    corrupt or newer than this program.
    """
    return read_record(record_path(reference, results))


def read_record(path: Path) -> RunRecord:
    """One ``record.json``; BadRequestError for one that is damaged or newer than this program, with what to do."""
    try:
        return read_document(path, RunRecord)
    except (OtherVersionError, RejectedError) as error:
        *others, last = error.problems
        raise type(error)([*others, BadRequestError(last.message, remedy=last.remedy or MEND_RECORD)]) from error
    except BadRequestError as error:
        raise BadRequestError(error.message, remedy=MEND_RECORD) from error


def record_path(reference: str | Path, results: Path | None = None) -> Path:
    """The ``record.json`` that ``reference`` means, as for :func:`read_run`."""
    path = Path(reference)
    if path.is_file():
        return path
    run_dir = path if path.is_dir() else folder_named(str(reference), results_dir(results) / "runs", "run")
    record = run_dir / RECORD
    if not record.is_file():
        raise BadRequestError(
            f"{run_dir}: no {RECORD}: the run is still going, or the harness was killed before it could commit it",
            remedy="what its ranks measured is in its ranks folder",
        )
    return record
