"""Plays a batch in rounds of due runs until nothing is due, or a signal comes."""

import fcntl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT
from typing import Generic

from harness.batch.batch import Batch, DueRun, Entry, Shows
from harness.batch.launches import fresh_folder, unstarted_record
from harness.errors import BadRequestError, HarnessError, RunFailedError
from harness.experiment.frozen import Frozen
from harness.judge.derive import derive
from harness.launch.crew import Interruption, interruption
from harness.launch.processes import claim, life_of, release
from harness.launch.warm import WarmParents
from harness.measure.launched import Ran
from harness.records.batches import BatchFolders
from harness.records.disk import deleted, disk_faults_reported, disk_full, is_full_error
from harness.records.metrics import BY_NAME
from harness.records.run import RunRecord
from harness.records.store import write_record
from harness.show.figures import figure
from harness.show.progress import CellProgress
from harness.units import command_text, first_line

_SHOWN = ("step_time_s", "peak_allocated_bytes")


Round = Callable[[Sequence[DueRun[Entry]]], int | None]
"""Does runs, here or as jobs, and returns the signal that ended the round. Then each has a ``record.json``.

It calls `Batch.starts` before each run, and starts no further run of an entry after a run of it that ended badly. A run
without a record is due again. If a round commits nothing, the batch ends; it can be resumed.
"""


def play(batch: Batch[Entry], do_round: Round[Entry]) -> int | None:
    """Do rounds until nothing is due, a round gets nothing done, or a signal comes, whose number it returns."""
    before: Sequence[DueRun[Entry]] | None = None
    with interruption() as caught:
        while (due := batch.due()) and due != before:
            if caught.signal is not None:
                batch.interrupted("a signal between two rounds")
                return caught.signal
            signal = do_round(due)
            if signal is not None:
                return signal
            before = due
    return None


def play_here(batch: Batch[Entry], progress: Shows, *, is_warm: bool) -> int | None:
    """Play the batch on this machine. ``is_warm``: runs start from warm parents. Returns the same as `play`."""
    with WarmParents() if is_warm else nullcontext() as parents:
        return play(batch, LocalRuns(batch, progress, parents).run)


@contextmanager
def begun(folders: BatchFolders, folder: Path, plan: Frozen) -> Iterator[None]:
    """Write the plan of a new batch; inside the block this process holds its folder."""
    with holding(folder, folders.what):
        folders.write_plan(folder, plan)
        yield


@dataclass
class LocalRuns(Generic[Entry]):
    """Does rounds on this machine. ``parents`` None starts every run afresh."""

    batch: Batch[Entry]
    progress: Shows
    parents: WarmParents | None = None

    def run(self, due: Sequence[DueRun[Entry]]) -> int | None:
        """Run one after the other. A signal ends the round."""
        closed: dict[str, str] = {}
        with self.progress(len(due)) as progress, interruption() as caught:
            for item in due:
                if (signal := _received(caught)) is not None:
                    return signal
                if item.entry.name in closed:
                    progress.finish(f"{self.batch.planned(item).title}: not started, {closed[item.entry.name]}")
                    continue
                ran = self._run_one(item, progress)
                signal = ran.signal or _received(caught)
                for name, why in self.batch.ended(item, ran):
                    progress.note(f"  {name}: skipped, {why}")
                    closed[name] = "because it would run out of memory"
                if ran.record.status == "interrupted":
                    self.batch.interrupted(ran.record.failure or "interrupted", item)
                    return signal or SIGINT
                if signal is not None:
                    return signal
                if ran.record.status != "ok":
                    closed[item.entry.name] = "because an earlier run of it failed"
        return None

    def _run_one(self, due: DueRun[Entry], progress: CellProgress) -> Ran:
        self.batch.starts(due)
        run_dir = fresh_folder(self.batch.planned(due).run_dir)
        try:
            ran = self.batch.run_here(due, run_dir, progress, self.parents)
        except HarnessError as error:
            if not self.batch.outlives_failed_starts:
                raise
            ran = Ran(self._unstarted(due, error), run_dir, None)
        progress.finish(run_line(ran.record))
        return ran

    def _unstarted(self, due: DueRun[Entry], error: HarnessError) -> RunRecord:
        """Commit a failed run, so that the others still run. RunFailedError as in :func:`disk_faults_reported`."""
        run, software = self.batch.job_run(due), self.batch.planned(due).software
        record = unstarted_record(run, str(error), self.batch.host, software)
        with disk_faults_reported(Path(run.run_dir)):
            write_record(Path(run.run_dir), record)
        return record


def _received(caught: Interruption) -> int | None:
    return caught.signal


def run_line(record: RunRecord) -> str:
    """``ok: 213 ms per step, 152 MiB allocated``, or what went wrong."""
    if record.status != "ok":
        return f"{record.status.replace('oom', 'out of memory')}: {first_line(record.failure, 'no failure recorded')}"
    metrics = derive(record)
    step, peak = (figure(BY_NAME[name], BY_NAME[name].read(metrics)) for name in _SHOWN)
    return f"ok: {step} per step, {peak} allocated"


_LOCK = ".lock"
_COMMANDS = {"sweep": "sweep", "night": "nightly", "bisect": "bisect"}


@contextmanager
def holding(folder: Path, what: str) -> Iterator[None]:
    """Lock ``folder`` while the block runs. BadRequestError if another process holds it or it cannot be written."""
    try:
        opened = (folder / _LOCK).open("a")
    except OSError as error:
        raise _not_writable(folder, what, error) from error
    then = f"mbr-perf stopped the {what}"
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadRequestError(
                f"{folder}: the {what} is still running: {life_of(folder).reason}",
                remedy="wait until it ends, or stop it with Ctrl-C",
            ) from error
        try:
            claim(folder)
        except OSError as error:
            raise _not_writable(folder, what, error) from error
        try:
            with disk_faults_reported(folder, then):
                yield
        except BadRequestError as error:
            # A clean-up job and a run that still writes: the folder can be there again, without its plan.
            if not (folder / _LOCK).exists():
                raise deleted(folder, then) from error
            raise
        except RunFailedError as error:
            if (folder / _LOCK).exists() and "--resume" not in error.remedy:
                error.remedy += f"\n  to continue then: {command_text(_COMMANDS[what], '--resume', folder)}"
            raise
        finally:
            release(folder)


def _not_writable(folder: Path, what: str, error: OSError) -> HarnessError:
    if is_full_error(error):
        return disk_full(folder, folder / _LOCK)
    return BadRequestError(
        f"{folder}: cannot run the {what}: {error.strerror}: {error.filename or _LOCK}",
        remedy="make the folder writable, or copy it to a writable place",
    )
