"""Finds the folder of a run, a sweep or a night by its path or id, and says what else a reference is."""

from pathlib import Path
from typing import Literal

from harness.errors import BadRequestError
from harness.records.folders import folder_named, folders, named, results_dir

Kind = Literal["run", "sweep", "night"]
MARKS: dict[Kind, str] = {"night": "night.json", "sweep": "sweep.json", "run": "record.json"}
"""The file that only a folder of this kind has."""

_INSTEAD: dict[Kind, str] = {
    "night": "its reports are in its folder report; mbr-perf nightly --resume {0} writes them again",
    "sweep": "mbr-perf report {0}",
    "run": "mbr-perf results show {0}",
}


def folder_of(reference: str | Path, kind: Kind, results: Path | None = None) -> Path:
    """Find a folder. ``reference``: the folder, its main file, or the start or end of an id under ``results``.

    BadRequestError if nothing or several folders match, or if the reference is of another kind. The caller checks that
    the folder has its main file.
    """
    path, parent = Path(reference), results_dir(results) / f"{kind}s"
    if path.is_file() and path.name == MARKS[kind]:
        return path.parent
    if path.is_dir():
        if not (path / MARKS[kind]).exists():
            refuse_other_kinds(path, (kind,))
        return path
    if not named(str(reference), folders(parent)):
        refuse_other_kinds(reference, (kind,), results)
    return folder_named(str(reference), kind, parent)


def refuse_other_kinds(reference: str | Path, wanted: tuple[Kind, ...], results: Path | None = None) -> None:
    """Raise BadRequestError if the reference is of a kind that is not in ``wanted``. An unknown reference passes."""
    for kind in MARKS:
        if kind not in wanted and (folder := _found(reference, kind, results)):
            runs = [path.parent for path in sorted(folder.glob(f"*/*/*/{MARKS['run']}"))]
            remedy = _INSTEAD[kind].format(folder)
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
