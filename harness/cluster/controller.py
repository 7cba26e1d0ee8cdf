"""What mbr-perf asks of a cluster: to queue, find, describe and cancel a job. Commands run with argument lists."""

import re
import shlex
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from harness.cluster.state import JobState
from harness.errors import BadRequestError, RunFailedError
from harness.launch.cluster_job import ClusterJob
from harness.records.job import SubmittedRecord
from harness.records.redact import redact
from harness.units import command_text

PATIENCE_S = 60.0
# Seconds from a submission that nobody answered to looking whether its job is there, and, if not, to the next try.
LOOK_AFTER_S = (3.0, 10.0, 30.0)


class NotSubmittedError(RunFailedError):
    """The cluster could not be reached, and knows nothing of the job."""


@dataclass(frozen=True)
class Answer:
    """The output of a command. ``code`` None: the command is not installed, or did not answer in time."""

    code: int | None
    out: str
    err: str


class Controller(ABC):
    """The cluster that this shell reaches. ``ignored``: variables of the shell that it does not hand on."""

    cluster: ClassVar[str]
    unreached: ClassVar[re.Pattern[str]]
    """What a command says if the controller does not answer, or too late: the job may be queued all the same."""
    gone: ClassVar[str]
    """What it says of a job that it does not know any more."""
    wrong_option: ClassVar[re.Pattern[str]]
    """What it says if it refuses an option, and so every job with it, or if it is not installed."""

    def __init__(self, shell: Mapping[str, str], look_after_s: Sequence[float] | None = None) -> None:
        self._look_after_s = LOOK_AFTER_S if look_after_s is None else look_after_s
        self._shell = dict(shell)
        self.ignored = tuple[str, ...]()

    @abstractmethod
    def find(self, job: ClusterJob, submitted_at: str) -> SubmittedRecord | Answer | None:
        """Return the latest job of this file; the cluster's message if it does not name one."""

    @abstractmethod
    def state(self, job: SubmittedRecord) -> JobState:
        """Return the state of a job. ``purged``: nobody knows it; ``unreachable``: nobody could be asked."""

    @abstractmethod
    def cancelling(self, job: SubmittedRecord) -> tuple[str, ...]:
        """Return the command that ends the job."""

    @abstractmethod
    def tested(self, job: ClusterJob) -> Answer:
        """Ask the cluster what it makes of a job. Nothing is queued, and no file is read."""

    def require_options(self, job: ClusterJob) -> None:
        """Raise BadRequestError if the cluster cannot be asked from here, or refuses an option of the job."""
        answer = self.tested(job)
        if answer.code != 0 and self.wrong_option.search(answer.err):
            raise self._refusal(job, answer, "nothing was submitted")

    @abstractmethod
    def _accepted(self, answer: Answer, job: ClusterJob, submitted_at: str) -> SubmittedRecord:
        """Return the job that an accepted submission names. RunFailedError if it names none."""

    def logs(self, _: SubmittedRecord) -> Iterator[tuple[str, str]]:
        """Yield name and text of the logs of the job's nodes that the cluster does not write itself."""
        yield from ()

    def submit(self, job: ClusterJob, submitted_at: str) -> SubmittedRecord:
        """Submit; look for the job and retry if nobody answers. BadRequestError: refused. RunFailedError: unknown."""
        answer, pauses = self.call(job.submit_command), [*self._look_after_s, 0.0]
        while self._is_unreached(answer):
            time.sleep(pauses.pop(0))
            found = self.find(job, submitted_at)
            if isinstance(found, SubmittedRecord):
                return found
            message = f"{self.cluster} could not be reached: {plain(answer.err)}"
            again = command_text("jobs", "submit", job.record.job_dir)
            if not pauses and found is None:
                raise NotSubmittedError(message, remedy=f"nothing is queued; {again} tries again")
            if not pauses:
                raise RunFailedError(f"{message}; the job may be queued", remedy=f"{again} checks before it submits")
            answer = self.call(job.submit_command) if found is None else answer
        if answer.code != 0:
            raise self._refusal(job, answer, f"the job was not submitted; its file is {job.record.script_path}")
        return self._accepted(answer, job, submitted_at)

    def cancel(self, job: SubmittedRecord) -> None:
        """End the job; no error for a job that has ended. RunFailedError if the cluster does not do it."""
        words = self.cancelling(job)
        answer = self.call(words)
        if answer.code != 0 and self.gone not in answer.err:
            message = plain(answer.err) or "no answer"
            raise RunFailedError(f"job {job.job_id} was not cancelled: {message}", remedy=shlex.join(words))

    def _refusal(self, job: ClusterJob, answer: Answer, remedy: str) -> BadRequestError:
        if answer.code is None:
            return BadRequestError(answer.err, remedy=f"submit where {job.submit_command[0]} is installed")
        message = f"{self.cluster} refused the job: {plain(answer.err) or answer.out}"
        return BadRequestError(message, remedy=self._advice(job, answer.err) or remedy)

    def _advice(self, _: ClusterJob, __: str) -> str:
        """Return what to do about a refusal in these words; empty if the words themselves say it."""
        return ""

    def _is_unreached(self, answer: Answer) -> bool:
        """Return whether the controller gave no answer: neither a job nor a refusal."""
        if answer.code is None:
            return "no answer" in answer.err
        return answer.code != 0 and self.unreached.search(answer.err) is not None

    def call(self, words: Sequence[str], text: str = "") -> Answer:
        """Run one command with ``text`` on its standard input. Return its answer, or why there is none."""
        try:
            done = subprocess.run(
                words,
                env=self._shell,
                input=text,
                capture_output=True,
                timeout=PATIENCE_S,
                check=False,
                text=True,
                errors="replace",
            )
        except (FileNotFoundError, PermissionError):
            return Answer(None, "", f"{words[0]}: not installed here, or not on PATH")
        except subprocess.TimeoutExpired:
            return Answer(None, "", f"{words[0]}: no answer within {PATIENCE_S:g} s")
        return Answer(done.returncode, done.stdout, done.stderr)


def plain(text: str) -> str:
    """Return a command's message without its name in front, on one line."""
    lines = [re.sub(r"^(\w+: )?(error|fatal): ", "", line).strip() for line in text.splitlines()]
    return redact("; ".join(line for line in lines if line))
