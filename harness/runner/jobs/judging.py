"""The verdict on a job: waited for, collected, and judged as its runs would have been where they were launched."""

from pathlib import Path

from harness.analysis.outcome import status_exit_code
from harness.errors import BadRequestError, ExitCode
from harness.launch.environment import this_host
from harness.launch.slurm.commands import Slurm
from harness.records.job import JobRecord
from harness.runner.experiment import judge
from harness.runner.jobs.following import wait_for, watched
from harness.runner.jobs.runs import committed_runs, task_runs
from harness.runner.jobs.showing import JobDisplay
from harness.runner.launched import Ran
from harness.runner.sweep.showing import SweepDisplay
from harness.runner.sweep.sweep import answer_sweep, gate_of


def wait_and_judge(job_dir: Path, slurm: Slurm, display: JobDisplay, timeout_s: float | None = None) -> ExitCode:
    """Wait for one job and judge its runs, as `mbr-perf run` would have."""
    one = watched(job_dir)
    waited = wait_for([one], slurm, display, timeout_s=timeout_s)
    if not waited.is_done:
        display.left_alone(one.job, one.submitted, waited.signal)
        return ExitCode.INCONCLUSIVE if waited.signal is None else status_exit_code("interrupted", waited.signal)
    return judge_job(one.job, display)


def judge_job(job: JobRecord, display: JobDisplay) -> ExitCode:
    """The verdict on what the job left: of its runs, or of the sweep that it belongs to. A night judges its own cases."""
    if job.what == "sweep":
        return answer_sweep(Path(job.subject), this_host(), SweepDisplay(as_json=display.as_json))
    filled_by = next((task.filled_by for task in task_runs(job) if task.filled_by), "")
    if filled_by:
        told = f"{job.job_dir}: left no run, its folder holds that of job {filled_by}"
        raise BadRequestError(told, remedy=f"mbr-perf jobs wait {filled_by} judges that one")
    runs = [Ran(record, Path(run.run_dir), None) for run, record in committed_runs(job)]
    if job.what == "run":
        results = Path(job.results_dir) if job.results_dir else None
        return judge(runs, gate_of(job.gate), results, display.run)
    display.of_a_night(job, [run.record for run in runs])
    return max(status_exit_code(run.record.status) for run in runs)
