"""Rounds of a night on this machine: one run after the other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT

from harness.errors import HarnessError
from harness.launch.disk import full_disk_told
from harness.launch.heartbeats import Progress
from harness.launch.interruption import Interruption, interruption
from harness.launch.warm import WarmParents
from harness.records.nights import run_dir_of
from harness.records.run import RunRecord
from harness.records.store import write_record
from harness.report.cell_progress import CellProgress
from harness.runner.fresh_folder import fresh_folder
from harness.runner.launched import Launch, Ran, launched
from harness.runner.night.launches import job_run, launch_of, software_of
from harness.runner.night.rounds import DueRun, NightAtWork, note_interrupted, note_started
from harness.runner.prediction import KeptPrediction, predicting
from harness.runner.sweep.lines import run_line
from harness.runner.understanding import Understood
from harness.runner.unstarted import unstarted_record


@dataclass(frozen=True)
class LocalRounds:
    """A `RoundRunner`. ``progress`` shows a round of so many runs; ``parents`` None starts every run afresh."""

    night: NightAtWork
    progress: Callable[[int], AbstractContextManager[CellProgress]]
    parents: WarmParents | None = None

    def run(self, due: Sequence[DueRun]) -> int | None:
        """One after the other; a signal ends the round."""
        bad: set[str] = set()
        with self.progress(len(due)) as progress, interruption() as caught:
            for one in due:
                if (signal := _received(caught)) is not None:
                    return signal
                if one.case.name in bad:
                    progress.finish(f"{one.title}: not started, for one before it did not end well")
                    continue
                ran = self._one(one, progress)
                signal = ran.signal or _received(caught)
                if ran.record.status == "interrupted":
                    note_interrupted(self.night.night_dir, ran.record.failure or "interrupted", one)
                    return signal or int(SIGINT)
                if signal is not None:
                    return signal
                if ran.record.status != "ok":
                    bad.add(one.case.name)
        return None

    def _one(self, due: DueRun, progress: CellProgress) -> Ran:
        run_dir = run_dir_of(self.night.night_dir, due.case.name, due.number)
        note_started(self.night.night_dir, due)
        fresh_folder(run_dir)
        try:
            ran = self._launched(launch_of(self.night, due), due, progress)
        except HarnessError as error:
            ran = Ran(self._unstarted(due, error), run_dir, None)
        progress.finish(run_line(ran.record))
        return ran

    def _unstarted(self, due: DueRun, error: HarnessError) -> RunRecord:
        """Commit a failed run: what keeps one case from starting must not keep the others. RunFailedError: disk full."""
        run, software = job_run(self.night, due), software_of(self.night.plan, due.case)
        record = unstarted_record(run, str(error), host=self.night.host, software=software)
        with full_disk_told(Path(run.run_dir)):
            write_record(Path(run.run_dir), record)
        return record

    def _launched(self, launch: Launch, due: DueRun, progress: CellProgress) -> Ran:
        show = progress.start(due.title, launch.understood.spec.measure.max_steps)

        @contextmanager
        def following(_: Understood) -> Iterator[Callable[[Progress], None]]:
            def tell(now: Progress) -> None:
                show(str(now.phase or "start"), now.step, now.last_step_s, now.eta_s)

            yield tell

        return launched(launch, progress=following, prediction=lambda: _predicting(due, launch), parents=self.parents)


def _received(caught: Interruption) -> int | None:
    return int(caught.signal) if caught.signal is not None else None


@contextmanager
def _predicting(due: DueRun, launch: Launch) -> Iterator[Callable[[int | None], KeptPrediction]]:
    """What the plan holds, else what can be predicted before or beside the run."""
    if due.case.prediction is not None:
        kept = KeptPrediction(due.case.prediction)
        yield lambda _: kept
        return
    with predicting(launch.understood, launch.nodes) as foretold:
        yield foretold
