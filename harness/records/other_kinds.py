"""Refuses a run, a sweep or a night where a command needs another kind, and says what to name instead."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from harness.errors import BadRequestError
from harness.records.batches import NIGHT_FOLDERS, SWEEP_FOLDERS
from harness.records.folders import folder_named, results_dir
from harness.records.night import CASES
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_record, read_run
from harness.records.sweep import CELLS, Cell, SweepData, read_sweep

Kind = Literal["run", "sweep", "night"]


def read_only_run(reference: str, results: Path | None = None) -> RunRecord:
    """As :func:`read_run`; for a sweep or a night, BadRequestError says so."""
    try:
        return read_run(reference, results)
    except BadRequestError:
        refuse_other_kinds(reference, ("run",), results)
        raise


def read_only_sweep(
    reference: str, results: Path | None = None, count: Callable[[Sequence[Cell]], Iterable[Cell]] = iter
) -> SweepData:
    """As :func:`read_sweep`; for a run or a night, BadRequestError says so."""
    try:
        return read_sweep(reference, results, count)
    except BadRequestError:
        refuse_other_kinds(reference, ("sweep",), results)
        raise


def refuse_other_kinds(
    reference: str | Path, wanted: tuple[Kind, ...], results: Path | None = None, *, failed: bool = False
) -> None:
    """Raise BadRequestError if the reference is of a kind that is not in ``wanted``. An unknown reference passes.

    If a run is wanted, the remedy names a run of the folder: a successful run, or a failed run with ``failed``.
    """
    for kind, folder_of in _FOLDERS.items():
        if kind in wanted:
            continue
        try:
            folder = folder_of(reference, results)
        except BadRequestError:
            continue
        remedy = _run_in(folder, failed=failed) if "run" in wanted else _INSTEAD[kind].format(folder)
        raise BadRequestError(f"{str(reference)!r} is a {kind}, not a {' or a '.join(wanted)}", remedy=remedy)


def _run_dir_of(reference: str | Path, results: Path | None) -> Path:
    path = Path(reference)
    folder = path.parent if path.name == RECORD else path
    if not path.exists():
        folder = folder_named(str(reference), results_dir(results) / "runs", "run")
    if not (folder / RECORD).is_file():
        raise BadRequestError(f"{folder}: no {RECORD}")
    return folder


_FOLDERS: dict[Kind, Callable[[str | Path, Path | None], Path]] = {
    "night": NIGHT_FOLDERS.folder_of, "sweep": SWEEP_FOLDERS.folder_of, "run": _run_dir_of,
}  # fmt: skip
_INSTEAD: dict[Kind, str] = {
    "night": "its reports are in its folder report; mbr-perf nightly --resume {0} writes them again",
    "sweep": "mbr-perf report {0}",
    "run": "mbr-perf results show {0}",
}


def _run_in(folder: Path, *, failed: bool) -> str:
    records = [path for below in (CASES, CELLS) for path in sorted(folder.glob(f"{below}/*/*/{RECORD}"))]
    if not records:
        return "it has no runs"
    return f"name a run in it, e.g. {next((p for p in records if _ended_well(p) is not failed), records[0]).parent}"


def _ended_well(record: Path) -> bool | None:
    """Return whether the run succeeded; None if its record cannot be read."""
    try:
        return read_record(record).status == "ok"
    except BadRequestError:
        return None
