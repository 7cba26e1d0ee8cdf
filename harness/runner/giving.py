"""A run, a sweep or a night as one file for somebody else."""

from pathlib import Path

from harness.errors import BadRequestError
from harness.launch.ownership import life_of
from harness.records.anonymous import Places
from harness.records.archive import Archived, archive
from harness.records.inventory import FOLDERS, find_stored
from harness.records.store import checkout_dir, results_dir


def give(reference: str, target: Path, results: Path | None, *, max_bytes: int) -> Archived:
    """Archive what ``reference`` means. BadRequestError while a process is filling it, and as `archive` says."""
    folder = results_dir(results)
    entry = find_stored(reference, folder)
    life = life_of(entry.path)
    if entry.state in ("incomplete", "unfinished") and life.state == "alive":
        raise BadRequestError(f"{entry.id}: {life.reason}", remedy="archive it when it has ended")
    own = entry.path.parents[1] if entry.path.parent.name in FOLDERS else None  # also of another results folder
    known = ((entry.path, entry.id), (own, "RESULTS"), (folder, "RESULTS"), (checkout_dir(), "CHECKOUT"))
    return archive(entry.path, target, Places.of((*known, (Path.home(), "~"))), max_bytes=max_bytes)
