"""Run a torchrun plan to its end: start it, follow it, stop it when it hangs or is interrupted, say how it went."""

import time
from collections.abc import Callable
from pathlib import Path

from harness.launch import disk
from harness.launch.crew import Crew
from harness.launch.heartbeats import Heartbeats, Progress
from harness.launch.interruption import Interruption, interruption
from harness.launch.peers import Peers
from harness.launch.plan import LaunchPlan
from harness.launch.processes import adopt_orphans
from harness.launch.sampling import sampling
from harness.launch.starting import start_agent, started_afresh
from harness.launch.verdict import UNENDED, Ending, hang, port_was_taken, read_agent_record, verdict
from harness.launch.warm import WarmParents
from harness.records.atomic import write_atomically
from harness.records.launch import LaunchOutcome

POLL_S = 0.2
LOOK_EVERY_S = 1.0

OnProgress = Callable[[Progress], None]


def supervise(plan: LaunchPlan, on_progress: OnProgress, parents: WarmParents | None = None) -> LaunchOutcome:
    """Start the plan and return when nothing of it runs any more; ``ranks/outcome.json`` says the same.

    With ``parents`` the agent is forked from a warm one; where that cannot be, it is started afresh and a note says why.

    ``on_progress`` is called from this thread whenever ranks have said something. A port that was taken meanwhile is
    retried once with another, if this program chose it. RunFailedError: no room on the disk, nothing was started.
    """
    _prepare(plan)
    adopt_orphans()
    with interruption() as caught, sampling(plan, caught) as unwatched:
        outcome = _attempt(plan, on_progress, caught, parents)
        if plan.rendezvous.chosen_port and port_was_taken(outcome) and caught.signal is None:
            outcome = _attempt(plan.with_new_port(), on_progress, caught, parents)
        outcome = outcome.model_copy(update={"unwatched": unwatched()})
    return _write_outcome(plan, outcome)


def _prepare(plan: LaunchPlan) -> None:
    for folder in _folders(plan):
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        disk.require_room(folder, disk.free_bytes(folder))


def _folders(plan: LaunchPlan) -> tuple[Path, Path]:
    """What ranks write to; either may be a file system of its own."""
    return plan.run_dir / "ranks", plan.run_dir / "logs"


def _attempt(
    plan: LaunchPlan, on_progress: OnProgress, caught: Interruption, parents: WarmParents | None
) -> LaunchOutcome:
    """Afresh after all where a forked agent finds that it may not fork ranks: nothing of the run has begun then."""
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
        return _never_started(caught, time.monotonic() - began)
    crew = Crew(started.agent)
    try:
        stop = _follow(plan, crew, on_progress, caught)
        if stop is not None and (stop.status in ("hang", "timeout") or stop.note):
            crew.show_stacks()
        if stop is not None:
            crew.terminate(caught)
    finally:
        crew.kill()
    outcome = _outcome(plan, crew, stop, time.monotonic() - began)
    notes = (*started.notes, *([stop.note] if stop and stop.note else []))
    return outcome.model_copy(update={"warm": started.warm, "notes": notes})


def _never_started(caught: Interruption, seconds: float) -> LaunchOutcome:
    assert caught.signal is not None
    reason = f"interrupted by {caught.signal.name} before anything ran"
    return LaunchOutcome(status="interrupted", seconds=round(seconds, 3), signal=int(caught.signal), reason=reason)


def _follow(plan: LaunchPlan, crew: Crew, on_progress: OnProgress, caught: Interruption) -> Ending | None:
    """Until the agent ends by itself (None), or a reason to stop it comes up."""
    began = now = time.monotonic()
    heartbeats = Heartbeats(plan.run_dir, plan.ranks, plan.num_steps, began)
    peers, looked = Peers(plan), began
    while crew.agent.poll() is None:
        now = time.monotonic()
        if heartbeats.read(now):
            on_progress(heartbeats.progress(now))
        if now - looked > LOOK_EVERY_S:
            crew.keep_looking()
            looked = now
            fallen = peers.reason_to_stop(now)
            if fallen:
                return Ending("failed", fallen)
        stop = _reason_to_stop(plan, heartbeats, now, caught)
        if stop is not None:
            return stop
        crew.wait(POLL_S)
    if heartbeats.read(now):
        on_progress(heartbeats.progress(now))
    return None


def _reason_to_stop(plan: LaunchPlan, heartbeats: Heartbeats, now: float, caught: Interruption) -> Ending | None:
    if caught.signal is not None:
        return Ending("interrupted", f"interrupted by {caught.signal.name}", signal=int(caught.signal))
    elapsed = now - heartbeats.began
    stop: Ending | None = None
    if plan.timeout_s is not None and elapsed > plan.timeout_s:
        stop = Ending("timeout", f"not finished after {elapsed:.0f} s (limit {plan.timeout_s:g} s)")
    elif (silence := heartbeats.silence(now, plan.hang_timeout_s)) is not None:
        stop = hang(silence)
    if stop is None or heartbeats.progress(now).phase != "finish":
        return stop
    return UNENDED if all(path.is_file() for path in plan.rank_files) else stop


def _outcome(plan: LaunchPlan, crew: Crew, stop: Ending | None, seconds: float) -> LaunchOutcome:
    agent, unreadable = read_agent_record(plan.agent_file)
    exit_code = crew.agent.wait()
    if stop is None:
        stop = verdict(agent, exit_code, unreadable)
    full = stop.status != "ok" and any(disk.is_full(disk.free_bytes(folder)) for folder in _folders(plan))
    return LaunchOutcome(
        status=stop.status,
        exit_code=exit_code,
        agent=agent,
        seconds=round(seconds, 3),
        signal=stop.signal,
        rank=stop.rank,
        reason=f"disk full; {stop.reason}" if full else stop.reason or None,
        disk_full=full,
        num_killed=crew.num_killed,
    )


def _write_outcome(plan: LaunchPlan, outcome: LaunchOutcome) -> LaunchOutcome:
    try:
        write_atomically(plan.outcome_file, outcome.model_dump_json(indent=1) + "\n")
    except OSError as error:
        if not disk.says_full(error):
            raise
        told = outcome.reason if outcome.disk_full else f"disk full; {outcome.reason or 'the outcome is not on disk'}"
        return outcome.model_copy(update={"disk_full": True, "reason": told})
    return outcome
