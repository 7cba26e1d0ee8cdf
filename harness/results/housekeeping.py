"""Finds problems in a results folder. Changes nothing."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from harness.errors import BadRequestError, RunFailedError
from harness.history.store import history_file, survey_history
from harness.launch.processes import Life, life_of
from harness.records.golden import list_retired
from harness.records.goldens import MEND_GOLDEN, list_goldens
from harness.records.inventory import Stored, inventory
from harness.records.job import unsubmitted_job_of
from harness.records.night import CASES
from harness.records.references import folders
from harness.records.run import RunRecord
from harness.records.store import RECORD
from harness.records.strict_json import RejectedError, read_document
from harness.records.sweep import CELLS
from harness.show.json import Document, Shown

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.tmp|rank_\d+\.json\.tmp")
_ATTEMPT = re.compile(r"\d+\.incomplete-\d+")
_DELETE = "delete it if you do not need it"

Kind = Literal["incomplete", "damaged", "rejected", "unfinished", "temporary", "attempt"]


class Ailment(Shown):
    """One problem. ``process``: whether the process that filled the folder still runs."""

    kind: Kind
    path: Path
    message: str
    remedy: str
    process: Literal["alive", "dead", "unknown"] = "unknown"


class AilmentsDocument(Document):
    """``mbr-perf results doctor --json``."""

    results_dir: Path
    ailments: tuple[Ailment, ...]
    exit_code: int


def examine_results(results: Path) -> tuple[Ailment, ...]:
    """Return all problems below ``results``. Ignores folders that a running process is filling."""
    found = list[Ailment]()
    for entry in inventory(results):
        life = life_of(entry.path)
        if life.state != "alive":
            problems = _of_run(entry, life) if entry.kind == "run" else _of_many(entry, life)
            found += [problem.model_copy(update={"process": life.state}) for problem in problems]
    return (*found, *_of_goldens(results / "golden"), *_of_history(results))


def _ailment(kind: str, path: Path, message: str, remedy: str) -> Ailment:
    """Return the problem. ``remedy`` is replaced for files of other versions, whose measurements are complete."""
    if kind == "rejected":
        remedy = "read it with the mbr-perf that wrote it: its measurements are complete"
    return Ailment.of(kind=kind, path=path, message=message, remedy=remedy)


def _unread(path: Path, error: BadRequestError, remedy: str) -> Ailment:
    kind: Kind = "rejected" if isinstance(error, RejectedError) else "damaged"
    return _ailment(kind, path, error.message, remedy)


def _of_run(entry: Stored, life: Life) -> Iterator[Ailment]:
    job_dir = unsubmitted_job_of(entry.path) if entry.state == "incomplete" else None
    if job_dir is not None:
        yield _ailment("unfinished", entry.path, "not submitted yet", f"mbr-perf jobs submit {job_dir}")
    elif entry.state == "incomplete":
        yield _incomplete(entry, life)
    elif entry.state in ("rejected", "damaged"):
        yield _ailment(entry.state, entry.path, entry.detail, "its ranks folder still contains the measurements")
    else:
        yield from _temporaries(entry.path)


def _incomplete(entry: Stored, life: Life) -> Ailment:
    what = "its record" if entry.kind == "run" else f"the plan of the {entry.kind}"
    is_dead = life.state == "dead"
    message = f"ended before {what} was written: {life.reason}" if is_dead else f"no record, and {life.reason}"
    return _ailment("incomplete", entry.path, message, _DELETE if is_dead else f"{_DELETE} and no process fills it")


# The folder of the runs of a sweep or a night, and the command that completes it.
_PARTS = {"sweep": (CELLS, "mbr-perf sweep --resume"), "night": (CASES, "mbr-perf nightly --resume")}


def _of_many(entry: Stored, life: Life) -> Iterator[Ailment]:
    if entry.state == "incomplete":
        yield _incomplete(entry, life)
        return
    inner, resume = _PARTS[entry.kind]
    if entry.state == "unfinished":
        yield _ailment("unfinished", entry.path, entry.detail, f"{resume} {entry.path}")
    damaged = list[Ailment]()
    for record in sorted((entry.path / inner).glob(f"*/*/{RECORD}")):
        try:
            read_document(record, RunRecord)
        except BadRequestError as error:
            damaged.append(_unread(record.parent, error, f"delete it; {resume} {entry.path} then runs it again"))
    yield from damaged
    if entry.state in ("rejected", "damaged") and not damaged:
        yield _ailment(entry.state, entry.path, entry.detail, "you can still read its runs one by one")
    for attempt in (attempt for part in folders(entry.path / inner) for attempt in folders(part)):
        if _ATTEMPT.fullmatch(attempt.name):
            message = f"an unfinished attempt, set aside when the {entry.kind} was resumed"
            yield _ailment("attempt", attempt, message, _DELETE)
    yield from _temporaries(entry.path)


def _of_goldens(folder: Path) -> Iterator[Ailment]:
    for listed in (list_goldens, list_retired):
        for path, error in listed(folder)[1].items():
            yield _ailment("damaged", path, error.message, MEND_GOLDEN)


def _of_history(results: Path) -> Iterator[Ailment]:
    try:
        notes = survey_history(results).notes
    except RunFailedError as error:
        yield _ailment("damaged", history_file(results), error.message, error.remedy)
        return
    for note in notes:
        yield Ailment(kind="rejected", path=history_file(results), message=note, remedy="history leaves this run out")


def _temporaries(folder: Path) -> Iterator[Ailment]:
    for path in sorted(folder.rglob("*.tmp")):
        if _TEMPORARY.fullmatch(path.name) and not path.is_symlink():
            yield _ailment("temporary", path, "an incomplete file of a killed process", "delete it")
