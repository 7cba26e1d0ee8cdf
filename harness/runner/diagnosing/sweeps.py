"""A sweep given to `mbr-perf diagnose`: diagnosed as one failure where it is one, else listed."""

from dataclasses import replace
from pathlib import Path

from harness.analysis.diagnosis.of_run import case_of_run
from harness.analysis.diagnosis.of_sweep import SweepOverview, overview_of
from harness.analysis.diagnosis.trial import allocator_trial
from harness.errors import BadRequestError, ExitCode
from harness.launch.ownership import life_of
from harness.records.store import RECORD
from harness.records.sweeps import SWEEP, SweepData, read_sweep, run_dir_of
from harness.runner.diagnosing.diagnosing import DiagnoseRequest
from harness.runner.diagnosing.inputs import located


def sweep_of(request: DiagnoseRequest) -> SweepData | None:
    """The sweep where the request names one and nothing beside it. BadRequestError for what is nowhere."""
    if len(request.paths) != 1 or request.against or request.asked is not None or request.paths[0] == "-":
        return None
    folder = located(request.paths[0], request.results_dir)
    return read_sweep(folder) if folder.is_dir() and (folder / SWEEP).is_file() else None


def sweep_overview(data: SweepData) -> SweepOverview:
    """How all of its runs ended. BadRequestError where none was started."""
    found = overview_of(data, _killed(data))
    if not found.counts:
        told = f"{data.sweep_dir}: none of its runs is there yet"
        raise BadRequestError(told, remedy=f"mbr-perf sweep --resume {data.sweep_dir}")
    return found


def as_one_failure(request: DiagnoseRequest, data: SweepData, found: SweepOverview) -> DiagnoseRequest | None:
    """What to diagnose instead: the one run that failed, or a trial of the allocator whole; None where it is listed."""
    if found.ab is not None:
        trial = allocator_trial([case_of_run(run) for cell in data.cells for run in cell.runs])
        return request if trial is not None and found.failed else None
    return replace(request, paths=(str(found.failed[0].run_dir),)) if len(found.failed) == 1 else None


def exit_code_of_overview(found: SweepOverview) -> ExitCode:
    """0 where something can be said, 6 where not."""
    return ExitCode.OK if found.is_conclusive else ExitCode.INCONCLUSIVE


def _killed(data: SweepData) -> list[tuple[Path, str, str]]:
    """Runs that were begun and never committed, and by whom."""
    found = []
    for cell in data.cells:
        for repeat in range(data.plan.repeats):
            folder = run_dir_of(data.sweep_dir, cell.planned.index, repeat)
            if (folder / "spec.json").is_file() and not (folder / RECORD).is_file():
                life = life_of(folder)
                killed = "mbr-perf was killed" if life.state == "dead" else "no record yet"
                found.append((folder, cell.planned.name, f"{killed}: {life.reason}"))
    return found
