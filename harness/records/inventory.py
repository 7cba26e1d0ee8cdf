"""Lists the runs, sweeps, nights and bisects of a results folder, complete or not. Changes nothing."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.errors import BadRequestError
from harness.records.night import NightCase, read_night, verdict_text
from harness.records.rank import OWNER
from harness.records.references import MARKS, Kind, folder_named, folders
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_run
from harness.records.strict_json import read_document
from harness.records.sweep import CellData, read_sweep
from harness.units import counted, utc_time

State = Literal["ok", "oom", "failed", "interrupted", "finished", "running", "unfinished", "incomplete", "damaged"]

FOLDERS = tuple(f"{kind}s" for kind in MARKS)
_MARKS = (*MARKS.values(), "spec.json", OWNER)
_UTC = "%Y-%m-%dT%H:%M:%SZ"
_ID = re.compile(r"(?P<when>\d{8}T\d{6}Z)-(?P<recipe>.+)-[0-9a-f]{8}")


@dataclass(frozen=True)
class Stored:
    """A run, sweep, night or bisect. ``when``: its start, if known. ``recipe``: or suite, or case."""

    kind: Kind
    path: Path
    when: str
    recipe: str
    state: State
    detail: str
    num_bytes: int
    is_start_known: bool = True

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def is_committed(self) -> bool:
        return self.state in ("ok", "oom", "failed", "interrupted", "finished")


def inventory(results: Path, count: Callable[[Sequence[Path]], Iterable[Path]] = iter) -> tuple[Stored, ...]:
    """List what is under ``results``, oldest first. ``count`` yields the folders that it gets, and shows progress."""
    found = [path for folder in FOLDERS for path in folders(results / folder) if is_ours(path)]
    return tuple(sorted(map(stored, count(found)), key=lambda entry: (entry.when, entry.id)))


def is_ours(path: Path) -> bool:
    """Return whether the folder belongs to a run, a sweep, a night or a bisect, by its name or its files."""
    return _ID.fullmatch(path.name) is not None or any((path / name).exists() for name in _MARKS)


def stored(path: Path) -> Stored:
    """Return the entry of a folder. A sweep's folder holds ``sweep.json`` or is in ``sweeps``; likewise for a night."""
    name = _ID.fullmatch(path.name)
    kind: Kind = next((k for k in MARKS if path.parent.name == f"{k}s"), "run")
    when = re.sub("(....)(..)(..T..)(..)(..Z)", r"\1-\2-\3:\4:\5", name["when"]) if name else ""
    entry = Stored(kind, path, when, name["recipe"] if name else "", "incomplete", "", 0)
    try:
        kind = next((k for k in MARKS if (path / MARKS[k]).exists()), kind)
        num_bytes = sum(size for _, size in file_sizes(path))
        entry = replace(entry, kind=kind, num_bytes=num_bytes, detail=f"no {MARKS[kind]}")
        return _read(entry) if (path / MARKS[kind]).is_file() else entry
    except BadRequestError as error:
        return replace(entry, state="damaged", detail=error.message)
    except OSError as error:  # one folder that cannot be read, or that another machine deletes, ends no list
        return replace(entry, state="damaged", detail=f"{path}: {error.strerror or error}")


def runs_of(entry: Stored) -> Iterator[tuple[str, RunRecord]]:
    """Yield each committed run with the name of its cell or case, if it has one. BadRequestError for a bisect."""
    if entry.kind == "bisect":
        remedy = "name a run, a sweep or a night"
        raise BadRequestError(f"{entry.path}: a bisect, whose runs are of other builds", remedy=remedy)
    if entry.kind == "run":
        yield "", read_run(entry.path)
    elif entry.kind == "sweep":
        yield from ((cell.planned.name, run) for cell in read_sweep(entry.path).cells for run in cell.runs)
    else:
        cases = read_night(entry.path).cases
        yield from ((case.planned.name, run.record) for case in cases for run in case.runs if run.record)


def _read(entry: Stored) -> Stored:
    path = entry.path
    if entry.kind == "sweep":
        sweep = read_sweep(path)
        states = _states_text("cell", map(outcome_of, sweep.cells))
        return replace(entry, state="unfinished" if sweep.num_due else "finished", detail=states)
    if entry.kind == "night":
        night = read_night(path)
        states = _states_text("case", map(case_state, night.cases))
        if not night.is_finished:
            return replace(entry, state="unfinished", detail=states)
        return replace(entry, state="finished", detail="; ".join(filter(None, (states, verdict_text(path)))))
    if entry.kind == "bisect":
        if (path / BISECT_REPORT).is_file():
            entry = replace(entry, state="finished", detail=str(BISECT_REPORT))
        return entry if entry.state == "finished" else replace(entry, state="unfinished", detail="no answer yet")
    record = read_document(path / RECORD, RunRecord)
    entry = replace(entry, state=record.status, detail=record.failure or record.spec.slug)
    if record.imported is None and entry.when:
        return entry
    time, is_known = record.provenance.started_at, not record.imported or record.imported.start_source != "unknown"
    try:
        return replace(entry, when=utc_time(time).strftime(_UTC), is_start_known=is_known)
    except ValueError as error:
        raise BadRequestError(f"{path / RECORD}: started_at: {time!r} is not a time") from error


BISECT_REPORT = Path("report", "bisect.json")


def _states_text(noun: str, states: Iterable[str]) -> str:
    counts = Counter(states)
    listed = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{counted(counts.total(), noun)}: {listed}" if listed else f"no {noun}s"


def case_state(case: NightCase) -> str:
    """Return how the case's runs ended, before any verdict. A failed run that was retried does not count."""
    if case.planned.refused:
        return "refused"
    done = [run.record.status for run in case.runs if run.record]
    bad = [status for status in done if status in ("failed", "oom")]
    if len(bad) > sum(run.purpose == "retry" and run.record is not None for run in case.runs):
        return bad[0]
    return "interrupted" if "interrupted" in done else "ok" if done else "not_run"


def outcome_of(cell: CellData) -> str:
    """Return the worst outcome of the cell's runs, or why there are none."""
    if cell.fate != "run":
        return cell.fate
    return next((run.status for run in cell.runs if run.status != "ok"), "ok")


def file_sizes(path: Path) -> tuple[tuple[str, int], ...]:
    """List regular files below ``path`` by name with their bytes, without links; files may vanish meanwhile."""
    found: list[tuple[str, int]] = []
    for file in sorted(path.rglob("*")):
        with suppress(FileNotFoundError):
            if file.is_file() and not file.is_symlink():
                found.append((str(file.relative_to(path)), file.stat().st_size))
    return tuple(found)


def find_stored(reference: str | Path, results: Path) -> Stored:
    """Find an entry by its folder or a part of its id. BadRequestError: nothing or several match, or it is none."""
    path = Path(reference)
    if path.is_dir():
        if not is_ours(path.absolute()):
            raise BadRequestError(
                f"{path}: not a run, sweep, night or bisect", remedy=f"the folder has none of {', '.join(_MARKS)}"
            )
        return stored(path.absolute())
    parents = [results / folder for folder in FOLDERS]
    remedy = "`mbr-perf results list` prints all of them"
    return stored(folder_named(str(reference), "run, sweep, night or bisect", *parents, remedy=remedy))
