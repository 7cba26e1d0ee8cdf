"""The place of this process in a job, how a node runs its part, and why the cluster ended a run."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from harness.batch.launches import make_folder, understood_again, unstarted_record
from harness.batch.nodes import is_restarted
from harness.cluster.commands import Slurm
from harness.cluster.state import JobState, from_scontrol
from harness.errors import BadRequestError, RunFailedError
from harness.launch.build import host_with
from harness.launch.crew import Interruption
from harness.launch.environment import NODE_NAME, Host
from harness.launch.machine import software_for
from harness.launch.plan import LaunchPlan, LaunchRequest, Nodes, free_port
from harness.launch.required import require_machine
from harness.launch.warm import WarmParents
from harness.measure.checking import in_one_sentence
from harness.measure.experiment import require_megatron
from harness.measure.launched import launched
from harness.measure.prediction import KeptPrediction
from harness.measure.understanding import Understood
from harness.records.collect import LaunchOutcome, outcome_of_node
from harness.records.job import (
    MEETING,
    JobRecord,
    JobRun,
    Meeting,
    SubmittedRecord,
    attempt_files,
    attempt_path,
    past_time_limit,
)
from harness.records.run import RunRecord
from harness.records.store import RECORD, write_atomically, write_record
from harness.records.strict_json import read_document


@dataclass(frozen=True)
class Place:
    """Read from the cluster's variables. ``nodes``: all nodes of the job; on Kubernetes only this one."""

    job_id: str
    restart_count: int
    node_rank: int
    nnodes: int
    nodes: str
    head: str | None
    """Address of the first node, if the cluster's variables have it."""


def place_of(job: JobRecord, shell: Mapping[str, str]) -> Place:
    """Read the variables of srun or of Kubeflow's torch runtime. BadRequestError that names all missing ones."""
    needed = ("SLURM_JOB_ID", "SLURM_NODEID", "SLURM_NNODES")
    remedy = "srun sets them: start this command inside a job, one task per node"
    if not job.options.serves_nodes:
        needed = ("PET_MASTER_ADDR", "PET_NODE_RANK", "PET_NNODES")
        remedy = "a runtime with mlPolicy.torch sets them: name one as runtimeRef in the --kubeflow_job file"
    if missing := [name for name in needed if not shell.get(name)]:
        raise BadRequestError(f"{', '.join(missing)}: not set", remedy=remedy)
    rest = [*needed[1:], *(["SLURM_RESTART_COUNT"] if job.options.serves_nodes else [])]
    wrong = [f"{name}={value!r}" for name in rest if not (value := shell.get(name, "0")).isdecimal()]
    if wrong:
        raise BadRequestError(f"{', '.join(wrong)}: not a number", remedy=remedy)
    first, rank, nnodes = shell[needed[0]], int(shell[needed[1]]), int(shell[needed[2]])
    if job.options.serves_nodes:
        restarts = int(shell.get("SLURM_RESTART_COUNT", 0))
        return Place(first, restarts, rank, nnodes, shell.get("SLURM_JOB_NODELIST", ""), None)
    # Kubernetes counts no restarts of a job; a first node that finds an attempt has been started again.
    begun = len(attempt_files(Path(job.job_dir))) if rank == 0 else 0
    return Place(job.name, begun, rank, nnodes, shell.get(NODE_NAME, first), first)


