"""Supervises a launch from start to end, with its sampler and peers."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError

from harness.errors import BadRequestError
from harness.launch.crew import Crew, Interruption, interruption
from harness.launch.heartbeats import UNENDED, Heartbeats, Progress, verdict
from harness.launch.plan import LaunchPlan
from harness.launch.processes import adopt_orphans
from harness.launch.warm import WarmParents, start_agent, start_process, started_afresh
from harness.records import disk
from harness.records.collect import AgentRecord, LaunchOutcome
from harness.records.launch import Child, ended_how
from harness.records.store import write_atomically
from harness.records.strict_json import read_document

# The time for this node's ranks to notice the loss and record their own errors; NCCL would wait ten minutes.
GRACE_S = 10.0


def lost_peer(plan: LaunchPlan, fallen: dict[int, float], now: float, grace_s: float = GRACE_S) -> str:
    """Say that another node has been gone for longer than the grace; else empty. ``fallen``: since when, by node."""
    for node in set(range(plan.rendezvous.nnodes)) - {plan.rendezvous.node_rank}:
        outcome = ended_badly(plan.outcome_file(node))
        if outcome is not None and now - fallen.setdefault(node, now) >= grace_s:
            return f"node {node} ended {grace_s:g} s earlier: {outcome.reason or outcome.status}"
    return ""


def ended_badly(path: Path) -> LaunchOutcome | None:
    """Return the outcome of a node that failed; None while it runs, if it ended well, or if its file is unreadable."""
    with suppress(BadRequestError):
        outcome = read_document(path, LaunchOutcome) if path.is_file() else None
        return outcome if outcome and outcome.status != "ok" else None
    return None


START_S = 10.0
STOP_S = 5.0
SAMPLING_POLL_S = 0.02


@contextmanager
def sampling(plan: LaunchPlan, caught: Interruption) -> Iterator[Callable[[], str | None]]:
    """Run the sampler around the ranks. Yields what ends it and says why it stopped early; None if it did not."""
    if plan.sampler is None or plan.sampler_file is None:
        yield lambda: None
        return
    plan.sampler_file.unlink(missing_ok=True)
    sampler = start_process(plan, plan.sampler, plan.sampler_log)
    try:
        deadline = time.monotonic() + START_S
        while not plan.sampler_file.exists() and sampler.poll() is None and time.monotonic() < deadline:
            if caught.signal is not None:
                break
            time.sleep(SAMPLING_POLL_S)
        yield lambda: _unwatched(sampler, plan)
    finally:
        _stop_sampler(sampler)


def _unwatched(sampler: subprocess.Popen[bytes], plan: LaunchPlan) -> str | None:
    """Say why the sampler stopped early. Without NVML it ends well at once, and its file gives the reason."""
    code = sampler.poll()
    if code is None:
        if _stop_sampler(sampler):
            return None
        how = f"hung: it did not end within {STOP_S:g} s"
    elif code:
        how = ended_how(code)
    else:
        return None
    return f"the GPUs were not sampled to the end: the sampler {how}; see logs/{plan.sampler_log.name}"


def _stop_sampler(sampler: subprocess.Popen[bytes]) -> bool:
    """Terminate the sampler. Return False if it did not end, stuck in the driver or stopped, and had to be killed."""
    sampler.terminate()
    try:
        sampler.wait(STOP_S)
    except subprocess.TimeoutExpired:
        sampler.kill()
        sampler.wait()
        return False
    return True


POLL_S = 0.1
LOOK_EVERY_S = 2.0  # a node may have thousands of processes, and its cores are the ranks'

OnProgress = Callable[[Progress], None]


def supervise(plan: LaunchPlan, on_progress: OnProgress, parents: WarmParents | None = None) -> LaunchOutcome:
    """Start the plan and return when nothing of it runs any more; ``ranks/outcome.json`` says the same.

    With ``parents`` the agent is forked from a warm one; where that cannot be, it is started afresh, with a note.
    ``on_progress`` is called from this thread whenever ranks have said something. RunFailedError before the start if
    the disk is full or a folder of the run is not writable, and after the start if a folder of the run is deleted; all
    ranks are then stopped.
    """
    for folder in _folders(plan):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o750)  # without parents: a deleted run folder is not made again
        disk.require_kept(folder)
        disk.require_room(folder, disk.free_bytes(folder))
        disk.require_writable(folder)
    adopt_orphans()
    with interruption() as caught, sampling(plan, caught) as unwatched:
        outcome = _attempt(plan, on_progress, caught, parents)
        outcome = outcome.model_copy(update={"unwatched": unwatched()})
    return _write_outcome(plan, outcome)


def _folders(plan: LaunchPlan) -> tuple[Path, Path]:
    return plan.run_dir / "ranks", plan.run_dir / "logs"


def _attempt(
    plan: LaunchPlan, on_progress: OnProgress, caught: Interruption, parents: WarmParents | None
) -> LaunchOutcome:
    """Run once; start afresh if a forked agent finds that it must not fork ranks, before the run has begun."""
    outcome = _once(plan, on_progress, caught, parents)
    agent = outcome.agent
    if agent is None or agent.status != "unforkable" or caught.signal is not None:
        return outcome
    afresh = _once(plan, on_progress, caught, None)
    return afresh.model_copy(update={"notes": (*afresh.notes, started_afresh(agent.error or "it may not fork"))})


def _once(
    plan: LaunchPlan, on_progress: OnProgress, caught: Interruption, parents: WarmParents | None
) -> LaunchOutcome:
    plan.agent_file.unlink(missing_ok=True)
    began = time.monotonic()
    started = start_agent(plan, caught, parents)
    if started is None:
        assert caught.signal is not None
        reason, seconds = f"interrupted by {caught.signal.name} before anything ran", round(time.monotonic() - began, 3)
        return LaunchOutcome(status="interrupted", seconds=seconds, signal=int(caught.signal), reason=reason)
    launched, notes = started
    crew, heartbeats = Crew(launched), Heartbeats(plan.run_dir, plan.ranks, plan.num_steps, time.monotonic())
    try:
        stop = _follow(plan, crew, heartbeats, on_progress, caught)
        if stop is not None and (stop.status in ("hang", "timeout") or stop.notes):
            crew.show_stacks()
        if stop is not None:
            crew.terminate(caught)
    finally:
        crew.kill()
    disk.require_kept(*_folders(plan))
    outcome = _outcome(plan, crew, stop, time.monotonic() - began, caught)
    notes += stop.notes if stop else ()
    return outcome.model_copy(update={"warm": isinstance(launched, Child), "notes": notes})


def _follow(
    plan: LaunchPlan, crew: Crew, heartbeats: Heartbeats, on_progress: OnProgress, caught: Interruption
) -> LaunchOutcome | None:
    """Follow the agent until it ends by itself (None), or until there is a reason to stop it."""
    looked = now = heartbeats.began
    gone = dict[int, float]()
    while crew.agent.poll() is None:
        now = time.monotonic()
        if heartbeats.read(now):
            on_progress(heartbeats.progress())
        if now - looked > LOOK_EVERY_S:
            crew.look()
            looked = now
            fallen = lost_peer(plan, gone, now)
            if not fallen and not all(folder.is_dir() for folder in _folders(plan)):
                fallen = "a folder of the run was deleted"
            if fallen:
                return LaunchOutcome(status="failed", reason=fallen)
        stop = _reason_to_stop(plan, heartbeats, now, caught)
        if stop is not None:
            return stop
        time.sleep(POLL_S)
    if heartbeats.read(now):
        on_progress(heartbeats.progress())
    return None


def _interrupted(caught: Interruption) -> LaunchOutcome | None:
    if caught.signal is None:
        return None
    why = f"interrupted by {caught.signal.name}"
    return LaunchOutcome(status="interrupted", reason=why, signal=int(caught.signal))


def _reason_to_stop(plan: LaunchPlan, heartbeats: Heartbeats, now: float, caught: Interruption) -> LaunchOutcome | None:
    if interrupted := _interrupted(caught):
        return interrupted
    elapsed = now - heartbeats.began
    stop = heartbeats.silence(now, plan.settings.hang_timeout_s)
    if plan.settings.timeout_s is not None and elapsed > plan.settings.timeout_s:
        why = f"not finished after {elapsed:.0f} s (limit {plan.settings.timeout_s:g} s)"
        stop = LaunchOutcome(status="timeout", reason=why)
    if stop is None or heartbeats.progress().phase != "finish":
        return stop
    records = (plan.run_dir / "ranks" / f"rank_{rank:03d}.json" for rank in plan.ranks)
    return LaunchOutcome(status="ok", notes=(UNENDED,)) if all(path.is_file() for path in records) else stop


def _outcome(
    plan: LaunchPlan, crew: Crew, stop: LaunchOutcome | None, seconds: float, caught: Interruption
) -> LaunchOutcome:
    agent, unreadable = None, "left no record"
    if plan.agent_file.is_file():
        try:
            agent = AgentRecord.model_validate_json(plan.agent_file.read_text())
        except ValidationError as error:
            unreadable = f"left a record that cannot be read: {error.errors()[0]['msg']}"
    exit_code = crew.agent.wait()
    if stop is None and agent is not None and agent.status == "signalled":
        stop = _interrupted(caught)  # Slurm signals the agent, too, and the agent may end first
    if stop is None:
        stop = verdict(agent, exit_code, unreadable)
    full = stop.status != "ok" and any(disk.free_bytes(folder) < disk.FULL_BYTES for folder in _folders(plan))
    how = {"exit_code": exit_code, "agent": agent, "seconds": round(seconds, 3), "num_killed": crew.num_killed}
    return stop.model_copy(update=how | ({"disk_full": True, "reason": f"disk full; {stop.reason}"} if full else {}))


def _write_outcome(plan: LaunchPlan, outcome: LaunchOutcome) -> LaunchOutcome:
    try:
        write_atomically(plan.outcome_file(), outcome)
    except OSError as error:
        if not disk.is_full_error(error):
            raise
        reason = outcome.reason if outcome.disk_full else f"disk full; {outcome.reason or 'the outcome is not on disk'}"
        return outcome.model_copy(update={"disk_full": True, "reason": reason})
    return outcome
