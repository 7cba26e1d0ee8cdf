"""A night from request to exit code: planned, run in rounds, resumed, judged, reported."""

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGTERM

from harness.errors import BadRequestError, ExitCode
from harness.launch.disk import full_disk_told
from harness.launch.environment import this_host
from harness.launch.interruption import interruption
from harness.launch.warm import WarmParents
from harness.records.folders import why_unwritable
from harness.records.nights import NIGHTS, new_night_dir, read_night, write_plan
from harness.records.store import results_dir
from harness.report.night_outputs import Outputs
from harness.report.night_reports import write_night_reports
from harness.report.night_webhook import webhook_message
from harness.runner.hold import holding
from harness.runner.jobs.showing import JobDisplay
from harness.runner.machine import software_for, software_here
from harness.runner.night.due import due_round
from harness.runner.night.history import keep_history
from harness.runner.night.judging import NightJudge
from harness.runner.night.local import LocalRounds
from harness.runner.night.outlook import outlook
from harness.runner.night.planning import plan_night
from harness.runner.night.request import NightRequest
from harness.runner.night.rounds import NightAtWork, RoundRunner, note_finished, note_interrupted
from harness.runner.night.showing import NightDisplay
from harness.runner.night.slurm import SlurmRounds, night_jobs, require_submittable_night
from harness.runner.same_software import require_same_software
from harness.runner.showing import Display
from harness.runner.webhook import WebhookAddress, send


@dataclass(frozen=True)
class Audience:
    """Who is told of a night: the display, files beside its own folder, and a webhook where one was asked for."""

    display: NightDisplay
    outputs: Outputs = field(default_factory=Outputs)
    webhook: WebhookAddress | None = None


def dry_run_night(request: NightRequest, display: NightDisplay) -> ExitCode:
    """Print the cases, what is known of them and what would run, on Slurm the batch files of the first round.

    Starts nothing; keeps nothing but the index of history. A wrong request (exit code 2) where every case is refused.
    """
    host, results = this_host(), results_dir(request.results_dir)
    if not results.exists() and (why := why_unwritable(results)):
        raise BadRequestError(f"--results_dir {results}: cannot be made: {why}", remedy="name a writable folder")
    plan = plan_night(request, host, starts=False, tell=display.says)
    jobs = night_jobs(plan, plan.slurm, host, results.absolute()) if plan.slurm else ()
    display.plan(plan, outlook(plan, results), jobs)
    return ExitCode.BAD_REQUEST if all(case.refused for case in plan.cases) else ExitCode.OK


def start_night(request: NightRequest, audience: Audience) -> ExitCode:
    """Plan, write the plan down, run. BadRequestError before anything is started or written."""
    host = this_host()
    plan = plan_night(request, host, starts=True, tell=audience.display.says)
    results = results_dir(request.results_dir).absolute()
    if plan.slurm is not None:
        require_submittable_night(plan, plan.slurm, host, results)
    night_dir = new_night_dir(results, plan.suite)
    plan = plan.model_copy(update={"night_id": night_dir.name})
    with holding(night_dir, "night"):
        with full_disk_told(night_dir):
            write_plan(night_dir, plan)
        return _run(NightAtWork(night_dir, plan, host), audience, request.results_dir)


def resume_night(reference: str, results: Path | None, audience: Audience) -> ExitCode:
    """Run what is missing of a night, exactly as its own plan says, and judge it.

    BadRequestError for a night that another process works on, and where the software is no longer the same.
    """
    host, data = this_host(), read_night(reference, results)
    with holding(data.night_dir, "night"):
        for gpu, before in data.plan.software.items():
            elsewhere = data.plan.slurm is not None or data.plan.launch.launcher == "replay"
            now = software_for(gpu, host)[0] if elsewhere else software_here(gpu, host)
            require_same_software(before, now, "night")
        return _run(NightAtWork(data.night_dir.absolute(), data.plan, host), audience, results)


def _run(night: NightAtWork, audience: Audience, results: Path | None) -> ExitCode:
    judge = NightJudge(night.plan, _history_home(night.night_dir, results))
    audience.display.begins(night.plan, night.night_dir)
    with ExitStack() as stack:
        warm = night.plan.launch.launcher == "torchrun" and night.plan.slurm is None
        parents = stack.enter_context(WarmParents()) if warm else None
        signal = play(night, _rounds(night, audience.display, parents, judge.results), judge)
    return _answer(night, judge, audience, signal)


def _rounds(night: NightAtWork, display: NightDisplay, parents: WarmParents | None, results: Path) -> RoundRunner:
    if night.plan.slurm is None:
        return LocalRounds(night, display.progress, parents)
    return SlurmRounds(night, night.plan.slurm, results.absolute(), JobDisplay(Display(as_json=display.as_json)))


def _history_home(night_dir: Path, results: Path | None) -> Path:
    """The results folder whose history the night reads and adds to: its own, unless it was copied elsewhere."""
    return night_dir.parents[1] if night_dir.parent.name == NIGHTS else results_dir(results)


def play(night: NightAtWork, rounds: RoundRunner, judge: NightJudge) -> int | None:
    """Rounds until nothing is due, one gets nothing done, or a signal comes: that signal's number, else None."""
    before = None
    with interruption() as caught:
        while (due := due_round(read_night(night.night_dir), judge.suspicion)) and due != before:
            if caught.signal is not None:
                note_interrupted(night.night_dir, "a signal between two rounds")
                return int(caught.signal)
            signal = rounds.run(due)
            if signal is not None:
                return signal
            before = due
    return None


def _answer(night: NightAtWork, judge: NightJudge, audience: Audience, signal: int | None) -> ExitCode:
    """Judge, keep and show what lies on disk, whole or not."""
    data = read_night(night.night_dir)
    num_due = len(due_round(data, judge.suspicion))
    verdict = judge.verdict(data, num_due)
    if signal is not None:
        verdict = replace(verdict, exit_code=ExitCode.TERMINATED if signal == SIGTERM else ExitCode.INTERRUPTED)
    problems = tuple[str, ...]()
    if not num_due and signal is None and not data.is_finished:
        problems = keep_history(verdict, judge.results)
        note_finished(night.night_dir, verdict.finished_at)
    written = write_night_reports(verdict, audience.outputs)
    for problem in (*problems, *written.problems):
        audience.display.says(problem)
    audience.display.result(verdict, written.paths)
    if audience.webhook is not None and (problem := send(audience.webhook, webhook_message(verdict).render())):
        audience.display.says(problem)
    return verdict.exit_code
