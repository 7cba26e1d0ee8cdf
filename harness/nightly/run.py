"""A night from request to exit code: planned, run in rounds, resumed, judged, reported."""

import shlex
from pathlib import Path

from harness.batch.engine import begun, holding, play, play_here
from harness.batch.launches import require_same_software
from harness.cluster.rounds import JobPerEntry, entry_job
from harness.cluster.showing import JobDisplay
from harness.cluster.submission import controller_of
from harness.errors import BadRequestError, ExitCode, HarnessError
from harness.history.record import Occasion, history_record
from harness.history.store import require_sound, write_history
from harness.judge.derive import derive
from harness.judge.gate import status_exit_code
from harness.launch.build import require_same_build
from harness.launch.cluster_job import ClusterJob
from harness.launch.environment import Host, this_host
from harness.measure.experiment import Display
from harness.nightly.batch import NightBatch, due_round
from harness.nightly.judge import NightJudge, outlook
from harness.nightly.plan import NightRequest, plan_night
from harness.nightly.reports import annotations, delete_earlier, write_night_reports
from harness.nightly.show import NightDisplay
from harness.nightly.values import CaseRun, CaseVerdict, NightVerdict
from harness.records.batches import NIGHT_FOLDERS
from harness.records.disk import why_unwritable
from harness.records.folders import results_dir
from harness.records.job import JobOptions
from harness.records.night import NIGHTS, NightCase, NightData, NightPlan, read_night
from harness.show.page import Line
from harness.show.terminal import pass_time
from harness.units import grouped


def dry_run_night(request: NightRequest, display: NightDisplay) -> ExitCode:
    """Print what would run; starts and keeps nothing. A wrong request (exit 2) where every case is refused."""
    host, results = this_host(), results_dir(request.results_dir)
    if not results.exists() and (why := why_unwritable(results)):
        raise BadRequestError(f"--results_dir {results}: cannot be made: {why}", remedy="name a writable folder")
    plan = plan_night(request, host, starts=False, waits=pass_time)
    jobs = night_jobs(plan, plan.cluster, host, results.absolute()) if plan.cluster else ()
    display.plan(plan, outlook(plan, results), jobs)
    return ExitCode.OK if plan.planned else ExitCode.BAD_REQUEST


def start_night(request: NightRequest, display: NightDisplay) -> ExitCode:
    """Plan the night, write the plan, run it. BadRequestError before anything is started or written."""
    host = this_host()
    results = results_dir(request.results_dir).absolute()
    require_sound(results)
    plan = plan_night(request, host, starts=True, waits=pass_time)
    jobs = night_jobs(plan, plan.cluster, host, results) if plan.cluster else ()
    if jobs:
        controller_of(jobs[0].record.options, host.shell).require_options(jobs[0])
    night_dir = NIGHT_FOLDERS.new_dir(results, plan.suite)
    plan = plan.model_copy(update={"night_id": night_dir.name})
    with begun(NIGHT_FOLDERS, night_dir, plan):
        return _run(night_dir, host, plan, display, request.results_dir)


def resume_night(reference: str, results: Path | None, display: NightDisplay) -> ExitCode:
    """Do the missing runs by the night's own plan. BadRequestError: at work elsewhere, or the software changed."""
    host, data = this_host(), read_night(reference, results)
    with holding(data.night_dir, "night"):
        measures_here = data.plan.cluster is None and data.plan.launch.launcher != "replay"
        if data.plan.against:
            python = data.plan.python or "ENV/bin/python"
            words = (python, "-m", "harness.app", "nightly", "--resume", str(data.night_dir))
            remedy = f"resume it with the new build: {shlex.join(words)}"
            require_same_build("--against", data.plan.against.build, host, "the old build", remedy)
        require_same_software(data.plan.software, host, "night", measures_here=measures_here)
        if data.is_finished:
            display.narrate("Nothing is left to run: judged again, by today's goldens")
        return _run(data.night_dir.absolute(), host, data.plan, display, results)


def _run(night_dir: Path, host: Host, plan: NightPlan, display: NightDisplay, results: Path | None) -> ExitCode:
    judge = NightJudge(plan, NIGHT_FOLDERS.home(night_dir, results))
    night = NightBatch(night_dir, host, plan, judge.suspicion)
    delete_earlier(display.outputs)
    display.begins(plan, night_dir)
    if plan.cluster is None:
        signal = play_here(night, display.progress, is_warm=plan.launch.launcher == "torchrun")
    else:
        jobs = JobDisplay(Display(as_json=display.as_json))
        signal = play(night, JobPerEntry(night, plan.cluster, judge.results, jobs).run)
    return _answer(night, judge, display, signal)


def night_jobs(plan: NightPlan, options: JobOptions, host: Host, results: Path) -> tuple[ClusterJob, ...]:
    """Return the jobs of the first round, one per case. BadRequestError for values that no batch file can hold."""
    night = NightBatch(results / NIGHTS / "NIGHT", host, plan)
    unbegun = NightData(night.folder, plan, tuple(NightCase(case, ()) for case in plan.cases), ())
    due = due_round(unbegun, night.suspicion)
    by_case = grouped((run.entry.name, run) for run in due)
    return tuple(entry_job(night, runs, options, results).checked(host) for runs in by_case.values())


def _answer(night: NightBatch, judge: NightJudge, display: NightDisplay, signal: int | None) -> ExitCode:
    data = read_night(night.folder)
    num_due = len(due_round(data, judge.suspicion))
    verdict = judge.verdict(data, num_due)
    if signal is not None:
        verdict = verdict.model_copy(update={"exit_code": status_exit_code("interrupted", signal)})
    problems = tuple[str, ...]()
    if not num_due and signal is None and not data.is_finished:
        problems = keep_history(verdict, judge.results)
        night.finished(verdict.finished_at)
    paths, unwritten = write_night_reports(verdict, display.outputs, judge.results)
    for problem in (*problems, *unwritten):
        display.narrate(problem)
    if display.outputs.step_summary:
        display.narrate(*(Line(each, whole=True) for each in annotations(verdict)))
    display.result(verdict, paths)
    return verdict.exit_code


def keep_history(verdict: NightVerdict, results: Path) -> tuple[str, ...]:
    """Add the runs of a night to history. Return why they could not be added; that changes no verdict."""
    ended = ((case, run, run.record) for case in verdict.cases for run in case.runs if run.record)
    try:
        records = [
            history_record(record, derive(record), _occasion(verdict, case, run))
            for case, run, record in ended
            if record.status != "interrupted"
        ]
        write_history(results, records)
    except HarnessError as error:
        return (f"history: {error.message}",)
    return ()


def _occasion(verdict: NightVerdict, case: CaseVerdict, run: CaseRun) -> Occasion:
    return Occasion(
        suite=verdict.plan.suite,
        suite_case=case.planned.name,
        night_id=verdict.plan.night_id,
        purpose=run.purpose,
        outcome=case.outcome,
        is_expected=case.is_expected,
        allowed={found.metric: found.threshold for found in case.findings if found.threshold},
    )
