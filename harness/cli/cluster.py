"""Makes the request of a job of a cluster from its options."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from pydantic import JsonValue

from harness.cli.options import ClusterLaunchOptions, LocalLaunchOptions
from harness.cli.requests import given_options, read
from harness.errors import BadRequestError, Problems
from harness.launch.jobs import option_problems
from harness.launch.kubeflow_job import text_in
from harness.records.job import CLUSTERS, ClusterRequest, KubeflowOptions, SlurmOptions
from harness.records.strict_yaml import read_yaml

_TIME = re.compile(r"(?:(\d{1,3})-)?(\d{1,4}):([0-5]?\d):([0-5]?\d)|(\d{1,7})")
_POSITIVE = range(1, 1_000_000)
_GPUS = get_args(SlurmOptions.model_fields["gpus"].annotation)
_RELEASES = get_args(KubeflowOptions.model_fields["trainer"].annotation)


def cluster_request(
    launch: LocalLaunchOptions, given: ClusterLaunchOptions, local: Mapping[str, object]
) -> ClusterRequest:
    """Return the options as one value. BadRequestError, all at once, for options that contradict each other."""
    launcher = launch.launcher
    if launcher not in CLUSTERS:
        takers = [each for each in CLUSTERS if not _foreign(each, given)] or CLUSTERS
        problem = f"{', '.join(given_options(given, but=()))}: only with --launcher {' or '.join(takers)}"
        raise BadRequestError(problem, remedy="add it, or leave them out")
    problems = _contradictions(launcher, given, local)
    options = read(CLUSTERS[launcher], given, **_settled(launcher, given, problems))
    if problems.found:
        problems.found += option_problems(options, tuple(launch.pass_env or ()))
    problems.raise_if_any()
    return ClusterRequest(options=options, submit=not given.no_submit, detach=given.detach)


def _contradictions(launcher: str, given: ClusterLaunchOptions, local: Mapping[str, object]) -> Problems:
    problems = Problems()
    if names := [f"--{name}" for name, value in local.items() if value is not None]:
        remedy = "leave them out: --num_gpus and --gpus_per_node decide how many nodes"
        problems.add(f"{', '.join(names)} cannot be combined with --launcher {launcher}", remedy)
    if names := _foreign(launcher, given):
        problems.add(f"{', '.join(names)} cannot be used with --launcher {launcher}", "leave them out")
    if given.detach and given.no_submit:
        problems.add("--detach and --no_submit exclude each other", "leave one of them out")
    if given.workdir_pvc_path is not None and given.workdir_pvc is None:
        problems.add("--kubeflow_workdir_pvc_path needs a volume", "name its claim with --kubeflow_workdir_pvc")
    return problems


def _settled(launcher: str, given: ClusterLaunchOptions, problems: Problems) -> dict[str, object]:
    settled: dict[str, object] = {"launcher": launcher, "exclusive": not given.no_exclusive, "exclude": None}
    for option, name, allowed, words in (
        ("--segment", "segment", _POSITIVE, "at least 1"),
        ("--pending_timeout", "pending_timeout_minutes", _POSITIVE, "at least 1"),
        ("--slurm_gpus", "gpus", _GPUS, ", ".join(_GPUS)),
        ("--kubeflow_trainer", "trainer", _RELEASES, ", ".join(_RELEASES)),
    ):
        value = settled[name] = getattr(given, name)
        if value is not None and value not in allowed:
            problems.add(f"{option} {value!r} is not possible", f"use {words}")
            settled[name] = None
    settled["time_limit_minutes"] = problems.tried(lambda: limit_minutes(given.time_limit)) or 1
    base = problems.tried(lambda: _train_job(given.base)) or {}
    return settled | {"base": base, "namespace": given.namespace or text_in(base, "metadata namespace")}


def _foreign(launcher: str, given: ClusterLaunchOptions) -> list[str]:
    exclusive = ("no_exclusive",) if launcher == "slurm" else ()
    own = {*CLUSTERS[launcher].model_fields, "time_limit", "detach", "no_submit", *exclusive}
    return given_options(given, but=own)


def _train_job(file: Path | None) -> dict[str, JsonValue]:
    found = read_yaml(file, f"--kubeflow_job {file}", by_pyyaml=True).at(()) if file else {}
    remedy = "write a TrainJob, as for kubectl"
    if not isinstance(found, dict):
        raise BadRequestError(f"--kubeflow_job {file}: is not a mapping", remedy=remedy)
    try:
        return dict(json.loads(json.dumps(found, allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise BadRequestError(f"--kubeflow_job {file}: {error}", remedy=remedy) from error


def limit_minutes(text: str | None) -> int:
    """Return ``30``, ``01:30:00`` or ``1-12:00:00`` in minutes, rounded up; BadRequestError for other text."""
    remedy = "--time_limit 30 (minutes) or 01:30:00"
    if text is None:
        raise BadRequestError("a job needs a time limit", remedy=remedy)
    parts = match.groups() if (match := _TIME.fullmatch(text)) else ()
    days, hours, minutes, seconds, alone = (int(part or 0) for part in parts or "00000")
    total = days * 1440 + hours * 60 + minutes + (seconds > 0) + alone
    if total < 1:
        raise BadRequestError(f"--time_limit {text!r} must be a time of at least one minute", remedy=remedy)
    return total
