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


_NOBODY = Life("unknown", "")


@dataclass(frozen=True)
class Ailment:
    """One thing that is not in order. ``movable``: nobody needs it where it is, as far as this machine can know.

    ``life``: of the process that filled the folder. ``moved_to``: where it lies now.
    """

    kind: Kind
    path: Path
    message: str
    remedy: str
    life: Life = _NOBODY
    movable: bool = False
    moved_to: Path | None = None


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
    strays = [path for path in _inside(results) if path.name not in _KNOWN]
    for path in (one for folder in FOLDERS for one in _inside(results / folder)):
        whole = path.is_dir() and not path.is_symlink()
        if not (whole and (is_ours(path) or _GPU_CHECK.fullmatch(path.name))):
            strays.append(path)
    for path in strays:
        what = "a link" if path.is_symlink() else "a folder" if path.is_dir() else "a file"
        yield Ailment("stray", path, f"{what} that mbr-perf did not make", "move it elsewhere")


def _inside(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _of_run(entry: Stored, life: Life) -> Iterator[Ailment]:
    job_dir = unsubmitted_job_of(entry.path) if entry.state == "incomplete" else None
    if job_dir is not None:
        yield Ailment("unfinished", entry.path, "not submitted yet", f"mbr-perf jobs submit {job_dir}", life)
    elif entry.state == "incomplete":
        yield _incomplete(entry, life)
    elif entry.state in ("newer", "rejected", "damaged"):
        remedy = "its ranks folder still holds what was measured"
        yield replace(
            _unreadable(entry.state, entry.path, entry.detail, remedy, life), movable=entry.state == "damaged"
        )
    else:
        yield from _temporaries(entry.path, life, is_settled=True)


def _unreadable(state: str, path: Path, message: str, remedy: str, life: Life = _NOBODY) -> Ailment:
    """A file of a newer version, one that an older version may have accepted, or a damaged one, whose remedy it is."""
    if state == "newer":
        return Ailment("newer", path, message, "read it with the mbr-perf that wrote it, or upgrade", life)
    if state == "rejected":  # it holds what was measured, and is not ours to put away
        remedy = "it stays: what was measured is whole; the mbr-perf that wrote it may read it"
        return Ailment("rejected", path, message, remedy, life)
    return Ailment("damaged", path, message, remedy, life)


def _unread(path: Path, error: BadRequestError, remedy: str, life: Life = _NOBODY, *, movable: bool = False) -> Ailment:
    """A file that could not be read for that reason; ``movable`` where it is damaged."""
    state = "newer" if isinstance(error, OtherVersionError) else "damaged"
    found = _unreadable("rejected" if isinstance(error, RejectedError) else state, path, error.message, remedy, life)
    return replace(found, movable=movable and found.kind == "damaged")


def _incomplete(entry: Stored, life: Life) -> Ailment:
    gone = life.state == "dead"
    what = {"sweep": "the sweep had decided on its cells", "night": "the night had decided on its cases"}.get(
        entry.kind, "the run was committed"
    )
    message = f"ended before {what}: {life.reason}" if gone else f"not committed, and {life.reason}"
    remedy = "--fix moves it to the trash" if gone else "move it yourself if you know that nothing fills it"
    return Ailment("incomplete", entry.path, message, remedy, life, movable=gone)


# The folder of the runs of a sweep's cells or a night's cases, and the command that does what is missing.
_PARTS = {"sweep": (CELLS, "mbr-perf sweep --resume"), "night": (CASES, "mbr-perf nightly --resume")}


def _of_many(entry: Stored, life: Life) -> Iterator[Ailment]:
    """Of a sweep or a night."""
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
        yield _unreadable(entry.state, entry.path, entry.detail, "its runs can still be read one by one", life)
    for part in folders(entry.path / inner):
        for attempt in folders(part):
            if _ATTEMPT.fullmatch(attempt.name):
                message = f"an attempt that did not end, kept aside when the {entry.kind} was resumed"
                yield Ailment("attempt", attempt, message, "--fix moves it to the trash", life, movable=settled)
    yield from _temporaries(entry.path, life, is_settled=settled)


def _of_goldens(folder: Path) -> Iterator[Ailment]:
    """Goldens are under review in git, and never moved."""
    for listed in (list_goldens, list_retired):
        for path, error in listed(folder)[1].items():
            newer = isinstance(error, OtherVersionError)
            yield _unreadable("newer" if newer else "damaged", path, error.message, MEND_GOLDEN)


def _of_history(folder: Path) -> Iterator[Ailment]:
    """Files of history that cannot be read, and halves so old that no writer can be at work on them."""
    for path in (folder / name for name in sorted(history_stamps(folder))):
        try:
            record = read_record(path)
        except BadRequestError as error:
            remedy = "--fix moves it to the trash; mbr-perf history add RUN then takes its run in again"
            yield _unread(path, error, remedy, movable=True)
            continue
        if is_ahead(record, datetime.now(UTC)):
            message = f"{path}: started_at {record.started_at!r} is in the future"
            remedy = "where the clock of its machine was wrong, move it out of history: it counts as the newest night"
            yield Ailment("rejected", path, message, remedy)
    long_ago = datetime.now(UTC).timestamp() - _WRITING_TAKES_S
    for one in _temporaries(folder, _NOBODY, is_settled=True):
        if one.path.stat().st_mtime < long_ago:
            yield one


def _temporaries(folder: Path, life: Life, *, is_settled: bool) -> Iterator[Ailment]:
    """Halves of files that a kill left behind."""
    for path in sorted(folder.rglob("*.tmp")):
        if _TEMPORARY.fullmatch(path.name) and not path.is_symlink():
            message = "half a file, left behind by a process that was killed"
            yield Ailment("temporary", path, message, "--fix moves it to the trash", life, movable=is_settled)


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