# While a job ends, Slurm reports the state COMPLETING. The reason shows the final state.
_BY_REASON = {"NodeDown": "NODE_FAIL", "TimeLimit": "TIMEOUT", "Preempted": "PREEMPTED"}
_BY_STATE = frozenset({"NODE_FAIL", "TIMEOUT", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL"})


def why_ended(job: JobRecord, place: Place, host: Host) -> str:
    """Return the failure of an interrupted run; empty if someone cancelled it or the reason is unknown."""
    late = past_time_limit(job)
    if late or not job.options.serves_nodes:
        return late
    asked = SubmittedRecord(job_id=place.job_id, submitted_at="")
    answer = Slurm(host.shell).show(asked)
    state = from_scontrol(answer.out) if answer.code == 0 else None
    return ending_of(state, place.nnodes) if state else ""


def ending_of(state: JobState, nnodes: int) -> str:
    """Return the same, from the state that the controller reports at that moment."""
    name = _BY_REASON.get(state.reason) or (state.state if state.state in _BY_STATE else "")
    if name:
        reason = f" ({state.reason})" if state.reason else ""
        return f"Slurm: {name}{reason} on {state.nodes}"
    if state.state == "RUNNING" and nnodes > 1:
        return "Slurm: STEP ENDED, but not the job: its task on another node failed; see the job's log"
    return ""


BEGIN_PATIENCE_S = 900.0  # a node may start much later, e.g. while it fetches an image; the first node also predicts
COMMIT_PATIENCE_S = 300.0
_POLL_S = 0.2


@dataclass(frozen=True)
class NodeOfJob:
    """The part of this node in the job. ``caught``: the signal that ends it, if any."""

    job: JobRecord
    place: Place
    master_addr: str
    host: Host
    caught: Interruption
    parents: WarmParents | None = None

    def run(self, run: JobRun) -> RunRecord:
        """Take part in the run until the first node has committed it. RunFailedError if that never happens."""
        if self.place.node_rank > 0:
            return self._follow(run)
        run_dir = Path(run.run_dir)
        make_folder(run_dir)
        nodes = Nodes(master_port=self.job.launch.master_port)
        if self.job.nnodes > 1:
            nodes = Nodes(self.job.nnodes, 0, self.master_addr, self.job.launch.master_port or free_port())
        try:
            understood = self._understood(run, nodes)
        except BadRequestError as error:
            return self.refuse(run, _on_one_line(error))
        if nodes.nnodes > 1 and nodes.master_port is not None:
            meeting = Meeting(master_addr=self.master_addr, master_port=nodes.master_port)
            write_atomically(run_dir / MEETING, meeting)
        return self._launched(understood, run)

    def refuse(self, run: JobRun, why: str) -> RunRecord:
        """Commit a failed record with the reason why nothing was launched."""
        run_dir = Path(run.run_dir)
        record = self._amended(unstarted_record(run, why, self.host))
        write_record(run_dir, record)
        return record

    def has_first_restarted(self) -> bool:
        """Return whether the first node was started again: it then commits nothing."""
        return attempt_path(Path(self.job.job_dir), self.place.job_id, self.place.restart_count + 1).is_file()

    def _follow(self, run: JobRun) -> RunRecord:
        run_dir = Path(run.run_dir)
        record, meeting = run_dir / RECORD, run_dir / MEETING

        def is_over() -> bool:
            return record.is_file() or self.has_first_restarted()

        self.await_(lambda: meeting.is_file() or is_over(), BEGIN_PATIENCE_S, f"{run_dir}: node 0 did not begin")
        if not is_over():
            place = read_document(meeting, Meeting)
            nodes = Nodes(self.job.nnodes, self.place.node_rank, place.master_addr, place.master_port)
            try:
                if not is_restarted(run_dir, nodes.node_rank, self.place.nodes, self.job.options.cluster):
                    self._launched(self._understood(run, nodes), run)
            except BadRequestError as error:  # the first node reads this outcome, ends its ranks and commits
                outcome = LaunchOutcome(
                    status="failed", reason=f"nothing was launched on this node: {_on_one_line(error)}"
                )
                write_atomically(outcome_of_node(run_dir, nodes.node_rank), outcome)
        self.await_(is_over, COMMIT_PATIENCE_S, f"{run_dir}: node 0 did not commit the run", heeds_signals=False)
        return read_document(record, RunRecord)

    def await_(self, what: Callable[[], bool], patience_s: float, failure: str, *, heeds_signals: bool = True) -> None:
        """Wait for ``what``. RunFailedError with ``failure`` after the patience or a signal."""
        deadline = time.monotonic() + patience_s
        while not what():
            if heeds_signals and self.caught.signal is not None:
                raise RunFailedError(f"{failure} before {self.caught.signal.name} came")
            if time.monotonic() > deadline:
                raise RunFailedError(f"{failure} within {patience_s:g} s")
            time.sleep(_POLL_S)

    def _understood(self, run: JobRun, nodes: Nodes) -> Understood:
        how, run_dir, host = self.job.launch, Path(run.run_dir), host_with(self.host, run.build)
        software = run.build.software if run.build else software_for(run.spec.gpu, host)[0]
        how = how.model_copy(update={"launcher": "replay" if how.replay_from else "torchrun"})
        understood = understood_again(run, LaunchRequest(run.spec, run_dir, host, nodes, how), software)
        if isinstance(understood.plan, LaunchPlan):
            require_machine(run.spec, host, run.spec.ranks_per_node(nodes.nnodes), software)
            require_megatron(understood, understood.plan)
        return understood

    def _launched(self, understood: Understood, run: JobRun) -> RunRecord:
        is_planned = run.prediction is not None or run.no_prediction
        return launched(
            understood,
            run.run_id,
            progress=nullcontext(lambda _: None),  # the submitter reads the ranks' own heartbeats
            kept=KeptPrediction(run.prediction, run.no_prediction) if is_planned else None,
            parents=self.parents,
            amended=self._amended,
        ).record

    def _amended(self, record: RunRecord) -> RunRecord:
        """Add the job's id and command to the record, and the cluster's reason if the cluster ended the run."""
        place, options = self.place, self.job.options
        known: dict[str, object] = {"notes": (*record.notes, f"{options.cluster} job {place.job_id} on {place.nodes}")}
        where: dict[str, object] = {"command": self.job.command}
        where |= {"container": options.container_image} if options.container_image is not None else {}
        where |= {} if options.serves_nodes else {"job_id": place.job_id}
        known["provenance"] = record.provenance.model_copy(update=where)
        # An agent that gets Slurm's signal before its handler is set fails; this process got the signal too.
        ended = record.status == "interrupted" or (record.status == "failed" and self.caught.signal is not None)
        if ended and (why := why_ended(self.job, place, self.host)):
            known |= {"status": "failed", "failure": f"{why}; {record.failure or 'interrupted'}"}
        return record.model_copy(update=known)


def _on_one_line(error: BadRequestError) -> str:
    """Join the message of an error, because rules add lines to the remedy."""
    return " ".join(line.strip() for line in in_one_sentence(error).splitlines())
