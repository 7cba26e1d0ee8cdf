"""A further node of a sweep: it takes part in every run that the first node starts in the shared folder."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM, Signals

from harness.errors import ExitCode, RunFailedError
from harness.launch.environment import Host, this_host
from harness.launch.heartbeats import Progress
from harness.launch.interruption import interruption
from harness.launch.ownership import is_held, owner_of
from harness.launch.warm import WarmParents
from harness.records.store import RECORD
from harness.records.strict_json import read_document
from harness.records.sweep import SweepPlan
from harness.records.sweeps import SWEEP, run_dir_of
from harness.report.cell_progress import CellProgress
from harness.runner.launched import launched
from harness.runner.prediction import KeptPrediction
from harness.runner.sweep.attempts import Place
from harness.runner.sweep.launches import Meeting, launch_of, meeting_at, require_startable
from harness.runner.sweep.showing import SweepDisplay
from harness.runner.understanding import Understood

PATIENCE_S = 900.0  # the first node predicts all cells before the first run
_POLL_S = 0.2


@dataclass(frozen=True)
class Follower:
    """Which node this is, where the sweep lies, and how long nothing may happen there.

    ``settle_s``: how long a claim that is found may be that of a process killed long ago; node 0 then renews it.
    """

    sweep_dir: Path
    node_rank: int
    meeting: Meeting = field(default_factory=Meeting)
    is_warm: bool = True
    patience_s: float = PATIENCE_S
    settle_s: float = 0.0


def follow_sweep(follower: Follower, display: SweepDisplay) -> ExitCode:
    """Take part until the first node lets go of the sweep; its answer is the answer.

    RunFailedError where the first node does not begin, or falls silent. BadRequestError where this node cannot take part.
    """
    host, sweep_dir = this_host(), follower.sweep_dir
    with interruption() as caught:

        def awaited(what: Callable[[], bool]) -> bool:
            """Whether it came to pass; False after a signal. RunFailedError when patience ends."""
            deadline = time.monotonic() + follower.patience_s
            while not what():
                if caught.signal is not None:
                    return False
                if time.monotonic() > deadline:
                    raise RunFailedError(f"{sweep_dir}: node 0 has done nothing for {follower.patience_s:g} s")
                time.sleep(_POLL_S)
            return True

        signal: int | None = None
        found, looked = owner_of(sweep_dir), time.monotonic()
        awaited(lambda: owner_of(sweep_dir) != found or time.monotonic() - looked >= follower.settle_s)
        if awaited(lambda: (sweep_dir / SWEEP).is_file() and is_held(sweep_dir)):
            plan = meeting_at(read_document(sweep_dir / SWEEP, SweepPlan), follower.meeting)
            require_startable(plan, host, follower.node_rank)
            signal = _take_part(follower, plan, host, display, awaited)
        signal = signal or (int(caught.signal) if caught.signal is not None else None)
    if signal is None:
        return ExitCode.OK
    return ExitCode.TERMINATED if signal == SIGTERM else ExitCode.INTERRUPTED


def _take_part(
    follower: Follower,
    plan: SweepPlan,
    host: Host,
    display: SweepDisplay,
    awaited: Callable[[Callable[[], bool]], bool],
) -> int | None:
    """Every run that is open, until the sweep is let go. The signal that ended one."""
    with ExitStack() as stack:
        warm = follower.is_warm and plan.launch.launcher == "torchrun"
        parents = stack.enter_context(WarmParents()) if warm else None
        progress = stack.enter_context(display.progress(plan.repeats * sum(cell.fate == "run" for cell in plan.cells)))
        while awaited(lambda: _open(follower, plan) is not None or not is_held(follower.sweep_dir)):
            place = _open(follower, plan)
            if place is None:
                return None
            signal = _run(follower, plan, place, host, progress, parents)
            if signal is not None:
                return signal
    return None


def _open(follower: Follower, plan: SweepPlan) -> Place | None:
    """The run that the first node has begun in this sitting and that this node has not taken part in."""
    holder = owner_of(follower.sweep_dir)
    for repeat in range(plan.repeats):
        for cell in plan.cells:
            run_dir = run_dir_of(follower.sweep_dir, cell.index, repeat)
            own = run_dir / "ranks" / f"outcome_node_{follower.node_rank:03d}.json"
            if cell.fate == "run" and not (run_dir / RECORD).exists() and not own.exists():
                owner = owner_of(run_dir)
                if owner is not None and owner == holder:
                    return cell.index, repeat
    return None


def _run(
    follower: Follower,
    plan: SweepPlan,
    place: Place,
    host: Host,
    progress: CellProgress,
    parents: WarmParents | None,
) -> int | None:
    cell, run_dir = plan.cells[place[0]], run_dir_of(follower.sweep_dir, *place)
    launch = launch_of(plan, place, host, run_dir, follower.node_rank)
    show = progress.start(cell.name, launch.understood.spec.measure.max_steps)

    @contextmanager
    def following(_: Understood) -> Iterator[Callable[[Progress], None]]:
        yield lambda now: show(str(now.phase or "start"), now.step, now.last_step_s, now.eta_s)

    @contextmanager
    def foretelling() -> Iterator[Callable[[int | None], KeptPrediction]]:
        yield lambda _: KeptPrediction(cell.prediction, cell.no_prediction)

    ran = launched(launch, progress=following, prediction=foretelling, parents=parents)
    progress.finish(f"interrupted by {Signals(ran.signal).name}" if ran.signal else "done here")
    return ran.signal
