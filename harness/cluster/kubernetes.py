"""Creates, finds, describes and deletes a TrainJob. kubectl carries each request to the API and has the credentials."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from harness.cluster.controller import Answer, Controller, plain
from harness.cluster.state import JobState, Kind
from harness.errors import BadRequestError
from harness.launch.cluster_job import ClusterJob
from harness.launch.kubeflow_job import TRAIN_JOBS
from harness.records.job import SubmittedRecord

_ENDED: Mapping[str, Kind] = {"Complete": "finished", "Failed": "failed"}
_OTHER_RELEASE = re.compile(r'unknown field \\?"spec\.(runtimePatches|podTemplateOverrides)')


class Kubernetes(Controller):
    """One namespace. New jobs go to the cluster of kubectl's current context, which their record names."""

    cluster, gone = "Kubernetes", "(NotFound)"
    unreached = re.compile(
        r"Unable to connect to the server|connection to the server .* was refused|i/o timeout|TLS handshake timeout"
        r"|\((ServiceUnavailable|Timeout|ServerTimeout|TooManyRequests|InternalError)\)"
    )
    wrong_option = re.compile(r"\((NotFound|Forbidden|Unauthorized|BadRequest)\)|unknown field")

    def __init__(self, shell: Mapping[str, str], namespace: str, look_after_s: Sequence[float] | None = None) -> None:
        super().__init__(shell, look_after_s)
        self._jobs = TRAIN_JOBS.format(namespace=namespace)
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    def find(self, job: ClusterJob, submitted_at: str) -> SubmittedRecord | Answer | None:
        """Ask for the job by its name, which no other job has."""
        answer = self._get(f"{self._jobs}/{job.record.name}", self._context)
        if answer.code == 0:
            return SubmittedRecord(job_id=job.record.name, cluster=self._context, submitted_at=submitted_at)
        return None if self.gone in answer.err else answer

    def state(self, job: SubmittedRecord) -> JobState:
        """Read the conditions of the TrainJob; while it is not ready, also what its pods wait for.

        A deleted TrainJob is gone at once. Its pods run on until they have written what they measured.
        """
        answer = self._get(f"{self._jobs}/{job.job_id}", job.cluster)
        if self.gone in answer.err:
            answer = self._ask_for_pods(job)
            if any(pod.get("status", {}).get("phase") not in ("Succeeded", "Failed") for pod in _pods_in(answer)):
                return JobState(kind="running", state="Terminating", source="kubernetes")
            if not self._is_unreached(answer):
                return JobState(kind="cancelled", state="DELETED", source="kubernetes")
        if answer.code != 0:
            why = plain(answer.err) or "no answer"
            return JobState(kind="unreachable", state="UNKNOWN", reason=why)
        state = state_of(json.loads(answer.out))
        if state.kind != "queued" or state.reason:
            return state
        return state.model_copy(
            update={"reason": next((_waits_for(pod) for pod in _pods_in(self._ask_for_pods(job))), "")}
        )

    def cancelling(self, job: SubmittedRecord) -> tuple[str, ...]:
        """Delete the TrainJob: its pods get SIGTERM."""
        return ("kubectl", "delete", "--raw", f"{self._jobs}/{job.job_id}", *_in(job.cluster))

    def logs(self, job: SubmittedRecord) -> Iterator[tuple[str, str]]:
        """Yield the log of each pod that Kubernetes still has."""
        for pod in _pods_in(self._ask_for_pods(job)):
            name = pod["metadata"]["name"]
            answer = self._get(f"{self._pods}/{name}/log", job.cluster)
            if answer.code == 0:
                yield name, answer.out

    def _id_in(self, _: Answer, job: ClusterJob) -> tuple[str, str | None]:
        return job.record.name, self._context

    @cached_property
    def _context(self) -> str | None:
        """kubectl's current context; None inside a pod, which has none."""
        return self.call(("kubectl", "config", "current-context")).out.strip() or None

    def _refusal(self, job: ClusterJob, answer: Answer) -> BadRequestError:
        refusal = super()._refusal(job, answer)
        if found := _OTHER_RELEASE.search(answer.err):
            release = "2.1" if found[1] == "runtimePatches" else "2.2"
            return BadRequestError(refusal.message, remedy=f"this is another release: add --kubeflow_trainer {release}")
        return refusal

    def _ask_for_pods(self, job: SubmittedRecord) -> Answer:
        return self._get(f"{self._pods}?labelSelector=jobset.sigs.k8s.io/jobset-name={job.job_id}", job.cluster)

    def _get(self, path: str, context: str | None) -> Answer:
        return self.call(("kubectl", "get", "--raw", path, *_in(context)))


def _pods_in(answer: Answer) -> list[dict[str, Any]]:
    pods: list[dict[str, Any]] = json.loads(answer.out).get("items", []) if answer.code == 0 else []
    return pods


def _in(context: str | None) -> tuple[str, ...]:
    return (f"--context={context}",) if context else ()


def state_of(train_job: dict[str, Any]) -> JobState:
    """Read ``status`` of a TrainJob. Kueue suspends a job while it waits for quota."""
    status = train_job.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", ()) if each.get("status") == "True"}
    for word, kind in _ENDED.items():
        if found := conditions.get(word):
            reason = str(found.get("reason", "")) if kind == "failed" else ""
            is_late = reason == "DeadlineExceeded"
            return JobState(kind="timeout" if is_late else kind, state=word, reason=reason, source="kubernetes")
    if "Suspended" in conditions:
        return JobState(kind="queued", state="Suspended", reason="Suspended", source="kubernetes")
    is_ready = any(each.get("ready") for each in status.get("jobsStatus", ()))
    return JobState(
        kind="running" if is_ready else "queued", state="Running" if is_ready else "Created", source="kubernetes"
    )


def _waits_for(pod: dict[str, Any]) -> str:
    """Return what a pod waits for in Kubernetes' word: ImagePullBackOff, Unschedulable; else empty."""
    status = pod.get("status", {})
    for container in status.get("containerStatuses", ()):
        if waiting := container.get("state", {}).get("waiting"):
            return str(waiting.get("reason", ""))
    conditions = (each for each in status.get("conditions", ()) if each.get("status") == "False")
    return next((str(each["reason"]) for each in conditions if each["type"] == "PodScheduled"), "")
