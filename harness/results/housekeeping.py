"""What is not in order in a results folder, and moving it to the trash; nothing is ever deleted."""

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from harness.errors import BadRequestError
from harness.launch.processes import Life, life_of
from harness.night.history.files import history_dir, history_stamps, is_ahead, read_record
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
_EVIDENCE = {"accuracy", "benchmarks", "faults", "gpu"}
_KNOWN = {*FOLDERS, JOBS, TRASH, *_EVIDENCE, "golden", "calibration", "history", "README.md"}
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.tmp|rank_\d+\.json\.tmp")
_GPU_CHECK = re.compile(r"gpu-check-\d{8}T\d{6}Z")  # scripts/gpu-check keeps its runs there
_WRITING_TAKES_S = 3600.0  # at the very most, for one small file of history
_ATTEMPT = re.compile(r"\d+\.incomplete-\d+")

Kind = Literal["incomplete", "damaged", "newer", "rejected", "unfinished", "temporary", "attempt", "stray"]


@dataclass(frozen=True)
class Ailment:
    """One thing that is not in order. ``movable``: nobody needs it where it is, as far as this machine can know.

    ``life``: of the process that filled the folder. ``moved_to``: where it lies now.
    """

    kind: Kind
    path: Path
    message: str
    remedy: str
    movable: bool
    life: Life
    moved_to: Path | None = None


_NOBODY = Life("unknown", "")


def examine_results(results: Path) -> tuple[Ailment, ...]:
    """Everything that is not in order below ``results``. Folders that a living process is filling are in order."""
    found: list[Ailment] = [*_strays(results)]
    for entry in inventory(results):
        life = life_of(entry.path)
        if life.state != "alive":
            found += _of_run(entry, life) if entry.kind == "run" else _of_many(entry, life)
    return (*found, *_of_goldens(results / "golden"), *_of_history(history_dir(results)))


def _strays(results: Path) -> Iterator[Ailment]:
    """What nobody put there who knows the layout. It is somebody's, and never moved."""
    known = [results / folder for folder in FOLDERS]
    for path in sorted(results.iterdir()) if results.is_dir() else ():
        if path.name not in _KNOWN:
            yield _stray(path)
    for folder in known:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            whole = path.is_dir() and not path.is_symlink()
            if not (whole and (is_ours(path) or _GPU_CHECK.fullmatch(path.name))):
                yield _stray(path)


def _stray(path: Path) -> Ailment:
    what = "a link" if path.is_symlink() else "a folder" if path.is_dir() else "a file"
    return Ailment(
        "stray", path, f"{what} that mbr-perf did not make", "move it elsewhere", movable=False, life=_NOBODY
    )


def _of_run(entry: Stored, life: Life) -> Iterator[Ailment]:
    job_dir = unsubmitted_job_of(entry.path) if entry.state == "incomplete" else None
    if job_dir is not None:
        remedy = f"mbr-perf jobs submit {job_dir}"
        yield Ailment("unfinished", entry.path, "not submitted yet", remedy, movable=False, life=life)
    elif entry.state == "incomplete":
        yield _incomplete(entry, life)
    elif entry.state == "newer":
        yield _newer(entry.path, entry.detail, life)
    elif entry.state == "rejected":
        yield _rejected(entry.path, entry.detail, life)
    elif entry.state == "damaged":
        remedy = "its ranks folder still holds what was measured"
        yield Ailment("damaged", entry.path, entry.detail, remedy, movable=True, life=life)
    else:
        yield from _temporaries(entry.path, life, is_settled=True)


def _newer(path: Path, message: str, life: Life) -> Ailment:
    return Ailment(
        "newer", path, message, "read it with the mbr-perf that wrote it, or upgrade", movable=False, life=life
    )


def _rejected(path: Path, message: str, life: Life) -> Ailment:
    """What an older version may have accepted holds what was measured, and is not ours to put away."""
    remedy = "it stays: what was measured is whole; the mbr-perf that wrote it may read it"
    return Ailment("rejected", path, message, remedy, movable=False, life=life)


def _incomplete(entry: Stored, life: Life) -> Ailment:
    gone = life.state == "dead"
    what = {"sweep": "the sweep had decided on its cells", "night": "the night had decided on its cases"}.get(
        entry.kind, "the run was committed"
    )
    message = f"ended before {what}: {life.reason}" if gone else f"not committed, and {life.reason}"
    remedy = "--fix moves it to the trash" if gone else "move it yourself if you know that nothing fills it"
    return Ailment("incomplete", entry.path, message, remedy, movable=gone, life=life)


@dataclass(frozen=True)
class _Parts:
    """Folder of the runs of a sweep's cells or a night's cases, and the command that does what is missing."""

    inner: str
    resume: str


_PARTS = {"sweep": _Parts(CELLS, "mbr-perf sweep --resume"), "night": _Parts(CASES, "mbr-perf nightly --resume")}


