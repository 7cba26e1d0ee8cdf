"""Runs Slurm's commands with argument lists: submit, query, cancel. Their output is kept as text."""

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.errors import BadRequestError, RunFailedError
from harness.launch.slurm_job import SlurmJob
from harness.records.job import SubmittedRecord
from harness.records.redact import redact

PATIENCE_S = 60.0
# Seconds from a submission that nobody answered to looking whether its job is there, and, if not, to the next try.
LOOK_AFTER_S = (3.0, 10.0, 30.0)
# Which Slurm is talked to; every other SLURM_* and SBATCH_* would change what the batch file says.
_WHICH_SLURM = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS", "SBATCH_CLUSTERS"})
_ANSWER = re.compile(r"(?P<job>\d+)(?:;(?P<cluster>\S+))?")

_WRONG_OPTION = re.compile(
    r"invalid (partition|account|qos|feature|constraint)|reservation (is )?invalid|no partition specified"
    r"|(denied|not permitted)\b.*\b(partition|reservation|account|qos)",
    re.IGNORECASE,
)
# A controller that does not answer, or too late: the job may be queued all the same.
_UNREACHED = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Zero Bytes were transmitted|controller in standby mode"
    r"|Connection (refused|timed out|reset by peer)",
    re.IGNORECASE,
)


class NotSubmittedError(RunFailedError):
    """Slurm could not be reached, and knows nothing of the job."""


@dataclass(frozen=True)
class Answer:
    """The output of a command. ``code`` None: the command is not installed, or did not answer in time."""

    code: int | None
    out: str
    err: str


