"""Run folders on disk: made exclusively, committed once by ``record.json``, found again by name."""

import re
import secrets
from datetime import UTC, datetime
from pathlib import Path

import harness
from harness.errors import BadRequestError, RunFailedError
from harness.records.atomic import write_once
from harness.records.run import RunRecord
from harness.records.strict_json import read_document

RECORD = "record.json"

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
    time = (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = re.sub(r"[^A-Za-z0-9._]+", "-", recipe).strip("-.") or "run"
    run_dir = results / "runs" / f"{time}-{name}-{secrets.token_hex(4)}"
    try:
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        run_dir.mkdir(mode=0o750)
        for inner in ("ranks", "logs"):
            (run_dir / inner).mkdir(mode=0o750)
    except OSError as error:
        raise BadRequestError(
            f"{run_dir}: cannot be made: {error.strerror}", remedy="name a writable folder with --results_dir"
        ) from error
    return run_dir


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
    return read_document(record_path(reference, results), RunRecord)


def record_path(reference: str | Path, results: Path | None = None) -> Path:
    """The ``record.json`` that ``reference`` means, as for :func:`read_run`."""
    path = Path(reference)
    if path.is_file():
        return path
    run_dir = path if path.is_dir() else _run_named(str(reference), results_dir(results) / "runs")
    record = run_dir / RECORD
    if not record.is_file():
        raise BadRequestError(
            f"{run_dir}: no {RECORD}: the run is still going, or the harness was killed before it could commit it",
            remedy="what its ranks measured is in its ranks folder",
        )
    return record


def _run_named(start: str, runs: Path) -> Path:
    """The one run folder whose name starts with ``start`` or ends with it (the eight hex digits)."""
    names = sorted(path.name for path in runs.iterdir() if path.is_dir()) if runs.is_dir() else []
    found = [name for name in names if start and (name.startswith(start) or name.endswith(f"-{start}"))]
    if len(found) == 1:
        return runs / found[0]
    if found:
        raise BadRequestError(
            f"run {start!r} is ambiguous: {len(found)} runs in {runs}", remedy=f"one of: {', '.join(found[-5:])}"
        )
    newest = f"newest there: {', '.join(names[-3:])}" if names else "there are no runs there yet"
    raise BadRequestError(f"no run {start!r}: neither a path nor the start of a run's id in {runs}", remedy=newest)