def _of_many(entry: Stored, life: Life) -> Iterator[Ailment]:
    """Of a sweep or a night."""
    if entry.state == "incomplete":
        yield _incomplete(entry, life)
        return
    settled, parts = life.state == "dead", _PARTS[entry.kind]
    if entry.state == "unfinished":
        remedy = f"{parts.resume} {entry.path}"
        yield Ailment("unfinished", entry.path, entry.detail, remedy, movable=False, life=life)
    damaged = list(_damaged_runs(entry.path, parts, life, is_settled=settled))
    yield from damaged
    if entry.state == "newer" and not damaged:
        yield _newer(entry.path, entry.detail, life)
    if entry.state == "rejected" and not damaged:
        yield _rejected(entry.path, entry.detail, life)
    if entry.state == "damaged" and not damaged:
        remedy = "its runs can still be read one by one"
        yield Ailment("damaged", entry.path, entry.detail, remedy, movable=False, life=life)
    for part in folders(entry.path / parts.inner):
        for attempt in folders(part):
            if _ATTEMPT.fullmatch(attempt.name):
                message = f"an attempt that did not end, kept aside when the {entry.kind} was resumed"
                yield Ailment("attempt", attempt, message, "--fix moves it to the trash", movable=settled, life=life)
    yield from _temporaries(entry.path, life, is_settled=settled)


def _damaged_runs(folder: Path, parts: _Parts, life: Life, *, is_settled: bool) -> Iterator[Ailment]:
    for record in sorted((folder / parts.inner).glob(f"*/*/{RECORD}")):
        try:
            read_document(record, RunRecord)
        except OtherVersionError as error:
            yield _newer(record.parent, error.message, life)
        except RejectedError as error:
            yield _rejected(record.parent, error.message, life)
        except BadRequestError as error:
            remedy = f"--fix moves the run to the trash; {parts.resume} {folder} then runs it again"
            yield Ailment("damaged", record.parent, error.message, remedy, movable=is_settled, life=life)


def _of_goldens(folder: Path) -> Iterator[Ailment]:
    """Goldens are under review in git, and never moved."""
    for listed in (list_goldens, list_retired):
        for path, error in listed(folder)[1].items():
            if isinstance(error, OtherVersionError):
                yield _newer(path, error.message, _NOBODY)
            else:
                yield Ailment("damaged", path, error.message, MEND_GOLDEN, movable=False, life=_NOBODY)


def _of_history(folder: Path) -> Iterator[Ailment]:
    """Files of history that cannot be read, and halves so old that no writer can be at work on them."""
    for name in sorted(history_stamps(folder)):
        try:
            record = read_record(folder / name)
            if is_ahead(record, datetime.now(UTC)):
                yield _from_the_future(folder / name, record.started_at)
        except OtherVersionError as error:
            yield _newer(folder / name, error.message, _NOBODY)
        except RejectedError as error:
            yield _rejected(folder / name, error.message, _NOBODY)
        except BadRequestError as error:
            remedy = "--fix moves it to the trash; mbr-perf history add RUN then takes its run in again"
            yield Ailment("damaged", folder / name, error.message, remedy, movable=True, life=_NOBODY)
    long_ago = datetime.now(UTC).timestamp() - _WRITING_TAKES_S
    for one in _temporaries(folder, _NOBODY, is_settled=True):
        if one.path.stat().st_mtime < long_ago:
            yield one


def _from_the_future(path: Path, started_at: str) -> Ailment:
    message = f"{path}: started_at {started_at!r} is in the future"
    remedy = "where the clock of its machine was wrong, move it out of history: it counts as the newest night"
    return Ailment("rejected", path, message, remedy, movable=False, life=_NOBODY)


def _temporaries(folder: Path, life: Life, *, is_settled: bool) -> Iterator[Ailment]:
    """Halves of files that a kill left behind."""
    for path in sorted(folder.rglob("*.tmp")):
        if _TEMPORARY.fullmatch(path.name) and not path.is_symlink():
            message = "half a file, left behind by a process that was killed"
            yield Ailment("temporary", path, message, "--fix moves it to the trash", movable=is_settled, life=life)


def move_to_trash(ailments: tuple[Ailment, ...], results: Path) -> tuple[Ailment, ...]:
    """The same, with everything movable now under ``trash/`` of ``results``, where its path below is kept.

    BadRequestError where something cannot be moved; what was moved before stays moved.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    trash = results / TRASH / f"{stamp}-{secrets.token_hex(4)}"
    return tuple(_moved(one, results, trash) if one.movable else one for one in ailments)


def _moved(ailment: Ailment, results: Path, trash: Path) -> Ailment:
    there = trash / ailment.path.relative_to(results)
    if there.exists() and not ailment.path.exists():  # with the folder that it lies in
        return replace(ailment, moved_to=there)
    try:
        there.parent.mkdir(parents=True, exist_ok=True)
        ailment.path.rename(there)
    except OSError as error:
        raise BadRequestError(f"{ailment.path}: cannot be moved to {there}: {error.strerror}") from error
    return replace(ailment, moved_to=there)
