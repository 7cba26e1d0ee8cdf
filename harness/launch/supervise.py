"""Run a torchrun plan to its end: start it, follow it, stop it when it hangs or is interrupted, say how it went."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.launch import disk
from harness.launch.crew import Agent, Crew
from harness.launch.heartbeats import Heartbeats, Progress
from harness.launch.interruption import Interruption, interruption
from harness.launch.plan import LaunchPlan
from harness.launch.processes import adopt_orphans
from harness.launch.verdict import Ending, hang, port_was_taken, read_agent_record, verdict
from harness.launch.warm import WarmParents
from harness.launch.warm_process import Refused, environment
from harness.records.atomic import write_atomically
from harness.records.launch import LaunchOutcome

POLL_S = 0.2
LOOK_EVERY_S = 1.0
SAMPLER_START_S = 10.0
SAMPLER_STOP_S = 5.0

OnProgress = Callable[[Progress], None]


def supervise(plan: LaunchPlan, on_progress: OnProgress, parents: WarmParents | None = None) -> LaunchOutcome:
    """Start the plan and return when nothing of it runs any more; ``ranks/outcome.json`` says the same.

    With ``parents`` the agent is forked from a warm one; where that cannot be, it is started afresh and a note says why.

    ``on_progress`` is called from this thread whenever ranks have said something. A port that was taken meanwhile is
    retried once with another, if this program chose it. RunFailedError: no room on the disk, nothing was started.
    """
    _prepare(plan)
    adopt_orphans()
    with interruption() as caught, _sampling(plan, caught):
        outcome = _attempt(plan, on_progress, caught, parents)
        if plan.rendezvous.chosen_port and port_was_taken(outcome) and caught.signal is None:
            outcome = _attempt(plan.with_new_port(), on_progress, caught, parents)
    return _write_outcome(plan, outcome)


def _prepare(plan: LaunchPlan) -> None:
    for folder in ("ranks", "logs"):
        (plan.run_dir / folder).mkdir(mode=0o750, parents=True, exist_ok=True)
    disk.require_room(plan.run_dir, disk.free_bytes(plan.run_dir))


@dataclass(frozen=True)
class _Started:
    """The agent, and how it was started."""

    agent: Agent
    warm: bool = False
    notes: tuple[str, ...] = ()


def _attempt(
    plan: LaunchPlan, on_progress: OnProgress, caught: Interruption, parents: WarmParents | None
) -> LaunchOutcome:
    plan.agent_file.unlink(missing_ok=True)
    began = time.monotonic()
    started = _agent(plan, caught, parents)
    if started is None:
        return _never_started(caught, time.monotonic() - began)
    crew = Crew(started.agent)
    try:
        stop = _follow(plan, crew, on_progress, caught)
        if stop is not None and stop.status in ("hang", "timeout"):
            crew.show_stacks()
        if stop is not None:
            crew.terminate(caught)
    finally:
        crew.kill()
    outcome = _outcome(plan, crew, stop, time.monotonic() - began)
    return outcome.model_copy(update={"warm": started.warm, "notes": started.notes})


def _agent(plan: LaunchPlan, caught: Interruption, parents: WarmParents | None) -> _Started | None:
    """None when the user interrupted the wait for a warm parent."""
    if parents is None:
        return _Started(_start(plan, plan.argv, plan.launcher_log))
    answer = parents.start(plan, lambda: caught.signal is not None)
    if not isinstance(answer, Refused):
        return _Started(answer, warm=True, notes=("ranks were forked from a warm parent: no import is in their times",))
    if caught.signal is not None:
        return None
    return _Started(
        _start(plan, plan.argv, plan.launcher_log),
        notes=(f"started from a fresh torchrun instead of a warm parent: {answer.reason}",),
    )


def _never_started(caught: Interruption, seconds: float) -> LaunchOutcome:
    assert caught.signal is not None
    reason = f"interrupted by {caught.signal.name} before anything ran"
    return LaunchOutcome(status="interrupted", seconds=round(seconds, 3), signal=int(caught.signal), reason=reason)


def _start(plan: LaunchPlan, argv: tuple[str, ...], log: Path) -> subprocess.Popen[bytes]:
    """In a session of its own, so that Ctrl-C in the terminal reaches the harness only, which then stops it in order."""
    with log.open("ab") as output:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(plan),
            start_new_session=True,
        )


def _follow(plan: LaunchPlan, crew: Crew, on_progress: OnProgress, caught: Interruption) -> Ending | None:
    """Until the agent ends by itself (None), or a reason to stop it comes up."""
    began = now = time.monotonic()
    heartbeats = Heartbeats(plan.run_dir, plan.ranks, plan.num_steps, began)
    looked = began
    while crew.agent.poll() is None:
        now = time.monotonic()
        if heartbeats.read(now):
            on_progress(heartbeats.progress(now))
        if now - looked > LOOK_EVERY_S:
            crew.look()
            looked = now
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
    if plan.timeout_s is not None and elapsed > plan.timeout_s:
        return Ending("timeout", f"not finished after {elapsed:.0f} s (limit {plan.timeout_s:g} s)")
    silence = heartbeats.silence(now, plan.hang_timeout_s)
    return hang(silence) if silence else None


def _outcome(plan: LaunchPlan, crew: Crew, stop: Ending | None, seconds: float) -> LaunchOutcome:
    agent, unreadable = read_agent_record(plan.agent_file)
    exit_code = crew.agent.wait()
    if stop is None:
        stop = verdict(agent, exit_code, unreadable)
    full = stop.status != "ok" and disk.is_full(disk.free_bytes(plan.run_dir))
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


@contextmanager
def _sampling(plan: LaunchPlan, caught: Interruption) -> Iterator[None]:
    """The sampler around the ranks: they start after its first look, so that what it saw then is not theirs."""
    if plan.sampler is None or plan.sampler_file is None:
        yield
        return
    plan.sampler_file.unlink(missing_ok=True)
    sampler = _start(plan, plan.sampler, plan.sampler_log)
    try:
        deadline = time.monotonic() + SAMPLER_START_S
        while not plan.sampler_file.exists() and sampler.poll() is None and time.monotonic() < deadline:
            if caught.signal is not None:
                break
            time.sleep(POLL_S)
        yield
    finally:
        _stop_sampler(sampler)


def _stop_sampler(sampler: subprocess.Popen[bytes]) -> None:
    sampler.terminate()
    try:
        sampler.wait(SAMPLER_STOP_S)
    except subprocess.TimeoutExpired:
        sampler.kill()
        sampler.wait()
