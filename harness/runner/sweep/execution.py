"""The runs of a sweep, one after the other: repeats interleaved, an OOM learned from, time and signals heeded."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGINT
from typing import Literal

from harness.launch.disk import full_disk_told
from harness.launch.environment import Host
from harness.launch.heartbeats import Progress
from harness.launch.interruption import Interruption, interruption
from harness.launch.warm import WarmParents
from harness.records.run import RunRecord, Status
from harness.records.sweep import PlannedCell, SweepEvent, SweepPlan
from harness.records.sweeps import append_event, read_events, run_dir_of
from harness.report.cell_progress import CellProgress
from harness.runner.fresh_folder import fresh_folder
from harness.runner.launched import Ran, launched
from harness.runner.prediction import KeptPrediction
from harness.runner.sweep.attempts import Place, committed
from harness.runner.sweep.launches import launch_of
from harness.runner.sweep.lines import run_line
from harness.runner.sweep.teaching import lessons
from harness.runner.understanding import Understood


@dataclass
class Sweeping:
    """A sweep at work in its folder. ``max_minutes`` is of this sitting; ``parents`` None starts every run afresh."""

    sweep_dir: Path
    plan: SweepPlan
    host: Host
    max_minutes: float | None
    parents: WarmParents | None
    _done: dict[Place, Status] = field(init=False)
    _taught: set[str] = field(init=False)
    _seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """What lies on disk counts; what an OOM taught is worked out again, for a kill may have come between."""
        found = committed(self.sweep_dir, self.plan)
        self._done = {place: record.status for place, record in found.items()}  # whole records would fill the memory
        self._taught = {event.cell for event in read_events(self.sweep_dir) if event.kind == "taught"}
        for place, record in found.items():
            self._learn(place, record)

    def due(self) -> tuple[Place, ...]:
        """Runs that are still to be done, in order: all cells, then all cells again. A bad run is not repeated."""
        bad = {place[0] for place, status in self._done.items() if status != "ok"}
        return tuple(
            (cell.index, repeat)
            for repeat in range(self.plan.repeats)
            for cell in self.plan.cells
            if cell.fate == "run" and cell.name not in self._taught and cell.index not in bad
            if (cell.index, repeat) not in self._done
        )

    def run_all(self, progress: CellProgress) -> int | None:
        """Until nothing is due, time is up, or a signal comes: that signal's number, else None."""
        began = time.monotonic()
        with interruption() as caught:
            while due := self.due():
                if caught.signal is not None:
                    return int(caught.signal)
                over = self._time_is_up(time.monotonic() - began)
                if over:
                    for name in dict.fromkeys(self.plan.cells[index].name for index, _ in due):
                        self._note("budget", name, over)
                    progress.say(over)
                    return None
                signal = self._run(due[0], progress, caught)
                if signal is not None:
                    return signal
        return None

    def _run(self, place: Place, progress: CellProgress, caught: Interruption) -> int | None:
        """One run. The signal that ended it, or that came beside it."""
        cell, began = self.plan.cells[place[0]], time.monotonic()
        ran = self._launched(place, cell, progress)
        self._seconds.append(time.monotonic() - began)
        progress.finish(run_line(ran.record))
        signal = ran.signal or (int(caught.signal) if caught.signal is not None else None)
        if ran.record.status == "interrupted":
            self._note("interrupted", cell.name, ran.record.failure or "interrupted")
            return signal or int(SIGINT)
        self._done[place] = ran.record.status
        for name, why in self._learn(place, ran.record):
            progress.say(f"  {name} is not tried: {why}")
        return signal

    def _launched(self, place: Place, cell: PlannedCell, progress: CellProgress) -> Ran:
        run_dir = fresh_folder(run_dir_of(self.sweep_dir, *place))
        launch = launch_of(self.plan, place, self.host, run_dir)
        repeat = f", run {place[1] + 1} of {self.plan.repeats}" if self.plan.repeats > 1 else ""
        show = progress.start(f"{cell.name}{repeat}", launch.understood.spec.measure.max_steps)

        @contextmanager
        def following(_: Understood) -> Iterator[Callable[[Progress], None]]:
            def tell(now: Progress) -> None:
                show(str(now.phase or "start"), now.step, now.last_step_s, now.eta_s)

            yield tell

        @contextmanager
        def foretelling() -> Iterator[Callable[[int | None], KeptPrediction]]:
            yield lambda _: KeptPrediction(cell.prediction, cell.no_prediction)

        return launched(launch, progress=following, prediction=foretelling, parents=self.parents)

    def _learn(self, place: Place, record: RunRecord) -> tuple[tuple[str, str], ...]:
        """Prune what an OOM shows to be hopeless, and log it; cells that have run already stand for themselves."""
        if record.status != "oom" or not self.plan.prune:
            return ()
        cell, ran = self.plan.cells[place[0]], {index for index, _ in self._done}
        open_cells = [
            other
            for other in self.plan.cells
            if other.fate == "run" and other.index not in ran and other.name not in self._taught
        ]
        learned = tuple((other.name, why) for other, why in lessons(cell, record, open_cells))
        for name, why in learned:
            self._taught.add(name)
            self._note("taught", name, why, by=cell.name)
        return learned

    def _time_is_up(self, elapsed_s: float) -> str:
        """Why no further run is started; empty where there is time. A run is expected to take as long as those before."""
        if self.max_minutes is None:
            return ""
        expected = sum(self._seconds) / len(self._seconds) if self._seconds else 0.0
        if elapsed_s + expected <= self.max_minutes * 60:
            return ""
        return (
            f"--max_minutes {self.max_minutes:g}: {elapsed_s / 60:.1f} minutes are over, "
            f"and a run takes about {expected / 60:.1f}"
        )

    def _note(
        self, kind: Literal["taught", "budget", "interrupted"], cell: str, reason: str, by: str | None = None
    ) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with full_disk_told(self.sweep_dir):
            append_event(self.sweep_dir, SweepEvent(time=now, kind=kind, cell=cell, reason=reason, by=by))
