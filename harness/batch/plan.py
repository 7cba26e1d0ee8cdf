"""A batch: many runs by one plan. What is due is worked out from the disk, so that a resumed batch equals an unbroken one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Generic, Literal, TypeVar

from harness.batch.launches import fresh_folder, nodes_of, understood_again
from harness.experiment.gpu import Frozen
from harness.experiment.software import Software
from harness.launch.environment import Host
from harness.launch.heartbeats import Progress
from harness.launch.plan import LaunchRequest
from harness.records.batches import BatchLaunch, PlannedEntry, Purpose, append_event
from harness.records.folders import full_disk_told
from harness.records.job import JobRun
from harness.run.launched import Following, Launch, Ran
from harness.run.machine import software_for
from harness.run.predicting.prediction import KeptPrediction, predicting
from harness.showing.progress import CellProgress

Entry = TypeVar("Entry", bound=PlannedEntry)
Lesson = tuple[str, str]
"""An entry that need not be tried any more, by its name, and why."""


@dataclass(frozen=True)
class DueRun(Generic[Entry]):
    """One run to be started: its number among the runs of the entry, from 0, what it is for, and why."""

    entry: Entry
    number: int
    purpose: Purpose = "repeat"
    reason: str = ""


@dataclass(frozen=True)
class PlannedRun:
    """What a plan says of one run. ``title``: how a person recognises it, e.g. ``mlp, run 2 of 3``.

    ``software``: what its entry was judged for; None where the machine that runs it judges it again.
    """

    run_dir: Path
    run_id: str
    title: str
    launch: BatchLaunch
    software: Software | None


@dataclass
class Batch(ABC, Generic[Entry]):
    """Runs of several entries by one plan, in one folder, which this process holds.

    ``command``: the command that resumes it. ``predicts``: a run without a planned prediction
    makes one. ``outlives_failed_starts``: a run that cannot be started is recorded as failed, and the others go on.
    """

    folder: Path
    host: Host
    command: ClassVar[Literal["run", "sweep", "nightly"]]
    predicts: ClassVar[bool] = False
    outlives_failed_starts: ClassVar[bool] = False

    @abstractmethod
    def due(self) -> Sequence[DueRun[Entry]]:
        """The next round, in the order of its starts; empty when every entry has what it needs."""

    @abstractmethod
    def planned(self, due: DueRun[Entry]) -> PlannedRun:
        """What the plan says of the run."""

    @abstractmethod
    def recorded(self, due: DueRun[Entry]) -> Path | None:
        """The recorded run that is replayed; None where none is."""

    @abstractmethod
    def ended(self, due: DueRun[Entry], ran: Ran) -> Sequence[Lesson]:
        """Take note of how the run ended; what it teaches about other entries."""

    def make_folder(self, due: DueRun[Entry]) -> Path:
        """The folder of the run, new; what a killed attempt left is moved aside."""
        return fresh_folder(self.planned(due).run_dir)

    def starts(self, due: DueRun[Entry]) -> None:
        """Write down that the run is about to start."""

    def interrupted(self, reason: str, due: DueRun[Entry] | None = None) -> None:
        """Write down that a signal ended the batch, maybe while a run was at work."""

    def cancelled(self, due: DueRun[Entry], reason: str) -> None:
        """Write down that someone cancelled the job of the run."""

    def out_of_time(self, due: Sequence[DueRun[Entry]], reason: str) -> None:
        """Write down that these runs were not started for lack of time."""

    def note(self, event: Frozen) -> None:
        """One more event. RunFailedError on a full disk."""
        with full_disk_told(self.folder):
            append_event(self.folder, event)

    def launch_of(self, due: DueRun[Entry], run_dir: Path, node_rank: int = 0) -> Launch:
        """The run as `mbr-perf run` understands a request. BadRequestError where its launch cannot be planned."""
        entry, planned = due.entry, self.planned(due)
        nodes = nodes_of(planned.launch, node_rank)
        settings = planned.launch.model_copy(update={"replay_from": self.recorded(due)})
        request = LaunchRequest(entry.spec, run_dir, self.host, nodes, settings)
        if planned.software is not None:
            understood = understood_again(entry, request, planned.software, entry.findings)
        else:
            here = Software() if settings.launcher == "replay" else software_for(entry.spec.gpu, self.host)[0]
            understood = understood_again(entry, request, here)
        return Launch(understood, run_dir, planned.run_id, nodes)

    def job_run(self, due: DueRun[Entry], task: int = 0) -> JobRun:
        """The run as a Slurm job takes it; ``task``: its index in an array."""
        entry, planned = due.entry, self.planned(due)
        return JobRun(
            run_dir=str(planned.run_dir),
            run_id=planned.run_id,
            spec=entry.spec,
            sources=entry.sources,
            notes=entry.notes,
            force=entry.force,
            task=task,
            prediction=entry.prediction,
            no_prediction=entry.no_prediction,
        )

    @contextmanager
    def prediction(self, due: DueRun[Entry], launch: Launch) -> Iterator[Callable[[int | None], KeptPrediction]]:
        """What the plan holds, else what can be predicted before or beside the run."""
        kept = KeptPrediction(due.entry.prediction, due.entry.no_prediction)
        if kept.prediction is not None or not self.predicts:
            yield lambda _: kept
            return
        with predicting(launch.understood, launch.nodes) as predicted:
            yield predicted

    def following(self, due: DueRun[Entry], launch: Launch, progress: CellProgress) -> Following:
        """Shows the steps of the run."""
        show = progress.start(self.planned(due).title, launch.understood.spec.measure.max_steps)
        return lambda _: _shown(lambda now: show(str(now.phase or "start"), now.step, now.last_step_s, now.eta_s))


@contextmanager
def _shown(tell: Callable[[Progress], None]) -> Iterator[Callable[[Progress], None]]:
    yield tell


Shows = Callable[[int], AbstractContextManager[CellProgress]]
"""Shows the progress of so many runs."""


def run_of(name: str, number: int, repeats: int) -> str:
    """``mlp, run 2 of 3``; the name alone where there is one run."""
    return f"{name}, run {number + 1} of {repeats}" if repeats > 1 else name


def now() -> str:
    """UTC, ISO-8601, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
