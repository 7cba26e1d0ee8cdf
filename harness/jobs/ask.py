"""`mbr-perf jobs`: submit, inspect, await and cancel jobs of Slurm and Kubernetes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import completion
from harness.cli.commands import App
from harness.cli.options import Json, Results
from harness.show.answer import answer
from harness.units import command_text

if TYPE_CHECKING:
    from harness.cluster.controller import Controller
    from harness.errors import ExitCode
    from harness.records.job import JobRecord

app = App(no_args_is_help=True, help="Jobs of Slurm and Kubernetes: submit, show status, wait, cancel.")

Job = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        autocompletion=completion.jobs,
        help="A job's folder, the start of its id, its number in Slurm or its name in Kubernetes.",
    ),
]


@app.command()
def submit(job: Job, results_dir: Results = None, as_json: Json = False) -> None:
    """Submit the files of a job that --no_submit prepared."""
    from harness.cluster.showing import JobDisplay
    from harness.cluster.submission import submit_prepared
    from harness.launch.environment import this_host
    from harness.measure.experiment import Display
    from harness.records.job import job_dir_of, read_job

    job_dir = job_dir_of(job, results_dir)
    submitted = submit_prepared(job_dir, this_host())
    JobDisplay(Display(as_json=as_json)).detached(read_job(job_dir), submitted)


@app.command()
def status(job: Job, results_dir: Results = None, as_json: Json = False) -> None:
    """Show the state of a job: the cluster's state and reason, and each of its runs."""
    from harness.jobs.show import job_page, standing

    found = standing(*_found(job, results_dir))
    answer(lambda: found, lambda: job_page(found), as_json=as_json)


@app.command()
def wait(
    job: Job,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="Stop waiting after this time; exit 6.")
    ] = None,
    results_dir: Results = None,
    as_json: Json = False,
) -> None:
    """Wait until a job has ended, collect its results and judge them, with the exit code of `run` or `sweep`."""
    from harness.batch.repeats import judge_runs
    from harness.cluster.following import wait_and_judge
    from harness.cluster.showing import JobDisplay
    from harness.errors import BadRequestError
    from harness.measure.experiment import Display
    from harness.records.job import read_job
    from harness.sweep.reports import SweepDisplay
    from harness.sweep.run import answer_job

    display, (job_dir, controller) = JobDisplay(Display(as_json=as_json)), _found(job, results_dir)
    if (found := read_job(job_dir)).what == "nightly":
        remedy = command_text("nightly", "--resume", found.subject)
        raise BadRequestError(f"{job_dir}: this job is of a night, which waits for it and judges it", remedy=remedy)

    def judge(record: "JobRecord") -> "ExitCode":
        return answer_job(record, SweepDisplay(as_json)) if record.what == "sweep" else judge_runs(record, display)

    raise typer.Exit(int(wait_and_judge(job_dir, controller, display, judge, timeout)))


@app.command()
def cancel(job: Job, results_dir: Results = None, as_json: Json = False) -> None:
    """Cancel a job. Its ranks stop and keep what they measured; `jobs wait` collects it."""
    from harness.jobs.show import CancelledDocument
    from harness.jobs.show import cancel as cancel_job
    from harness.show.page import Line, Page

    job_dir, controller = _found(job, results_dir)
    submitted = cancel_job(job_dir, controller)
    document = CancelledDocument(job_dir=str(job_dir), job_id=submitted.job_id)
    collect = command_text("jobs", "wait", job_dir)
    text = f"job {submitted.job_id} is cancelled; its ranks keep what they measured. Collect it with {collect}"
    answer(lambda: document, lambda: Page((Line(text, whole=True),)), as_json=as_json)


def _found(job: str, results: Path | None) -> tuple[Path, "Controller"]:
    from harness.cluster.submission import controller_of
    from harness.launch.environment import this_host
    from harness.records.job import job_dir_of, read_job

    job_dir = job_dir_of(job, results)
    return job_dir, controller_of(read_job(job_dir).options, this_host().shell)
