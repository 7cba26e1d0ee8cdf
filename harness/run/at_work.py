"""Which other launches of ours measure on this machine right now: two at once share its cores, and measure each other."""

import os
from collections.abc import Iterator
from heapq import nlargest
from pathlib import Path

from harness.launch.ownership import life_of, owner_of
from harness.records.nights import NIGHTS
from harness.records.rank import OWNER
from harness.records.store import RECORD

_KINDS = ("runs", "sweeps", NIGHTS)
_NEWEST = 20  # their names begin with the time; older ones do not run any more


def others_at_work(run_dir: Path) -> tuple[str, ...]:
    """A line for every other run, sweep and night in the results folder of ``run_dir`` that runs something here now.

    Those of other machines, of other containers and of this process are not told, nor is what the run is a part of.
    """
    own = (run_dir.absolute(), *run_dir.absolute().parents)
    results = next((folder.parent for folder in own[1:] if folder.name in _KINDS), None)
    if results is None:  # a folder that somebody named, in no results folder
        return ()
    tops = (top for kind in _KINDS for top in _newest(results / kind) if top not in own)
    return tuple(f"shared machine: another mbr-perf was at work here: {top.name}" for top in tops if _is_measuring(top))


def _newest(folder: Path) -> list[Path]:
    """By names alone: this is asked at both ends of every run, and a folder may hold ten thousand."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return [folder / name for name in nlargest(_NEWEST, (entry.name for entry in entries))]


def _is_measuring(top: Path) -> bool:
    return _is_filled(top) and any(_is_filled(run) and not (run / RECORD).is_file() for run in _runs(top))


def _runs(top: Path) -> Iterator[Path]:
    """The run folders that were begun; of a run itself."""
    pattern = OWNER if top.parent.name == "runs" else f"*/*/*/{OWNER}"
    yield from (path.parent for path in top.glob(pattern))


def _is_filled(folder: Path) -> bool:
    """Whether a living process other than this one fills it."""
    if life_of(folder).state != "alive":
        return False
    owner = owner_of(folder)
    return owner is not None and owner.pid != os.getpid()
