"""Creates, finds, describes and deletes a TrainJob. kubectl carries each request to the API and has the credentials."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from harness.cluster.controller import Answer, Controller, plain
from harness.cluster.state import JobState, Kind
from harness.launch.cluster_job import ClusterJob
from harness.launch.kubeflow_job import TRAIN_JOBS
from harness.records.job import KubeflowOptions, SubmittedRecord

_ENDED: Mapping[str, Kind] = {"Complete": "finished", "Failed": "failed"}
_UNKNOWN_FIELD = re.compile(r'unknown field \\?"spec\.(\w+)')
_NO_CLUSTER = "localhost:8080"  # kubectl goes there if no file names a cluster


class Kubernetes(Controller):
    """One namespace. New jobs go to the cluster of kubectl's current context, which their record names."""

    cluster, gone = "Kubernetes", "(NotFound)"
    unreached = re.compile(
        rf"Unable to connect to the server|connection to the server (?!{_NO_CLUSTER} ).* was refused|i/o timeout"
        r"|TLS handshake timeout|unexpected EOF|connection reset|deadline exceeded|etcdserver"
        # AlreadyExists: an earlier try came late. No other job has the name.
        r"|\((ServiceUnavailable|Timeout|ServerTimeout|TooManyRequests|InternalError|AlreadyExists)\)"
    )
    wrong_option = re.compile(
        rf"\((NotFound|Forbidden|Unauthorized|BadRequest)\)|unknown field|logged in|{_NO_CLUSTER}|: not installed here"
    )

    def __init__(self, shell: Mapping[str, str], namespace: str, look_after_s: Sequence[float] | None = None) -> None:
        super().__init__(shell, look_after_s)
        self._jobs = TRAIN_JOBS.format(namespace=namespace)
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    def find(self, job: ClusterJob, submitted_at: str) -> SubmittedRecord | Answer | None:
        """Ask for the job by its name, which no other job has."""
        found = self._accepted(Answer(0, "", ""), job, submitted_at)
        answer = self._get(f"{self._jobs}/{job.record.name}", found)
        if answer.code == 0:
            return found
        return None if self.gone in answer.err else answer

    def state(self, job: SubmittedRecord) -> JobState:
        """Read the conditions of the TrainJob, and what its pods wait for, or why the first of them ended early."""
        answer = self._get(f"{self._jobs}/{job.job_id}", job)
        if self.gone in answer.err:
            answer = self._ask_for_pods(job)
            if any(pod.get("status", {}).get("phase") not in ("Succeeded", "Failed") for pod in _pods_in(answer)):
                return JobState(kind="running", state="Terminating")
            if not self._is_unreached(answer):
                return JobState(kind="cancelled", state="DELETED")
        if answer.code != 0:
            why = plain(answer.err) or "no answer"
            return JobState(kind="unreachable", state="UNKNOWN", reason=why)
        state = state_of(json.loads(answer.out))
        if state.kind in ("finished", "failed") or (state.kind == "queued" and not state.reason):
            pods = _pods_in(self._ask_for_pods(job))
            found = (_waits_for(pod) if state.kind == "queued" else _ended_by(pod) for pod in pods)
            return state.model_copy(update=next(filter(None, found), {}))
        return state

    def tested(self, job: ClusterJob) -> Answer:
        """Create the TrainJob in a dry run, which finds missing rights, namespaces, fields and Trainer itself."""
        words = ("kubectl", "create", "--raw", f"{self._jobs}?dryRun=All&fieldValidation=Strict", "-f", "-")
        answer = self.call(words, job.render())
        # A webhook of the cluster can make a dry run impossible. It says nothing of the job.
        return Answer(0, "", "") if "does not support dry run" in answer.err else answer

    def cancelling(self, job: SubmittedRecord) -> tuple[str, ...]:
        """Delete the TrainJob: its pods get SIGTERM."""
        return ("kubectl", "delete", "--raw", f"{self._jobs}/{job.job_id}", *self._in(job))

    def logs(self, job: SubmittedRecord) -> Iterator[tuple[str, str]]:
        """Yield the log of each pod that Kubernetes still has."""
        for pod in _pods_in(self._ask_for_pods(job)):
            name = pod["metadata"]["name"]
            containers = pod.get("status", {}).get("containerStatuses", ())
            before = [("&previous=true", ".previous")] if any(each.get("restartCount") for each in containers) else []
            for query, suffix in (*before, ("", "")):
                answer = self._get(f"{self._pods}/{name}/log?container=node{query}", job)
                if answer.code == 0:
                    yield name + suffix, answer.out

    def _accepted(self, _: Answer, job: ClusterJob, submitted_at: str) -> SubmittedRecord:
        return SubmittedRecord(job_id=job.record.name, cluster=self._context, submitted_at=submitted_at)

    @cached_property
    def _context(self) -> str | None:
        """kubectl's current context; None inside a pod, which has none."""
        return self.call(("kubectl", "config", "current-context")).out.strip() or None

    def _in(self, job: SubmittedRecord) -> tuple[str, ...]:
        return (f"--context={job.cluster}",) if job.cluster else ()

    def _advice(self, job: ClusterJob, words: str) -> str:
        asked = job.record.options
        assert isinstance(asked, KubeflowOptions)
        if _NO_CLUSTER in words:
            return "kubectl knows no cluster: set KUBECONFIG, or choose one with kubectl config use-context"
        if not (unknown := set(_UNKNOWN_FIELD.findall(words))):
            return ""
        own = asked.base.get("spec")
        if unknown <= set(own if isinstance(own, dict) else ()):
            return "correct the --kubeflow_job file"
        return f"this is another release: add --kubeflow_trainer {'2.1' if asked.trainer == '2.2' else '2.2'}"

    def _ask_for_pods(self, job: SubmittedRecord) -> Answer:
        return self._get(f"{self._pods}?labelSelector=jobset.sigs.k8s.io/jobset-name={job.job_id}", job)

    def _get(self, path: str, job: SubmittedRecord) -> Answer:
        return self.call(("kubectl", "get", "--raw", path, *self._in(job)))


