"""Finds problems in a results folder and moves files to the trash; never deletes anything."""

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from harness.errors import BadRequestError
from harness.history.files import history_dir, history_stamps, is_ahead, read_record
from harness.launch.processes import Life, life_of
from harness.records.folders import folders
from harness.records.golden import list_retired
from harness.records.goldens import MEND_GOLDEN, list_goldens
from harness.records.inventory import FOLDERS, Stored, inventory, is_ours
from harness.records.job import JOBS, unsubmitted_job_of
from harness.records.night import CASES
from harness.records.run import RunRecord
from harness.records.store import RECORD
from harness.records.strict_json import OtherVersionError, RejectedError, read_document
from harness.records.sweep import CELLS

TRASH = "trash"
_EVIDENCE = {"accuracy", "benchmarks", "examples", "faults", "gpu", "house.json", "traces"}
_KNOWN = {*FOLDERS, JOBS, TRASH, *_EVIDENCE, "golden", "calibration", "history", "README.md"}
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.tmp|rank_\d+\.json\.tmp")
_GPU_CHECK = re.compile(r"gpu-check-\d{8}T\d{6}Z")  # scripts/gpu-check keeps its runs there
_WRITING_TAKES_S = 3600.0  # upper limit for a small file of history
_ATTEMPT = re.compile(r"\d+\.incomplete-\d+")

Kind = Literal["incomplete", "damaged", "newer", "rejected", "unfinished", "temporary", "attempt", "stray"]


_NO_OWNER = Life("unknown", "")


@dataclass(frozen=True)
class Ailment:
    """One problem. ``movable``: as far as this machine knows, nothing needs the file in its place.

    ``life``: the state of the process that filled the folder. ``moved_to``: the new path.
    """

    kind: Kind
    path: Path
    message: str
    remedy: str
    life: Life = _NO_OWNER
    movable: bool = False
    moved_to: Path | None = None


def examine_results(results: Path) -> tuple[Ailment, ...]:
    """Return all problems below ``results``. Ignores folders that a running process is filling."""
    found: list[Ailment] = [*_strays(results)]
    for entry in inventory(results):
        life = life_of(entry.path)
        if life.state != "alive":
            found += _of_run(entry, life) if entry.kind == "run" else _of_many(entry, life)
    return (*found, *_of_goldens(results / "golden"), *_of_history(history_dir(results)))


def _strays(results: Path) -> Iterator[Ailment]:
    """Yield files that mbr-perf did not write. They belong to the user and are never moved."""
    strays = [path for path in _inside(results) if path.name not in _KNOWN]
    for path in (inner for folder in FOLDERS for inner in _inside(results / folder)):
        is_folder = path.is_dir() and not path.is_symlink()
        if not (is_folder and (is_ours(path) or _GPU_CHECK.fullmatch(path.name))):
            strays.append(path)
    for path in strays:
        what = "a link" if path.is_symlink() else "a folder" if path.is_dir() else "a file"
        yield Ailment("stray", path, f"{what} that mbr-perf did not write", "move it elsewhere")


