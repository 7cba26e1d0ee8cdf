"""`mbr-perf capture`: the jobs that a launch script would start, as files."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import Json
from harness.show.json import Document, Shown


class CapturedJob(Shown):
    """One job: its files, its command, and the folder where the script called it."""

    args: str
    env: str
    folder: str
    command: str


class CaptureDocument(Document):
    """The captured jobs, and remarks on the capture."""

    jobs: tuple[CapturedJob, ...]
    notes: tuple[str, ...]


def capture(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="The command of your job: `bash run.sh 7B`.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder for job_001.args, job_001.env and so on.")
    ] = Path("captured"),
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, max=86400, help="Kill the script after this time.")
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Run your launch script, but write the jobs that it starts to files instead of training.

    Nothing starts torchrun, deepspeed, accelerate, or Python training programs: their arguments, folder and exported
    variables are kept, without secrets. srun, sbatch and `ray job submit` run their command here, once. The rest of the
    script does run: its own `tee` and `>` overwrite the logs that it writes. `plan` and `check` read the files. Exit 0
    if a job was captured, else 2.
    """
    from harness.capture.run import capture as captured
    from harness.capture.run import write_jobs
    from harness.errors import BadRequestError
    from harness.launch.environment import this_host
    from harness.records.redact import redact
    from harness.show.answer import answer
    from harness.show.page import Code, Line, Page, listing
    from harness.units import counted, shortened

    title = redact(shlex.join(command))
    found = captured(command, this_host(), timeout)
    ended = f"was killed after {timeout:g} s" if found.code is None else f"ended with exit code {found.code}"
    notes = [f"{place} is called by its path: it ran, and was not captured" for place in found.by_path]
    if not found.jobs:
        said = [shortened(line, 200) for line in found.said.splitlines() if line.strip()][-3:]
        instead = f"{shortened(title, 80)}: no job was captured; the command {ended}"
        remedy = "its last lines:\n    " + "\n    ".join(said) if said else "it printed nothing; check its arguments"
        raise BadRequestError("; ".join((instead, *notes)), remedy=remedy)
    notes += [f"the command {ended}"] if found.code != 0 else []
    paths = write_jobs(found, out, title)
    jobs = tuple(
        CapturedJob.of(job, args=str(path), env=str(path.with_suffix(".env")), command=shlex.join(job.command))
        for path, job in zip(paths, found.jobs, strict=True)
    )
    lines = (Line(f"{job.args}  {job.env}", whole=True) for job in jobs)
    headline = f"CAPTURED: {counted(len(jobs), 'job')} of {shortened(title, 80)}"
    remarks = listing(f"Note: {note}" for note in notes)
    options = {word.partition("=")[0] for word in found.jobs[0].command}
    size = "" if options & {"--vocab-size", "--padded-vocab-size", "--merge-file"} else " --vocab_size N"
    following = Code(f"Next: mbr-perf plan {jobs[0].args} -g h100{size}")
    page = Page((*lines, remarks, following), answer=headline)
    answer(lambda: CaptureDocument(jobs=jobs, notes=tuple(notes)), lambda: page, as_json=as_json)