def _pods_in(answer: Answer) -> list[dict[str, Any]]:
    pods: list[dict[str, Any]] = json.loads(answer.out).get("items", []) if answer.code == 0 else []
    return pods


def state_of(train_job: dict[str, Any]) -> JobState:
    """Read ``status`` of a TrainJob. Kueue suspends a job while it waits for quota."""
    status = train_job.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", ()) if each.get("status") == "True"}
    for word, kind in _ENDED.items():
        if found := conditions.get(word):
            reason = str(found.get("reason", "")) if kind == "failed" else ""
            is_late = reason == "DeadlineExceeded"
            return JobState(kind="timeout" if is_late else kind, state=word, reason=reason)
    if "Suspended" in conditions:
        return JobState(kind="queued", state="Suspended", reason="Suspended")
    is_ready = any(each.get("ready") for each in status.get("jobsStatus", ()))
    return JobState(kind="running" if is_ready else "queued", state="Running" if is_ready else "Created")


def _waits_for(pod: dict[str, Any]) -> dict[str, str]:
    """Return as ``reason`` what a pod waits for in Kubernetes' word: ImagePullBackOff, Unschedulable; else empty."""
    status = pod.get("status", {})
    waiting = (each.get("state", {}).get("waiting") for each in status.get("containerStatuses", ()))
    conditions = (each for each in status.get("conditions", ()) if each.get("status") == "False")
    unscheduled = (each for each in conditions if each["type"] == "PodScheduled")
    return next(({"reason": str(each.get("reason", ""))} for each in (*waiting, *unscheduled) if each), {})


def _ended_by(pod: dict[str, Any]) -> dict[str, str]:
    """Return why the first container of a pod ended that failed: reason, exit code and kind of its job; else empty."""
    for container in pod.get("status", {}).get("containerStatuses", ()):
        for when in ("lastState", "state"):
            ended = container.get(when, {}).get("terminated", {})
            if ended.get("exitCode"):
                reason = str(ended.get("reason", ""))
                kind = "out_of_memory" if reason == "OOMKilled" else "failed"
                return {"kind": kind, "reason": reason, "exit_code": str(ended["exitCode"])}
    return {}