def _inside(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _of_run(entry: Stored, life: Life) -> Iterator[Ailment]:
    job_dir = unsubmitted_job_of(entry.path) if entry.state == "incomplete" else None
    if job_dir is not None:
        yield Ailment("unfinished", entry.path, "not submitted yet", f"mbr-perf jobs submit {job_dir}", life)
    elif entry.state == "incomplete":
        yield _incomplete(entry, life)
    elif entry.state in ("newer", "rejected", "damaged"):
        remedy = "its ranks folder still contains the measurements"
        yield replace(
            _unreadable(entry.state, entry.path, entry.detail, remedy, life), movable=entry.state == "damaged"
        )
    else:
        yield from _temporaries(entry.path, life, is_settled=True)


def _unreadable(state: str, path: Path, message: str, remedy: str, life: Life = _NO_OWNER) -> Ailment:
    """Return the problem of a file that is newer, no longer accepted, or damaged; ``remedy`` is for a damaged file."""
    if state == "newer":
        return Ailment("newer", path, message, "read it with the mbr-perf that wrote it, or upgrade", life)
    if state == "rejected":  # it contains measurements and must stay
        remedy = "mbr-perf keeps the file: its measurements are complete; read it with the mbr-perf that wrote it"
        return Ailment("rejected", path, message, remedy, life)
    return Ailment("damaged", path, message, remedy, life)


def _unread(
    path: Path, error: BadRequestError, remedy: str, life: Life = _NO_OWNER, *, movable: bool = False
) -> Ailment:
    """Return the problem of a file that could not be read because of ``error``; ``movable`` counts if it is damaged."""
    state = "newer" if isinstance(error, OtherVersionError) else "damaged"
    found = _unreadable("rejected" if isinstance(error, RejectedError) else state, path, error.message, remedy, life)
    return replace(found, movable=movable and found.kind == "damaged")


def _incomplete(entry: Stored, life: Life) -> Ailment:
    gone = life.state == "dead"
    what = {"sweep": "the plan of the sweep was written", "night": "the plan of the night was written"}.get(
        entry.kind, "its record was written"
    )
    message = f"ended before {what}: {life.reason}" if gone else f"no record, and {life.reason}"
    remedy = "--fix moves it to the trash" if gone else "move it yourself if no process is filling it"
    return Ailment("incomplete", entry.path, message, remedy, life, movable=gone)


# The folder of the runs of a sweep or a night, and the command that completes it.
_PARTS = {"sweep": (CELLS, "mbr-perf sweep --resume"), "night": (CASES, "mbr-perf nightly --resume")}


def _of_many(entry: Stored, life: Life) -> Iterator[Ailment]:
    """Yield the problems of a sweep or a night."""
    if entry.state == "incomplete":
        yield _incomplete(entry, life)
        return
    settled, (inner, resume) = life.state == "dead", _PARTS[entry.kind]
    if entry.state == "unfinished":
        yield Ailment("unfinished", entry.path, entry.detail, f"{resume} {entry.path}", life)
    damaged = list[Ailment]()
    for record in sorted((entry.path / inner).glob(f"*/*/{RECORD}")):
        try:
            read_document(record, RunRecord)
        except BadRequestError as error:
            remedy = f"--fix moves the run to the trash; {resume} {entry.path} then runs it again"
            damaged.append(_unread(record.parent, error, remedy, life, movable=settled))
    yield from damaged
    if entry.state in ("newer", "rejected", "damaged") and not damaged:
        yield _unreadable(entry.state, entry.path, entry.detail, "you can still read its runs one by one", life)
    for part in folders(entry.path / inner):
        for attempt in folders(part):
            if _ATTEMPT.fullmatch(attempt.name):
                message = f"an unfinished attempt, set aside when the {entry.kind} was resumed"
                yield Ailment("attempt", attempt, message, "--fix moves it to the trash", life, movable=settled)
    yield from _temporaries(entry.path, life, is_settled=settled)


def _of_goldens(folder: Path) -> Iterator[Ailment]:
    """Yield unreadable goldens. They are kept in git and never moved."""
    for listed in (list_goldens, list_retired):
        for path, error in listed(folder)[1].items():
            newer = isinstance(error, OtherVersionError)
            yield _unreadable("newer" if newer else "damaged", path, error.message, MEND_GOLDEN)


def _of_history(folder: Path) -> Iterator[Ailment]:
    """Yield unreadable files of history, and incomplete files that are too old to be still written."""
    for path in (folder / name for name in sorted(history_stamps(folder))):
        try:
            record = read_record(path)
        except BadRequestError as error:
            remedy = "--fix moves it to the trash; mbr-perf history add RUN then adds its run again"
            yield _unread(path, error, remedy, movable=True)
            continue
        if is_ahead(record, datetime.now(UTC)):
            message = f"{path}: started_at {record.started_at!r} is in the future"
            remedy = "if the clock of its machine was wrong, move the file out of history, where it counts as the newest night"
            yield Ailment("rejected", path, message, remedy)
    long_ago = datetime.now(UTC).timestamp() - _WRITING_TAKES_S
    for temporary in _temporaries(folder, _NO_OWNER, is_settled=True):
        if temporary.path.stat().st_mtime < long_ago:
            yield temporary


def _temporaries(folder: Path, life: Life, *, is_settled: bool) -> Iterator[Ailment]:
    """Yield incomplete files that a killed process left."""
    for path in sorted(folder.rglob("*.tmp")):
        if _TEMPORARY.fullmatch(path.name) and not path.is_symlink():
            message = "an incomplete file of a killed process"
            yield Ailment("temporary", path, message, "--fix moves it to the trash", life, movable=is_settled)


def move_to_trash(ailments: tuple[Ailment, ...], results: Path) -> tuple[Ailment, ...]:
    """Move everything movable below ``trash/`` of ``results``, with the same relative paths; return all problems.

    BadRequestError: a file cannot be moved; files that were moved before stay moved.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    trash = results / TRASH / f"{stamp}-{secrets.token_hex(4)}"
    return tuple(_moved(ailment, results, trash) if ailment.movable else ailment for ailment in ailments)


def _moved(ailment: Ailment, results: Path, trash: Path) -> Ailment:
    there = trash / ailment.path.relative_to(results)
    if there.exists() and not ailment.path.exists():  # it moved with its folder
        return replace(ailment, moved_to=there)
    try:
        there.parent.mkdir(parents=True, exist_ok=True)
        ailment.path.rename(there)
    except OSError as error:
        raise BadRequestError(
            f"{ailment.path}: cannot be moved to {there}: {error.strerror}",
            remedy="check the permissions of both folders",
        ) from error
    return replace(ailment, moved_to=there)
