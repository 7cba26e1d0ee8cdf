"""Finds the folder of a run, a sweep or a night by its path or id, and says what else a reference is."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from harness.errors import BadRequestError, closest
from harness.records.folders import results_dir
from harness.units import command_text

Kind = Literal["run", "sweep", "night", "bisect"]
MARKS: dict[Kind, str] = {"night": "night.json", "sweep": "sweep.json", "bisect": "bisect.json", "run": "record.json"}
"""The file that only a folder of this kind has."""


_INSTEAD: dict[Kind, str] = {"night": "nightly --resume", "sweep": "report"}


def folders(parent: Path) -> tuple[Path, ...]:
    """List the folders in ``parent`` by name, without links; empty if ``parent`` does not exist."""
    if not parent.is_dir():
        return ()
    return tuple(sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink()))


def named(start: str, among: Iterable[Path]) -> tuple[Path, ...]:
    """Return the paths whose name starts or ends with ``start``; none if ``start`` is empty."""
    return tuple(path for path in among if start and (path.name.startswith(start) or path.name.endswith(f"-{start}")))


def run_id_of(batch_id: str, entry: str, number: object) -> str:
    """Return the id of a run of a night or sweep, safe as a file name: a comma, for example, becomes its hex code."""
    name = re.sub(r"[^A-Za-z0-9._-]", lambda found: f"-{ord(found[0]):x}-", entry)
    return f"{batch_id}.{name}.{number}"


def _in_batches(run_id: str, results: Path) -> Iterator[Path]:
    for batch in (path for kind in MARKS for path in folders(results / f"{kind}s")):
        start = next((each for each in (batch.name, batch.name[-8:]) if run_id.startswith(f"{each}.")), None)
        if start:
            yield from (run for run in batch.glob("*/*/*") if run_id_of(start, run.parent.name, run.name) == run_id)


def folder_named(start: str, kinds: str, *parents: Path, remedy: str = "") -> Path:
    """Return the only folder that :func:`named` finds, also runs of batches. BadRequestError: none, or several."""
    every, where = [path for parent in parents for path in folders(parent)], os.path.commonpath(parents)
    of_batches = (run for parent in parents if parent.name == "runs" for run in _in_batches(start, parent.parent))
    found = named(start, every) or tuple(of_batches)
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(path.name for path in found[-5:])
        raise BadRequestError(f"{start!r} matches {len(found)} folders in {where}", remedy=f"name one of: {listed}")
    by_end = {path.name.rpartition("-")[2]: path.name for path in every}
    near = [*closest(start, by_end.values()), *map(by_end.get, closest(start, by_end))]
    newest = f"the newest are: {', '.join(path.name for path in every[-3:])}" if every else f"{where} has none yet"
    raise BadRequestError(
        f"no {kinds} {start!r}: it is neither a path nor the start of an id in {where}",
        remedy=f"did you mean {near[0]!r}?" if near else remedy or newest,
    )


def folder_of(reference: str | Path, kind: Kind, results: Path | None = None, *, remedy: str = "") -> Path:
    """Find a folder by its path, its main file, or a part of its id. BadRequestError: none, several, another kind."""
    path, parent = Path(reference), results_dir(results) / f"{kind}s"
    if path.is_file() and path.name == MARKS[kind]:
        return path.parent
    if not (path / MARKS[kind]).exists() and not named(str(reference), folders(parent)):
        refuse_other_kinds(reference, (kind,), results)
    return path if path.is_dir() else folder_named(str(reference), kind, parent, remedy=remedy)


def refuse_other_kinds(reference: str | Path, wanted: tuple[Kind, ...], results: Path | None = None) -> None:
    """Raise BadRequestError if the reference is of a kind that is not in ``wanted``. An unknown reference passes."""
    for kind in MARKS:
        if kind not in wanted and (folder := _found(reference, kind, results)):
            runs = [path.parent for path in sorted(folder.glob(f"*/*/*/{MARKS['run']}"))]
            remedy = command_text(*_INSTEAD.get(kind, "results show").split(), folder)
            if "run" in wanted:
                remedy = f"name a run in it, e.g. {runs[0]}" if runs else "it has no runs"
            raise BadRequestError(f"{str(reference)!r} is a {kind}, not a {' or a '.join(wanted)}", remedy=remedy)


def _found(reference: str | Path, kind: Kind, results: Path | None) -> Path | None:
    path, mark = Path(reference), MARKS[kind]
    if path.exists():
        folder = path.parent if path.name == mark else path
        return folder if (folder / mark).is_file() else None
    found = named(str(reference), folders(results_dir(results) / f"{kind}s"))
    return found[0] if len(found) == 1 else None
