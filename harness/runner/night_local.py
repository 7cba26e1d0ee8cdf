"""Rounds of a night on this machine: one run after the other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from signal import SIGINT

from harness.launch.heartbeats import Progress
from harness.launch.interruption import Interruption, interruption
from harness.launch.warm import WarmParents
from harness.report.cell_progress import CellProgress
from harness.runner.fresh_folder import fresh_folder
from harness.runner.launched import Launch, Ran, launched
from harness.runner.night_launches import launch_of
from harness.runner.night_rounds import DueRun, NightAtWork, note_interrupted, note_started
from harness.runner.prediction import KeptPrediction, predicting
from harness.runner.sweep_lines import run_line
from harness.runner.understanding import Understood


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
        launch = launch_of(self.night, due)
        note_started(self.night.night_dir, due)
        fresh_folder(launch.run_dir)
        show = progress.start(due.title, launch.understood.spec.measure.max_steps)

        @contextmanager
        def following(_: Understood) -> Iterator[Callable[[Progress], None]]:
            def tell(now: Progress) -> None:
                show(str(now.phase or "start"), now.step, now.last_step_s, now.eta_s)

            yield tell

        ran = launched(launch, progress=following, prediction=lambda: _predicting(due, launch), parents=self.parents)
        progress.finish(run_line(ran.record))
        return ran


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
