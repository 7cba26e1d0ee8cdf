"""A bisect from request to answer: planned, measured step by step, resumed from its folder, answered."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT
from statistics import fmean

from harness.batch.batch import stamp
from harness.batch.engine import begun, holding
from harness.bisect import MAX_RUNS
from harness.bisect.measuring import Bench, StoppedError, require_time
from harness.bisect.revisions import changed_lines, find_revisions
from harness.bisect.search import SAME, Found, Measure, Step, Undecided, next_run, next_trace, usual_number
from harness.bisect.show import bisect_page
from harness.bisect.values import TRACED, BisectAnswer, BisectPlan, Measured, Metric, Side, Skipped, of_kind
from harness.errors import BadRequestError, ExitCode, Problems, RunFailedError, nearest, raise_all
from harness.experiment.experiment import ExperimentSpec
from harness.judge.gate import status_exit_code
from harness.launch.crew import signals_raised
from harness.launch.environment import Host, this_host
from harness.launch.warm import WarmParents
from harness.measure.checking import check_request
from harness.measure.understanding import RunRequest, rule_problem
from harness.records.batches import BISECT_FOLDERS, append_event, read_events
from harness.records.disk import disk_faults_reported
from harness.records.folders import results_dir
from harness.records.inventory import BISECT_REPORT
from harness.records.store import read_run, write_atomically
from harness.records.strict_json import read_document
from harness.resolve.suite_file import read_suite
from harness.show import json
from harness.show.markup import markdown
from harness.show.progress import cell_progress
from harness.show.terminal import narration, pass_time


@dataclass(frozen=True, kw_only=True)
class BisectRequest:
    """A case, the ends of its history, and what got worse. ``metric`` None: what differs in a trace, else time."""

    case: str
    good: str
    bad: str
    repo: Path
    pins: str | None = None
    metric: Metric | None = None
    max_runs: int | None = None
    recipes_dir: Path | None = None
    results_dir: Path | None = None


def start_bisect(request: BisectRequest) -> BisectAnswer:
    """Plan, measure and answer. BadRequestError, with every problem, before anything is written."""
    host = this_host()
    plan = _plan(request, host)
    if plan.metric == "time":
        require_time(plan, host)
    folder = BISECT_FOLDERS.new_dir(results_dir(request.results_dir), plan.case).absolute()
    plan = plan.model_copy(update={"bisect_id": folder.name})
    with begun(BISECT_FOLDERS, folder, plan):
        pass_time(f"Kept in {folder}")
        return _answered(plan, folder, host)


def resume_bisect(reference: str, results: Path | None, max_runs: int | None) -> BisectAnswer:
    """Continue from the folder; ``max_runs`` replaces the plan's. BadRequestError: of something else, or at work."""
    folder = BISECT_FOLDERS.folder_of(reference, results).absolute()
    with holding(folder, "bisect"):
        plan = read_document(folder / BISECT_FOLDERS.mark, BisectPlan)
        if max_runs is not None:
            plan = plan.model_copy(update={"max_runs": max_runs})
        return _answered(plan, folder, this_host())


def _plan(request: BisectRequest, host: Host) -> BisectPlan:
    problems, repo = Problems(), request.repo.expanduser().absolute()
    case = problems.tried(lambda: _case(request, host))
    revisions = problems.tried(lambda: find_revisions(repo, request.good, request.bad, request.pins))
    problems.raise_if_any()
    assert case and revisions  # else there are problems
    return BisectPlan(
        bisect_id="",
        case=case[0],
        spec=case[1],
        sources=case[2],
        repo=str(repo),
        pins=request.pins,
        revisions=revisions,
        metric=request.metric,
        max_runs=request.max_runs or MAX_RUNS,
        **stamp(),
    )


def _case(request: BisectRequest, host: Host) -> tuple[str, ExperimentSpec, dict[str, str]]:
    """Return the name, the settings and their sources: of SUITE:CASE, else of a run."""
    suite, colon, name = request.case.rpartition(":")
    if not colon or Path(request.case).exists():
        record = read_run(request.case, request.results_dir)
        return record.run_id, record.spec, record.sources
    cases = {case.name: case for case in read_suite(suite, request.recipes_dir).cases}
    if name not in cases:
        raise BadRequestError(f"{request.case}: {suite} has no case {name}", remedy=nearest(name, cases))
    checked = check_request(RunRequest(asked=cases[name].request), host, assume=None, ask_megatron=False)
    raise_all([rule_problem(finding) for finding in checked.findings if finding.blocks])
    return name, checked.spec, checked.sources


def _answered(plan: BisectPlan, folder: Path, host: Host) -> BisectAnswer:
    """Measure until the search ends, write the report, and return the answer; an interrupted bisect is none."""
    try:
        with signals_raised(StoppedError):
            answer = _searched(plan, folder, host)
    except (StoppedError, KeyboardInterrupt) as stop:
        code = status_exit_code("interrupted", getattr(stop, "signal", None) or SIGINT)
        events = read_events(folder, Measured)
        metric = plan.metric or ("time" if any(each.kind == "run" for each in events) else None)
        about = {"plan": plan, "folder": folder, "metric": metric, "num_measured": len(events)}
        return BisectAnswer.of(**about, reason="interrupted", exit_code=code)
    with disk_faults_reported(folder):
        (report := folder / BISECT_REPORT).parent.mkdir(exist_ok=True)
        write_atomically(report.with_suffix(".md"), markdown(bisect_page(answer), level=2))
        write_atomically(report, json.text(answer) + "\n")
    return answer


