"""How the log of a job ends: Slurm's own lines, and what was printed before anything of ours could leave a record."""

import re
from collections.abc import Iterator
from pathlib import Path

from harness.launch.slurm.state import TaskState
from harness.records.job import LOGS, JobRecord
from harness.records.job_nodes import ATTEMPTS, JobAttempt
from harness.records.redact import redact
from harness.records.strict_json import read_document

_TAIL_BYTES = 1 << 16
_NUM_LINES, _LINE_CHARS = 3, 200
# Colours and cursor movements of what ranks print, and other characters that steer a terminal.
_STEERING = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]")
# What follows from the first error of a step, on every node.
_CONSEQUENCE = re.compile(r"srun: (Job step aborted|Terminating|Waiting|error: .*(Exited with exit code|Terminated))")


def without_steering(text: str) -> str:
    """Text from a log, fit for a terminal and a record."""
    return _STEERING.sub("", text.replace("\r\n", "\n"))


def log_ends(job: JobRecord, state: TaskState) -> Iterator[str]:
    """The last 64 KiB of every log of these tasks."""
    tasks = {f"_{task}.out" for task in state.tasks}
    for log in sorted((Path(job.job_dir) / LOGS).glob("slurm-*.out")):
        if job.num_tasks > 1 and not any(log.name.endswith(end) for end in tasks):
            continue
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            yield stream.read().decode(errors="replace")


def before_python(job: JobRecord, job_id: str, state: TaskState) -> str:
    """What a job printed that ended before its first node wrote down that it starts: its last three lines, cut to 200.

    Empty where a node did start, or nothing was printed.
    """
    if any(read_document(path, JobAttempt).task in state.tasks for path in _attempts(job)):
        return ""
    lines = [line.strip() for text in log_ends(job, state) for line in without_steering(text).splitlines()]
    said = [line for line in lines if line and not _CONSEQUENCE.match(line)]
    if not said:
        return ""
    ends = " | ".join(redact(line)[:_LINE_CHARS] for line in said[-_NUM_LINES:])
    return f"mbr-perf did not start on the nodes; the job's log ends: {ends} (mbr-perf jobs logs {job_id})"


def _attempts(job: JobRecord) -> Iterator[Path]:
    return (Path(job.job_dir) / ATTEMPTS).glob("*.json")
