"""What lies in a results folder: every run, sweep and night, whole or not, without changing anything."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import BadRequestError
from harness.records.folders import folders, named
from harness.records.night import NIGHT, NIGHTS, NightCase, read_night, told_verdict
from harness.records.rank import OWNER
from harness.records.run import RunRecord
from harness.records.store import RECORD
from harness.records.strict_json import OtherVersionError, RejectedError, read_document
from harness.records.sweep import SWEEP, CellData, read_sweep
from harness.units import counted, utc_time

RUNS, SWEEPS = "runs", "sweeps"

State = Literal[
    "ok",
    "oom",
    "failed",
    "interrupted",
    "finished",
    "running",
    "unfinished",
    "incomplete",
    "damaged",
    "newer",
    "rejected",
]

FOLDERS = (RUNS, SWEEPS, NIGHTS)
_MARKS = (RECORD, "spec.json", SWEEP, NIGHT, OWNER)
_ID = re.compile(r"(?P<when>\d{8}T\d{6}Z)-(?P<recipe>.+)-[0-9a-f]{8}")


@dataclass(frozen=True)
class _Read:
    """What the files of a folder say. ``job_start``: of what was imported, UTC ISO-8601."""

    state: State
    detail: str
    job_start: str = ""
    is_start_known: bool = True


@dataclass(frozen=True)
class Stored:
    """A run, a sweep or a night, whose ``recipe`` is its suite. ``when``: UTC ISO-8601 of its start, empty where its name does not say; size in bytes.

    What was imported started when its job did; ``is_start_known`` False: nobody tells, and ``when`` is of the import.
    ``state`` of a committed run is its record's; ``incomplete``: nothing was committed; ``damaged``: what was cannot be
    read; ``newer``: it can, by another version of this program; ``rejected``: it is whole, with values that are not
    accepted. ``detail`` says more in words.
    """

    kind: Literal["run", "sweep", "night"]
    path: Path
    when: str
    recipe: str
    state: State
    detail: str
    num_bytes: int
    is_start_known: bool = True

    @property
    def id(self) -> str:
        """The name of its folder."""
        return self.path.name

    @property
    def is_committed(self) -> bool:
        """Whether nothing more is coming, so that the process that filled it is of no interest."""
        return self.state in ("ok", "oom", "failed", "interrupted", "finished")


def inventory(results: Path, count: Callable[[Sequence[Path]], Iterable[Path]] = iter) -> tuple[Stored, ...]:
    """Runs, sweeps and nights under ``results``, oldest first; nothing where there is no such folder.

    ``count`` yields the folders that it gets, and may show how far the reading is.
    """
    found = [path for folder in FOLDERS for path in folders(results / folder) if is_ours(path)]
    return tuple(sorted(map(stored, count(found)), key=lambda entry: (entry.when, entry.id)))


def is_ours(path: Path) -> bool:
    """Whether a folder is a run's, a sweep's or a night's, by its name or by what it holds."""
    return _ID.fullmatch(path.name) is not None or any((path / name).exists() for name in _MARKS)


def stored(path: Path) -> Stored:
    """The entry of one folder; that of a sweep holds ``sweep.json`` or lies where sweeps do, so with a night's."""
    name, kind = _ID.fullmatch(path.name), _kind(path)
    read = _STATES[kind](path)
    return Stored(
        kind=kind,
        path=path,
        when=read.job_start or (_iso(name["when"]) if name else ""),
        recipe=name["recipe"] if name else "",
        state=read.state,
        detail=read.detail,
        num_bytes=folder_bytes(path),
        is_start_known=read.is_start_known,
    )


def _kind(path: Path) -> Literal["run", "sweep", "night"]:
    if (path / SWEEP).exists() or path.parent.name == SWEEPS:
        return "sweep"
    return "night" if (path / NIGHT).exists() or path.parent.name == NIGHTS else "run"


def _iso(stamp: str) -> str:
    """``20260102T030405Z`` as ``2026-01-02T03:04:05Z``."""
    return f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:11]}:{stamp[11:13]}:{stamp[13:]}"


def _utc(file: Path, time: str) -> str:
    """``2026-01-02T04:04:05+01:00`` as ``2026-01-02T03:04:05Z``. BadRequestError for what is no time."""
    try:
        return utc_time(time).strftime("%Y-%m-%dT%H:%M:%SZ")
    except ValueError as error:
        raise BadRequestError(f"{file}: started_at: {time!r} is no time") from error


