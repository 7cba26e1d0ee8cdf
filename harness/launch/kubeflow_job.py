"""A job of Kubernetes: one TrainJob of Kubeflow Trainer, and the command that creates it.

Fields: https://github.com/kubeflow/trainer, pkg/apis/trainer/v1alpha1/trainjob_types.go of v2.1.0 and v2.3.0.
"""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from harness.errors import BadRequestError, raise_all
from harness.launch.cluster_job import CONTAINER_PYTHON, ClusterJob, exported, unfit
from harness.launch.environment import NODE_NAME, Host, inherited
from harness.records.job import JobRecord, KubeflowOptions
from harness.records.redact import redact

TRAIN_JOBS = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs"
# The torch plugin refuses PET_*. The rest is true of the machine that submits: the image has its own.
_OF_THIS_MACHINE = re.compile(
    r"(PET|SLURM|SBATCH|XDG)_.*|(CUDA|NVIDIA)_VISIBLE_DEVICES|CUDA_(HOME|PATH)|(LD_LIBRARY_|PYTHON)?PATH|HOME|USER"
    r"|LOGNAME|TMPDIR|VIRTUAL_ENV|CC|CXX"
)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_PATH = re.compile(r"/.*")
_GRACE_MINUTES = 15  # after the time limit Kubernetes ends a job whose pods do not
_NODE = "node"  # the job and the container of a node in Kubeflow's runtimes for torch
_GPUS = "nvidia.com/gpu"
_RESOURCES = ("spec trainer resourcesPerNode limits", "spec trainer resourcesPerNode requests")
_MAPPINGS = ("metadata", "spec", "spec runtimeRef", "spec trainer", "spec trainer resourcesPerNode", *_RESOURCES)
_LISTS = ("spec trainer env", "spec runtimePatches", "spec podTemplateOverrides")
_TEXTS = ("metadata namespace", "spec runtimeRef name")
_OWN = (
    "metadata name",
    *(f"spec trainer {key}" for key in ("image", "numNodes", "command", "args")),
    *(f"{each} {_GPUS}" for each in _RESOURCES),
)
_TYPE = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"}


def option_problems(asked: KubeflowOptions, pass_env: tuple[str, ...]) -> list[BadRequestError]:
    """Return the problems of the options alone."""
    names = {"--kubeflow_namespace": asked.namespace, "--kubeflow_workdir_pvc": asked.workdir_pvc}
    names["--kubeflow_job: runtimeRef"] = text_in(asked.base, "spec runtimeRef name")
    problems = unfit(names, _NAME, "a TrainJob")
    problems += unfit({"--container_image": asked.container_image or None}, _IMAGE, "a TrainJob")
    problems += unfit({"--kubeflow_workdir_pvc_path": asked.workdir_pvc_path}, _PATH, "a TrainJob")
    if not asked.container_image:
        problems.append(BadRequestError("--launcher kubeflow needs an image", remedy="name it with --container_image"))
    if pass_env:
        remedy = "write the variable with valueFrom.secretKeyRef in spec.trainer.env of the --kubeflow_job file"
        problems.append(BadRequestError("--pass_env cannot be used with --launcher kubeflow", remedy=remedy))
    return [*problems, *_base_problems(asked.base)]


def _base_problems(base: dict[str, JsonValue]) -> list[BadRequestError]:
    """Return a problem for each part of the user's TrainJob that mbr-perf would have to replace."""
    wrong = [
        (path, f"is not {word}", "correct it")
        for kind, word, paths in ((dict, "a mapping", _MAPPINGS), (list, "a list", _LISTS), (str, "text", _TEXTS))
        for path in paths
        if not isinstance(_at(base, path), kind | None)
    ]
    wrong += [(key, f"is not {text}", "correct it") for key, text in _TYPE.items() if base.get(key, text) != text]
    wrong += [(path, "is set by mbr-perf", "leave it out") for path in _OWN if _at(base, path) is not None]
    secrets = dict.fromkeys(place for place, text in _texts(base) if redact(text) != text)
    remedy = "use valueFrom.secretKeyRef, or imagePullSecrets"
    wrong += [(path, "looks like a secret", remedy) for path in secrets]
    return [
        BadRequestError(f"--kubeflow_job: {redact(path.strip().replace(' ', '.'))} {problem}", remedy=remedy)
        for path, problem, remedy in wrong
    ]


def text_in(base: JsonValue, path: str) -> str | None:
    """Return the text of a TrainJob at the keys of ``path``, which blanks separate; None without one."""
    found = _at(base, path)
    return found if isinstance(found, str) else None


def _at(base: JsonValue, path: str) -> JsonValue:
    for key in path.split():
        base = base.get(key) if isinstance(base, dict) else None
    return base


