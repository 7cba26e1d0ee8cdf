"""A sweep from request to exit code: planned, run, resumed, judged, reported."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM

from harness.analysis.compare import GateOptions
from harness.analysis.machine import elsewhere
from harness.analysis.sweep.judge import judge_sweep
from harness.analysis.sweep.values import SweepVerdict
from harness.errors import BadRequestError, ExitCode
from harness.launch.disk import full_disk_told
from harness.launch.environment import Host, this_host
from harness.launch.warm import WarmParents
from harness.records.store import results_dir
from harness.records.sweep import SweepGate, SweepPlan
from harness.records.sweeps import SweepData, made_sweep_dir, new_sweep_dir, read_sweep, write_plan
from harness.report.sweep_reports import LEFT_OUT, REPORT, write_reports, write_tables
from harness.runner.hold import holding
from harness.runner.machine import software_for, software_here
from harness.runner.same_software import require_same_software
from harness.runner.sweep.execution import Sweeping
from harness.runner.sweep.launches import Meeting, meeting_at, require_startable
from harness.runner.sweep.outcome import sweep_exit_code
from harness.runner.sweep.planning import plan_sweep
from harness.runner.sweep.request import SweepRequest
from harness.runner.sweep.showing import SweepDisplay
from harness.spec.gpu import GPUS


@dataclass(frozen=True)
class Sitting:
    """What may differ from one sitting of a sweep to the next. ``is_warm``: runs start from warm parents.

    ``meeting``: address and port at which several nodes meet, where it is no longer the first sitting's.
    """

    max_minutes: float | None = None
    is_warm: bool = True
    meeting: Meeting = field(default_factory=Meeting)


def dry_run_sweep(request: SweepRequest, display: SweepDisplay) -> None:
    """Print the cells with their predictions and fates. Starts tracers only, and writes no results."""
    display.plan(plan_sweep(request, this_host(), asks_megatron=False, tell=display.says))


def start_sweep(request: SweepRequest, display: SweepDisplay, sitting: Sitting) -> ExitCode:
    """Plan, write the plan down, run. BadRequestError before anything is started or written."""
    host = this_host()
    if request.asked.gpu.lower() in GPUS and request.launch.launcher != "replay":
        software_here(request.asked.gpu.lower(), host)  # every cell would wait for a driver that does not answer
    plan = plan_sweep(request, host, asks_megatron=True, tell=display.says)
    require_startable(plan, host)
    sweep_dir = _new_folder(request, plan)
    plan = plan.model_copy(update={"sweep_id": sweep_dir.name})
    with holding(sweep_dir):
        with full_disk_told(sweep_dir):
            write_plan(sweep_dir, plan)
        return _run(sweep_dir, plan, host, display, sitting)


def _new_folder(request: SweepRequest, plan: SweepPlan) -> Path:
    if request.sweep_dir is not None:
        return made_sweep_dir(request.sweep_dir)
    if request.launch.nnodes > 1:
        raise BadRequestError(
            f"--nnodes {request.launch.nnodes} needs a folder that all nodes see",
            remedy="give every node the same --sweep_dir on a shared file system",
        )
    return new_sweep_dir(results_dir(request.results_dir), plan.recipe)


def resume_sweep(reference: str, results: Path | None, display: SweepDisplay, sitting: Sitting) -> ExitCode:
    """Run what is missing of a sweep, exactly as its own plan says.

    BadRequestError for a sweep that another process works on, and where the software is no longer the same.
    """
    host, data = this_host(), read_sweep(reference, results)
    if data.plan.is_imported:
        raise BadRequestError(
            f"{data.sweep_dir}: imported from training logs: nothing of it can be run here",
            remedy=f"mbr-perf report {data.sweep_dir}",
        )
    with holding(data.sweep_dir):
        plan = meeting_at(data.plan, sitting.meeting)
        if plan.software is not None:
            replays = plan.launch.launcher == "replay"
            now = software_for(plan.gpu, host)[0] if replays else software_here(plan.gpu, host)
            require_same_software(plan.software, now, "sweep")
        require_startable(plan, host)
        return _run(data.sweep_dir, plan, host, display, sitting, elsewhere(data, host.hostname))


def _run(
    sweep_dir: Path, plan: SweepPlan, host: Host, display: SweepDisplay, sitting: Sitting, warning: str = ""
) -> ExitCode:
    signal = None
    with ExitStack() as stack:
        warm = sitting.is_warm and plan.launch.launcher == "torchrun"
        parents = stack.enter_context(WarmParents()) if warm else None
        sweeping = Sweeping(sweep_dir, plan, host, sitting.max_minutes, parents)
        num_due = len(sweeping.due())
        display.begins(plan, sweep_dir, num_due, warning if num_due else "")
        if num_due:
            with display.progress(num_due) as progress:
                signal = sweeping.run_all(progress)
    return _answer(sweep_dir, display, len(sweeping.due()), signal)


def answer_sweep(sweep_dir: Path, host: Host, display: SweepDisplay) -> ExitCode:
    """Judge and show a sweep whose runs others did; nothing is started."""
    num_due = len(Sweeping(sweep_dir, read_sweep(sweep_dir).plan, host, None, None).due())
    return _answer(sweep_dir, display, num_due, None)


def _answer(sweep_dir: Path, display: SweepDisplay, num_due: int, signal: int | None) -> ExitCode:
    """Judge and show what lies on disk, whole or not."""
    data = read_sweep(sweep_dir)
    try:
        verdict = judge_sweep(data, gate_of(data.plan.gate))
    except BadRequestError as error:
        raise BadRequestError(str(error), remedy=f"the sweep itself is kept in {sweep_dir}") from error
    reports = _reports(verdict, data, display, signal)
    display.result(verdict, reports, sweep_dir, num_due)
    if signal is not None:
        return ExitCode.TERMINATED if signal == SIGTERM else ExitCode.INTERRUPTED
    return sweep_exit_code(verdict, gate_of(data.plan.gate), num_due)


def _reports(verdict: SweepVerdict, data: SweepData, display: SweepDisplay, signal: int | None) -> tuple[Path, ...]:
    """What could be written; the answer must not be lost with a report. Who interrupts does not wait for pictures."""
    try:
        if signal is None:
            return write_reports(verdict, data, data.sweep_dir / REPORT)
        display.says(f"interrupted: {LEFT_OUT} are left out; mbr-perf report {data.sweep_dir} makes them")
        return write_tables(verdict, data, data.sweep_dir / REPORT)
    except (BadRequestError, ValueError, RuntimeError) as error:  # ValueError: what the chart renderer raises
        display.says(
            f"the reports could not be written: {error}; mbr-perf report {data.sweep_dir} --out FOLDER tries again"
        )
        return ()


def gate_of(gate: SweepGate) -> GateOptions:
    """The plan's words as the judge takes them."""
    fields = gate.model_dump(exclude={"golden_values_path"})
    return GateOptions(**fields, golden_values_path=Path(gate.golden_values_path) if gate.golden_values_path else None)