class Slurm:
    """The Slurm that this shell reaches. ``look_after_s``: the pauses after submissions that nobody answered."""

    def __init__(self, shell: Mapping[str, str], look_after_s: Sequence[float] | None = None) -> None:
        self._look_after_s = LOOK_AFTER_S if look_after_s is None else look_after_s
        self._shell = {
            name: value
            for name, value in shell.items()
            if name in _WHICH_SLURM or not name.startswith(("SLURM_", "SBATCH_"))
        }
        self.ignored = tuple(sorted(name for name in shell if name.startswith("SBATCH_") and name not in self._shell))

    def submit(self, job: SlurmJob, submitted_at: str) -> SubmittedRecord:
        """Return what sbatch answered. BadRequestError with Slurm's own words if it refuses; nothing is queued then.

        Where the controller does not answer the job is looked for, and submitted again if it is not there:
        NotSubmittedError if that does not help, RunFailedError where Slurm does not say whether the job is there.
        """
        answer = self.call(job.sbatch)
        for pause_s in self._look_after_s:
            if not _is_unreached(answer):
                break
            time.sleep(pause_s)
            found = self.find(job, submitted_at)
            if isinstance(found, SubmittedRecord):
                return found
            answer = self.call(job.sbatch) if found is None else answer
        if _is_unreached(answer):
            return self._looked_for(job, submitted_at, answer)
        if answer.code is None:
            raise BadRequestError(answer.err, remedy="submit where Slurm is installed")
        if answer.code != 0:
            remedy = f"the job was not submitted; its batch file is {job.script_path}"
            raise BadRequestError(f"Slurm refused the job: {_plain(answer.err) or answer.out}", remedy=remedy)
        match = _ANSWER.fullmatch(answer.out.strip().rpartition("\n")[2])
        if match is None:
            message = f"sbatch printed {answer.out.strip()!r}, which names no job; the job may be queued"
            raise RunFailedError(message, remedy=f"check with squeue --name={job.record.name}")
        cluster = match["cluster"]
        return SubmittedRecord(job_id=match["job"], cluster=cluster, submitted_at=submitted_at, sbatch=job.sbatch)

    def _looked_for(self, job: SlurmJob, submitted_at: str, answer: Answer) -> SubmittedRecord:
        """Return the job after the last try; the errors of :meth:`submit` where it is not there."""
        found = self.find(job, submitted_at)
        if isinstance(found, SubmittedRecord):
            return found
        message = f"Slurm could not be reached: {_plain(answer.err)}"
        again = f"mbr-perf jobs submit {job.record.job_dir}"
        if found is None:
            raise NotSubmittedError(message, remedy=f"nothing is queued; {again} tries again")
        raise RunFailedError(f"{message}; the job may be queued", remedy=f"{again} checks this before it submits")

    def find(self, job: SlurmJob, submitted_at: str) -> SubmittedRecord | Answer | None:
        """Return the latest job of this batch file; Slurm's message if Slurm does not name one."""
        words = ("--noheader", "--states=all", f"--name={job.record.name}", "--format=%F|%o")
        answer = self.call(("squeue", *words))
        if answer.code != 0:
            return answer
        cluster, found = None, None
        for line in answer.out.splitlines():
            identifier, _, command = line.strip().partition("|")
            if line.startswith("CLUSTER: "):
                cluster = line.removeprefix("CLUSTER: ").strip()
            elif identifier.isdecimal() and command.strip() == str(job.script_path):
                found = SubmittedRecord(
                    job_id=identifier, cluster=cluster, submitted_at=submitted_at, sbatch=job.sbatch
                )
        return found

    def require_options(self, job: SlurmJob) -> None:
        """BadRequestError where Slurm does not know a name that an option gives, or is not installed here.

        Whatever else stands in the way of this job says nothing of others with the same options.
        """
        answer = self.call(job.test_only)
        if answer.code is None and "no answer" not in answer.err:
            raise BadRequestError(answer.err, remedy="submit where Slurm is installed")
        if answer.code and names_wrong_option(answer.err):
            raise BadRequestError(f"Slurm refused the job: {_plain(answer.err)}", remedy="nothing was submitted")

    def show(self, job: SubmittedRecord) -> Answer:
        """``scontrol``: what the controller still knows, for minutes after the end."""
        return self.call(("scontrol", *_cluster(job), "-o", "show", "job", job.job_id))

    def account(self, job: SubmittedRecord) -> Answer:
        """``sacct``: ``state|exit code|nodes``, where accounting is kept."""
        words = ("--noheader", "--parsable2", "--allocations", f"--jobs={job.job_id}")
        return self.call(("sacct", *_cluster(job), *words, "--format=State,ExitCode,NodeList"))

    def cancel(self, job: SubmittedRecord) -> None:
        """Run ``scancel``; no error for a job that has ended. RunFailedError if Slurm does not do it."""
        answer = self.call(("scancel", *_cluster(job), job.job_id))
        if answer.code != 0 and "Invalid job id" not in answer.err:
            message = _plain(answer.err) or "no answer"
            raise RunFailedError(f"job {job.job_id} was not cancelled: {message}", remedy=f"scancel {job.job_id}")

    def call(self, words: Sequence[str]) -> Answer:
        """Run one command; its answer, or why there is none."""
        try:
            done = subprocess.run(
                words,
                env=self._shell,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PATIENCE_S,
                check=False,
                text=True,
                errors="replace",
            )
        except FileNotFoundError:
            return Answer(None, "", f"{words[0]}: not installed here, or not on PATH")
        except PermissionError as error:
            return Answer(None, "", f"{words[0]}: {error.strerror}")
        except subprocess.TimeoutExpired:
            return Answer(None, "", f"{words[0]}: no answer within {PATIENCE_S:g} s")
        return Answer(done.returncode, done.stdout, done.stderr)


def names_wrong_option(refusal: str) -> bool:
    """Return whether Slurm refuses a partition, account, qos, reservation or constraint, and so every job with it."""
    return _WRONG_OPTION.search(refusal) is not None


def _is_unreached(answer: Answer) -> bool:
    """Return whether the controller gave no answer: neither a job nor a refusal."""
    return (
        "no answer" in answer.err if answer.code is None else answer.code != 0 and bool(_UNREACHED.search(answer.err))
    )


def _cluster(job: SubmittedRecord) -> tuple[str, ...]:
    return (f"--clusters={job.cluster}",) if job.cluster else ()


def _plain(text: str) -> str:
    """Slurm's message without the name of its command in front, on one line."""
    lines = [re.sub(r"^\w+: (error|fatal): ", "", line).strip() for line in text.splitlines()]
    return redact("; ".join(line for line in lines if line))