def _run_state(path: Path) -> _Read:
    def read() -> _Read:
        record = read_document(path / RECORD, RunRecord)
        state, detail = record.status, record.failure or record.spec.slug
        if record.imported is None:
            return _Read(state, detail)
        return _Read(
            state, detail, _utc(path / RECORD, record.provenance.started_at), record.imported.start_source != "unknown"
        )

    return _state(path / RECORD, read)


def _state(file: Path, read: Callable[[], _Read]) -> _Read:
    """What ``read`` says, or why the folder whose last or first file this is cannot be read."""
    if not file.is_file():
        return _Read("incomplete", f"no {file.name}")
    try:
        return read()
    except OtherVersionError as error:
        return _Read("newer", error.message)
    except RejectedError as error:
        return _Read("rejected", error.message)
    except BadRequestError as error:
        return _Read("damaged", error.message)


def _sweep_state(path: Path) -> _Read:
    def read() -> _Read:
        data = read_sweep(path)
        state: State = "unfinished" if data.num_due else "finished"
        detail = _told("cell", map(outcome_of, data.cells))
        if not data.plan.is_imported:
            return _Read(state, detail)
        sources = [run.imported.start_source for cell in data.cells for run in cell.runs if run.imported]
        return _Read(state, detail, _utc(path / SWEEP, data.plan.started_at), "unknown" not in sources)

    return _state(path / SWEEP, read)


def _night_state(path: Path) -> _Read:
    def read() -> _Read:
        data = read_night(path)
        state: State = "finished" if data.is_finished else "unfinished"
        told = told_verdict(path) if data.is_finished else ""
        return _Read(state, "; ".join(filter(None, (_told("case", map(case_state, data.cases)), told))))

    return _state(path / NIGHT, read)


_STATES = {"run": _run_state, "sweep": _sweep_state, "night": _night_state}


def _told(noun: str, states: Iterable[str]) -> str:
    """``3 cases: 2 ok, 1 oom``."""
    counts = Counter(states)
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{counted(counts.total(), noun)}: {told}" if told else f"no {noun}s"


def case_state(case: NightCase) -> str:
    """How the case's runs ended, unjudged; a failed run that was tried again does not count."""
    if case.planned.refused:
        return "refused"
    done = [run.record.status for run in case.runs if run.record]
    bad = [status for status in done if status in ("failed", "oom")]
    if len(bad) > sum(run.purpose == "retry" and run.record is not None for run in case.runs):
        return bad[0]
    return "interrupted" if "interrupted" in done else "ok" if done else "not_run"


def outcome_of(cell: CellData) -> str:
    """How the cell's runs ended, the worst of them, or why there are none."""
    if cell.fate != "run":
        return cell.fate
    return next((run.status for run in cell.runs if run.status != "ok"), "ok")


def folder_bytes(path: Path) -> int:
    """Bytes of the files below."""
    return sum(size for _, size in file_sizes(path))


def file_sizes(path: Path) -> tuple[tuple[str, int], ...]:
    """Regular files below, by name, with their bytes; links are left out, and files may vanish meanwhile."""
    found = ((str(file.relative_to(path)), _size(file)) for file in sorted(path.rglob("*")) if not file.is_symlink())
    return tuple((name, size) for name, size in found if size is not None)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except FileNotFoundError:
        return None


def find_stored(reference: str | Path, results: Path) -> Stored:
    """The run, sweep or night that ``reference`` means: a folder, or the start or the last eight digits of an id.

    BadRequestError for one that means none or several, and for a folder that is none of them.
    """
    path = Path(reference)
    if path.is_dir():
        if not is_ours(path.absolute()):
            raise BadRequestError(f"{path}: no run, sweep or night", remedy=f"there is none of {', '.join(_MARKS)}")
        return stored(path.absolute())
    name = str(reference)
    every = [path for folder in FOLDERS for path in folders(results / folder)]
    found = named(name, every)
    if len(found) == 1:
        return stored(found[0])
    if found:
        names = ", ".join(path.name for path in found[-5:])
        raise BadRequestError(f"{name!r} is ambiguous: {len(found)} folders in {results}", remedy=f"one of: {names}")
    raise BadRequestError(
        f"no run, sweep or night {name!r} in {results}", remedy="`mbr-perf results list` shows what there is"
    )
