"""A run or a sweep as one file for somebody else."""

from pathlib import Path

from harness.errors import BadRequestError
from harness.launch.ownership import life_of
from harness.records.anonymous import Places
from harness.records.archive import Archived, archive
from harness.records.inventory import find_stored
from harness.records.store import checkout_dir, results_dir


def give(reference: str, target: Path, results: Path | None, *, max_bytes: int) -> Archived:
    """Archive what ``reference`` means. BadRequestError while a process is filling it, and as `archive` says."""
    folder = results_dir(results)
    entry = find_stored(reference, folder)
    life = life_of(entry.path)
    if entry.state in ("incomplete", "unfinished") and life.state == "alive":
        raise BadRequestError(f"{entry.id}: {life.reason}", remedy="archive it when it has ended")
    places = Places.of(((entry.path, entry.id), (folder, "RESULTS"), (checkout_dir(), "CHECKOUT"), (Path.home(), "~")))
    return archive(entry.path, target, places, max_bytes=max_bytes)
