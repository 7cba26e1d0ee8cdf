"""Slurm's own commands, run with argument lists: submit, ask, cancel. What they say is kept as text."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.errors import BadRequestError, RunFailedError
from harness.launch.slurm.job import SlurmJob
from harness.records.job import SubmittedRecord
from harness.records.redact import redact

PATIENCE_S = 60.0
# Which Slurm is talked to; every other SLURM_* and SBATCH_* would change what the batch file says.
_WHICH_SLURM = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS", "SBATCH_CLUSTERS"})
_ANSWER = re.compile(r"(?P<job>\d+)(?:;(?P<cluster>\S+))?")

_WRONG_OPTION = re.compile(
    r"invalid (partition|account|qos|feature|constraint)|reservation (is )?invalid|no partition specified"
    r"|(denied|not permitted)\b.*\b(partition|reservation|account|qos)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Said:
    """What a command answered. ``code`` None: it is not installed, or said nothing in time."""

    code: int | None
    out: str
    err: str


class Slurm:
    """The Slurm that this shell reaches."""

    def __init__(self, shell: Mapping[str, str]) -> None:
        self._shell = {
            name: value
            for name, value in shell.items()
            if name in _WHICH_SLURM or not name.startswith(("SLURM_", "SBATCH_"))
        }
        self.ignored = tuple(sorted(name for name in shell if name.startswith("SBATCH_") and name not in self._shell))

    def submit(self, job: SlurmJob, submitted_at: str) -> SubmittedRecord:
        """What sbatch answered. BadRequestError with Slurm's own words where it refuses; nothing is queued then.

        RunFailedError where that cannot be known.
        """
        said = self.say(job.sbatch)
        if said.code is None and "no answer" in said.err:
            raise RunFailedError(f"{said.err}; the job may be queued", remedy=f"squeue --name={job.record.name} tells")
        if said.code is None:
            raise BadRequestError(said.err, remedy="submit where Slurm is installed")
        if said.code != 0:
            remedy = f"the job was not submitted; {job.script_path} is what was refused"
            raise BadRequestError(f"Slurm refused the job: {_plain(said.err) or said.out}", remedy=remedy)
        answer = _ANSWER.fullmatch(said.out.strip().rpartition("\n")[2])
        if answer is None:
            told = f"sbatch answered {said.out.strip()!r}, which names no job; it may be queued"
            raise RunFailedError(told, remedy=f"squeue --name={job.record.name} tells")
        cluster = answer["cluster"]
        return SubmittedRecord(job_id=answer["job"], cluster=cluster, submitted_at=submitted_at, sbatch=job.sbatch)

    def require_options(self, job: SlurmJob) -> None:
        """BadRequestError where Slurm does not know a name that an option gives, or is not installed here.

        Whatever else stands in the way of this job says nothing of others with the same options.
        """
        said = self.say(job.test_only)
        if said.code is None and "no answer" not in said.err:
            raise BadRequestError(said.err, remedy="submit where Slurm is installed")
        if said.code and names_wrong_option(said.err):
            raise BadRequestError(f"Slurm refused the job: {_plain(said.err)}", remedy="nothing was submitted")

    def show(self, job: SubmittedRecord) -> Said:
        """``scontrol``: what the controller still knows, for minutes after the end."""
        return self.say(("scontrol", *_cluster(job), "-o", "show", "job", job.job_id))

    def queue(self, job: SubmittedRecord) -> Said:
        """``squeue``: one line per task, ``task|state|reason|nodes``."""
        words = ("--noheader", "--states=all", f"--jobs={job.job_id}", "--format=%K|%T|%r|%N")
        return self.say(("squeue", *_cluster(job), *words))

    def account(self, job: SubmittedRecord) -> Said:
        """``sacct``: one line per task, ``id|state|exit code|nodes``, where accounting is kept."""
        words = ("--noheader", "--parsable2", "--allocations", f"--jobs={job.job_id}")
        return self.say(("sacct", *_cluster(job), *words, "--format=JobID,State,ExitCode,NodeList"))

    def cancel(self, job: SubmittedRecord) -> None:
        """``scancel``; no error for a job that has ended. RunFailedError where Slurm does not do it."""
        said = self.say(("scancel", *_cluster(job), job.job_id))
        if said.code != 0 and "Invalid job id" not in said.err:
            told = _plain(said.err) or "no answer"
            raise RunFailedError(f"job {job.job_id} was not cancelled: {told}", remedy=f"scancel {job.job_id}")

    def say(self, words: Sequence[str]) -> Said:
        """Run one command; its answer, or why there is none."""
        try:
            done = subprocess.run(
                words, env=self._shell, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=False,
                text=True, errors="replace",
            )  # fmt: skip
        except FileNotFoundError:
            return Said(None, "", f"{words[0]}: not installed here, or not on PATH")
        except PermissionError as error:
            return Said(None, "", f"{words[0]}: {error.strerror}")
        except subprocess.TimeoutExpired:
            return Said(None, "", f"{words[0]}: no answer within {PATIENCE_S:g} s")
        return Said(done.returncode, done.stdout, done.stderr)


def names_wrong_option(refusal: str) -> bool:
    """Whether Slurm refuses a partition, account, qos, reservation or constraint as such, and with it every job."""
    return _WRONG_OPTION.search(refusal) is not None


def _cluster(job: SubmittedRecord) -> tuple[str, ...]:
    return (f"--clusters={job.cluster}",) if job.cluster else ()


def _plain(text: str) -> str:
    """Slurm's message without the name of its command in front, on one line."""
    lines = [re.sub(r"^\w+: (error|fatal): ", "", line).strip() for line in text.splitlines()]
    return redact("; ".join(line for line in lines if line))
