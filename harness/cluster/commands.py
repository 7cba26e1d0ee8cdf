"""Runs Slurm's commands: submit, query, cancel."""

import re
from collections.abc import Mapping, Sequence

from harness.cluster.controller import Answer, Controller
from harness.cluster.state import JobState, from_sacct, from_scontrol
from harness.errors import RunFailedError
from harness.launch.cluster_job import ClusterJob
from harness.launch.slurm_job import SlurmJob
from harness.records.job import SubmittedRecord

# Which Slurm is talked to; every other SLURM_* and SBATCH_* would change what the batch file says.
_WHICH_SLURM = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS", "SBATCH_CLUSTERS"})
_ANSWER = re.compile(r"(?P<job>\d+)(?:;(?P<cluster>\S+))?")


class Slurm(Controller):
    """Slurm's commands."""

    cluster, gone = "Slurm", "Invalid job id"
    unreached = re.compile(
        r"Unable to contact slurm controller|Socket timed out|Zero Bytes were transmitted|controller in standby mode"
        r"|Connection (refused|timed out|reset by peer)",
        re.IGNORECASE,
    )
    wrong_option = re.compile(
        r"invalid (partition|account|qos|feature|constraint)|reservation (is )?invalid|no partition specified"
        r"|(denied|not permitted)\b.*\b(partition|reservation|account|qos)|: not installed here",
        re.IGNORECASE,
    )

    def __init__(self, shell: Mapping[str, str], look_after_s: Sequence[float] | None = None) -> None:
        kept = {
            name: value
            for name, value in shell.items()
            if name in _WHICH_SLURM or not name.startswith(("SLURM_", "SBATCH_"))
        }
        super().__init__(kept, look_after_s)
        self.ignored = tuple(sorted(name for name in shell if name.startswith("SBATCH_") and name not in kept))

    def _accepted(self, answer: Answer, job: ClusterJob, submitted_at: str) -> SubmittedRecord:
        match = _ANSWER.fullmatch(answer.out.strip().rpartition("\n")[2])
        if match is None:
            message = f"sbatch printed {answer.out.strip()!r}, which names no job; the job may be queued"
            raise RunFailedError(message, remedy=f"check with squeue --name={job.record.name}")
        return SubmittedRecord(job_id=match["job"], cluster=match["cluster"], submitted_at=submitted_at)

    def find(self, job: ClusterJob, submitted_at: str) -> SubmittedRecord | Answer | None:
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
            elif identifier.isdecimal() and command.strip() == str(job.record.script_path):
                found = SubmittedRecord(job_id=identifier, cluster=cluster, submitted_at=submitted_at)
        return found

    def tested(self, job: ClusterJob) -> Answer:
        """``sbatch --test-only``."""
        assert isinstance(job, SlurmJob)
        return self.call(job.test_only)

    def show(self, job: SubmittedRecord) -> Answer:
        """``scontrol``: what the controller still knows, for minutes after the end."""
        return self.call(("scontrol", *_cluster(job), "-o", "show", "job", job.job_id))

    def account(self, job: SubmittedRecord) -> Answer:
        """``sacct``: ``state|exit code|nodes``, where accounting is kept."""
        words = ("--noheader", "--parsable2", "--allocations", f"--jobs={job.job_id}")
        return self.call(("sacct", *_cluster(job), *words, "--format=State,ExitCode,NodeList"))

    def state(self, job: SubmittedRecord) -> JobState:
        """Ask the controller, then accounting."""
        is_gone, why = False, ""
        for ask, read in ((self.show, from_scontrol), (self.account, from_sacct)):
            answer = ask(job)
            if found := read(answer.out) if answer.code == 0 else None:
                return found
            if answer.code is not None and (answer.code == 0 or self.gone in answer.err):
                is_gone = True
            elif not is_gone and not why:
                why = "".join(answer.err.strip().splitlines()[-1:]).strip()
            if not is_gone and any(words in answer.err for words in ("no answer", "Unable to contact", "timed out")):
                break  # each command waits long for a controller that is not there
        if is_gone:
            return JobState(kind="purged", state="UNKNOWN")
        return JobState(kind="unreachable", state="UNKNOWN", reason=why or "no answer")

    def cancelling(self, job: SubmittedRecord) -> tuple[str, ...]:
        """Return the call of ``scancel``."""
        return ("scancel", *_cluster(job), job.job_id)


def _cluster(job: SubmittedRecord) -> tuple[str, ...]:
    return (f"--clusters={job.cluster}",) if job.cluster else ()
