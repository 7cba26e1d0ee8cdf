"""A further node of a batch: it takes part in every run that the first node starts in the shared folder."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from harness.batch.batch import Batch, DueRun, Entry, Shows
from harness.errors import ExitCode, RunFailedError
from harness.judge.gate import status_exit_code
from harness.launch.crew import interruption
from harness.launch.processes import is_held, owner_of
from harness.launch.warm import WarmParents
from harness.records.collect import RESTARTED, LaunchOutcome, outcome_of_node
from harness.records.store import RECORD, write_atomically, write_once

NODE_FILE = "node_{}.txt"
"""In a run's folder: where a further node of the run began."""
PATIENCE_S = 900.0  # the first node predicts all entries before the first run
_POLL_S = 0.2


@dataclass(frozen=True)
class Follower:
    """A further node of a job. ``is_over``: the first node begins no further run. ``patience_s``: for a change."""

    folder: Path
    node_rank: int
    starter: str
    place: str
    is_over: Callable[[], bool]
    patience_s: float = PATIENCE_S

    def has_word(self, batch: Batch[Entry], runs: tuple[DueRun[Entry], ...]) -> bool:
        """Return whether the first node began a run, or will begin none."""
        return self.is_over() or not is_held(self.folder) or self.open_run(batch, runs) is not None

    def open_run(self, batch: Batch[Entry], runs: tuple[DueRun[Entry], ...]) -> DueRun[Entry] | None:
        """Return the run that the first node's current process began and that this node has not taken part in."""
        holder = owner_of(self.folder)
        for item in runs:
            run_dir = batch.planned(item).run_dir
            own = outcome_of_node(run_dir, self.node_rank)
            if not (run_dir / RECORD).exists() and not own.exists():
                owner = owner_of(run_dir)
                if owner is not None and owner == holder:
                    return item
        return None


def is_restarted(run_dir: Path, node_rank: int, place: str, starter: str) -> bool:
    """Note that this further node begins the run. If it did before, that is its outcome, and it must not take part."""
    path = run_dir / NODE_FILE.format(f"{node_rank:03d}")
    try:
        write_once(path, place)
    except FileExistsError:
        again = f"{RESTARTED} on {place}: node {node_rank} already began this run on {path.read_text()}"
        why = f"{starter}: {again}; mbr-perf does not continue half a run"
        write_atomically(outcome_of_node(run_dir, node_rank), LaunchOutcome(status="failed", reason=why))
        return True
    return False


Opened = Callable[[], tuple[Batch[Entry], tuple[DueRun[Entry], ...]]]
"""Reads the plan in the folder. Returns the batch, checked for this node, and every run that it may start."""


def follow(follower: Follower, mark: str, opened: Opened[Entry], shows: Shows) -> ExitCode:
    """Take part until the first node releases the folder. RunFailedError if that node does not begin or respond."""
    folder = follower.folder
    with interruption() as caught, ExitStack() as stack:

        def awaited(what: Callable[[], bool]) -> bool:
            """Wait for ``what``. False after a signal. RunFailedError when patience ends."""
            deadline = time.monotonic() + follower.patience_s
            while not what():
                if caught.signal is not None:
                    return False
                if time.monotonic() > deadline:
                    problem = f"node 0 has not started or finished a run for {follower.patience_s:g} s"
                    raise RunFailedError(f"{folder}: {problem}")
                time.sleep(_POLL_S)
            return True

        signal: int | None = None
        if awaited(lambda: (folder / mark).is_file() and is_held(folder)):
            batch, runs = opened()
            warm = all(batch.planned(item).launch.launcher == "torchrun" for item in runs)
            parents = stack.enter_context(WarmParents()) if warm else None
            progress = stack.enter_context(shows(len(runs)))
            while signal is None and awaited(lambda: follower.has_word(batch, runs)):
                item = follower.open_run(batch, runs)
                if item is None or follower.is_over():
                    break
                run_dir = batch.planned(item).run_dir
                if is_restarted(run_dir, follower.node_rank, follower.place, follower.starter):
                    continue
                ran = batch.run_here(item, run_dir, progress, parents, follower.node_rank)
                progress.finish(f"interrupted by {Signals(ran.signal).name}" if ran.signal else "done here")
                signal = ran.signal
        signal = signal or caught.signal
    return ExitCode.OK if signal is None else status_exit_code("interrupted", signal)