def kubeflow_job(record: JobRecord, host: Host) -> "KubeflowJob":
    """Return the job of ``record``. One BadRequestError for all values that no TrainJob can hold."""
    asked = record.options
    assert isinstance(asked, KubeflowOptions)
    problems = option_problems(asked, record.launch.pass_env)
    job_dir = Path(record.job_dir)
    if asked.workdir_pvc and not job_dir.is_relative_to(asked.workdir_pvc_path):
        remedy = "mount the volume there on this machine, too, and name a folder below it with --results_dir"
        problem = f"{job_dir.parents[1]}: not below --kubeflow_workdir_pvc_path {asked.workdir_pvc_path}"
        problems.append(BadRequestError(problem, remedy=remedy))
    raise_all(problems)
    environment, left_out = exported(inherited(host.shell), _OF_THIS_MACHINE)
    return KubeflowJob(record, asked.python or CONTAINER_PYTHON, environment, left_out, asked=asked)


@dataclass(frozen=True, kw_only=True)
class KubeflowJob(ClusterJob):
    """One pod for each node. Each reads its place from the PET_* variables of Kubeflow's torch runtime."""

    asked: KubeflowOptions

    @property
    def submit_command(self) -> tuple[str, ...]:
        """Return the command. Strict: otherwise Kubernetes drops fields that this release of Trainer lacks."""
        path = f"{TRAIN_JOBS.format(namespace=self.asked.namespace)}?fieldValidation=Strict"
        return ("kubectl", "create", "--raw", path, "-f", str(self.record.script_path))

    def render(self) -> str:
        """Return the TrainJob as JSON."""
        return json.dumps(self.body(), indent=1) + "\n"

    def body(self) -> dict[str, JsonValue]:
        """Return the TrainJob: the user's own, completed."""
        record, asked = self.record, self.asked
        listed = _at(asked.base, "spec trainer env")
        named = [each.get("name") for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        env: list[JsonValue] = [{"name": NODE_NAME, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
        env += [{"name": name, "value": value} for name, value in self.environment if name not in named]
        trainer: dict[str, JsonValue] = {
            "numNodes": record.nnodes,
            "image": asked.container_image,
            "command": list(self.task),
            "env": env,
        }
        if record.gpus_per_node:
            gpus: JsonValue = {_GPUS: str(record.gpus_per_node)}
            trainer["resourcesPerNode"] = {"limits": gpus, "requests": gpus}
        spec: dict[str, JsonValue] = {"trainer": trainer, **self._pods()}
        if asked.trainer != "2.1" and _at(asked.base, "spec activeDeadlineSeconds") is None:
            spec["activeDeadlineSeconds"] = (asked.time_limit_minutes + _GRACE_MINUTES) * 60
        own: dict[str, JsonValue] = {"metadata": {"name": record.name, "namespace": asked.namespace}, "spec": spec}
        default: dict[str, JsonValue] = {**_TYPE, "metadata": {}, "spec": {"runtimeRef": {"name": "torch-distributed"}}}
        return _completed(_completed(default, asked.base), own)

    def _pods(self) -> dict[str, JsonValue]:
        """Return what changes the pods of the runtime: the volume, and the nodes to avoid if there are others."""
        asked, pod = self.asked, dict[str, JsonValue]()
        if asked.workdir_pvc is not None:
            mount: JsonValue = {"name": "mbr-perf", "mountPath": asked.workdir_pvc_path}
            pod["volumes"] = [{"name": "mbr-perf", "persistentVolumeClaim": {"claimName": asked.workdir_pvc}}]
            pod["containers"] = [{"name": _NODE, "volumeMounts": [mount]}]
        if asked.exclude:
            others: JsonValue = [
                {"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in asked.exclude.split(",")
            ]
            preferred: JsonValue = [{"weight": 100, "preference": {"matchFields": others}}]
            pod["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
        if not pod:
            return {}
        if asked.trainer == "2.1":
            return {"podTemplateOverrides": [{"targetJobs": [{"name": _NODE}], "spec": pod}]}
        jobs: JsonValue = [{"name": _NODE, "template": {"spec": {"template": {"spec": pod}}}}]
        runtime: JsonValue = {"template": {"spec": {"replicatedJobs": jobs}}}
        return {"runtimePatches": [{"manager": "mbr-perf/results", "trainingRuntimeSpec": runtime}]}


def _texts(value: JsonValue, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield the place and form of everything that may be a secret: values behind their names, and lists as words."""
    if isinstance(value, dict):
        yield where, f"{value.get('name')}={value.get('value')}"
        for key, inner in value.items():
            is_text = key != "topologyKey" and not isinstance(inner, dict | list)
            yield f"{where} {key}", f"{key}={inner if is_text else ''}"
            yield from _texts(inner, f"{where} {key}")
    elif isinstance(value, list):
        yield where, shlex.join(each for each in value if isinstance(each, str))
        for inner in value:
            yield from _texts(inner, where)
    else:
        yield where, str(value)


def _completed(base: dict[str, JsonValue], own: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Merge two objects: values of ``own`` win, lists are joined."""
    merged = dict(base)
    for key, value in own.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[key] = _completed(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            merged[key] = [*before, *value]
        else:
            merged[key] = value
    return merged