def _searched(plan: BisectPlan, folder: Path, host: Host) -> BisectAnswer:
    events, ends = list(read_events(folder, Measured)), (0, len(plan.revisions) - 1)
    measured = [each for each in events if not each.problem or each.place not in ends]  # --resume tries an end again
    num_before = len(events)
    with WarmParents() as parents, cell_progress(narration(), 1) as progress:
        bench = Bench(plan, folder, host, parents, progress)
        while True:
            metric, step = _next(plan, measured)
            if not isinstance(step, Measure):
                return _answer(plan, folder, metric, step, measured)
            kind = "trace" if metric in TRACED else "run"
            if kind == "run" and not any(each.kind == "run" for each in measured):
                require_time(plan, host)
            alike = [each.place for each in events if each.kind == kind]
            num_left = max(1, usual_number(kind, plan.num_revisions) - len(alike))
            progress.expect(len(events) - num_before + num_left)
            found = bench.measured(step.place, kind, alike.count(step.place))
            with disk_faults_reported(folder):
                append_event(folder, found)
            events.append(found)
            measured.append(found)
            if found.problem:
                _skip(plan, found, progress.note)


def _skip(plan: BisectPlan, found: Measured, note: Callable[[str], None]) -> None:
    """Say which revision is skipped. RunFailedError at an end, without which there is nothing to search."""
    name = plan.revisions[found.place].name
    if found.place in (0, len(plan.revisions) - 1):
        end = "good" if found.place == 0 else "bad"
        raise RunFailedError(
            f"the {end} revision {name} cannot be measured: {found.problem}",
            remedy=f"name another --{end}, or repair the environment",
        )
    note(f"{name}: skipped: {found.problem}")


def _next(plan: BisectPlan, measured: Sequence[Measured]) -> tuple[Metric, Step]:
    """Return the metric (without one, the first that differs in traces of both ends, else time) and the next step."""
    skipped = {each.place for each in measured if each.problem}
    places = [place for place in range(len(plan.revisions)) if place not in skipped]
    for metric in (plan.metric,) if plan.metric else TRACED:
        if metric not in TRACED:
            break
        step = _next_trace(metric, measured, places)
        if plan.metric or not isinstance(step, Undecided) or step.reason != SAME:
            return metric, step
    return "time", _next_run(plan, measured, places)


_MOST_SUSPECT = 10


def _next_trace(metric: Metric, measured: Sequence[Measured], places: Sequence[int]) -> Step:
    values: dict[int, list[Hashable]] = {}
    for each in of_kind(measured, metric):
        if not each.problem:
            values.setdefault(each.place, []).append(each.figure(metric))
    return next_trace(values, places)


def _next_run(plan: BisectPlan, measured: Sequence[Measured], places: Sequence[int]) -> Step:
    suspect = [each.suspect for each in measured if each.suspect]
    if len(suspect) >= _MOST_SUSPECT:
        reason = f"{len(suspect)} runs are suspect, the last because: {suspect[-1]}"
        return Undecided(reason, "remove the cause, then start a new bisect")
    samples = [(each.place, math.log(each.seconds)) for each in of_kind(measured, "time") if each.seconds]
    return next_run(samples, places, plan.max_runs)


def _answer(
    plan: BisectPlan, folder: Path, metric: Metric, step: Found | Undecided, measured: Sequence[Measured]
) -> BisectAnswer:
    skipped = {each.place: each.problem for each in measured if each.problem}
    about = {
        "plan": plan,
        "folder": folder,
        "metric": metric,
        "skipped": [Skipped(revision=plan.revisions[place], reason=why) for place, why in sorted(skipped.items())],
        "num_measured": len(measured),
    }
    if isinstance(step, Undecided):
        return BisectAnswer.of(**about, reason=step.reason, advice=step.advice, exit_code=ExitCode.INCONCLUSIVE)
    good, bad = plan.revisions[step.before], plan.revisions[step.place]
    levels = _levels(metric, step, measured)
    return BisectAnswer.of(
        **about,
        first_bad=bad,
        probability=step.probability,
        sides=[_side(plan, metric, place, measured) for place in (step.before, step.place)],
        levels=levels,
        change=levels[1] / levels[0] - 1 if levels else None,
        between=plan.revisions[step.before + 1 : step.place + 1],
        lines=changed_lines(Path(plan.repo), good.sha, bad.sha, plan.pins),
    )


def _side(plan: BisectPlan, metric: Metric, place: int, measured: Iterable[Measured]) -> Side:
    figures = (each.figure(metric) for each in of_kind(measured, metric) if each.place == place and not each.problem)
    return Side(plan.revisions[place], tuple(figure for figure in figures if figure is not None))


def _levels(metric: Metric, step: Found, measured: Sequence[Measured]) -> tuple[float, ...]:
    """Return the means before and after the change; for time, of all runs. Empty for texts."""
    figures: dict[bool, list[float]] = {False: [], True: []}
    for each in of_kind(measured, metric):
        value = each.figure(metric)
        if isinstance(value, int | float) and (metric == "time" or each.place in (step.before, step.place)):
            figures[each.place >= step.place].append(value)
    return tuple(fmean(side) for side in figures.values()) if all(figures.values()) else ()
