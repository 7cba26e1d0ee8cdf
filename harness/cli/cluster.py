"""Checks the options of a job of a cluster."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from pydantic import JsonValue

from harness.cli.options import ClusterLaunchOptions
from harness.errors import BadRequestError, Problems
from harness.launch.kubeflow_job import part_of
from harness.records.job import KubeflowOptions, SlurmOptions
from harness.records.strict_yaml import read_yaml

_TIME = re.compile(r"(?:(?P<days>\d{1,3})-)?(?P<hours>\d{1,4}):(?P<minutes>[0-5]?\d):(?P<seconds>[0-5]?\d)")
_MINUTES = re.compile(r"\d{1,7}")


def settled_options(
    launcher: str, given: ClusterLaunchOptions, local: Mapping[str, object], others: list[str]
) -> dict[str, object]:
    """Return what of the job's options is not as it was given. BadRequestError, all at once, for contradictions.

    ``local``: the options that choose the nodes, by name; None for a default. ``others``: given ones of other clusters.
    """
    problems = Problems()
    if names := [f"--{name}" for name, value in local.items() if value is not None]:
        remedy = "leave them out: --num_gpus and --gpus_per_node decide how many nodes"
        problems.add(f"{', '.join(names)} cannot be combined with --launcher {launcher}", remedy)
    if others:
        problems.add(f"{', '.join(others)}: not with --launcher {launcher}", "leave them out")
    for name, number in (("segment", given.segment), ("pending_timeout", given.pending_timeout_minutes)):
        if number is not None and number < 1:
            problems.add(f"--{name} {number} must be at least 1", "")
    for option, value, hint in (
        ("--slurm_gpus", given.gpus, SlurmOptions.model_fields["gpus"]),
        ("--kubeflow_trainer", given.trainer, KubeflowOptions.model_fields["trainer"]),
    ):
        if value is not None and value not in (ways := get_args(hint.annotation)):
            problems.add(f"{option} {value!r}: no such value", f"one of {', '.join(ways)}")
    if given.detach and given.no_submit:
        problems.add("--detach and --no_submit exclude each other", "leave one of them out")
    minutes = problems.tried(lambda: limit_minutes(given.time_limit))
    base = problems.tried(lambda: _train_job(given.base))
    namespace = given.namespace or part_of(base, "metadata namespace")
    return {
        "time_limit_minutes": problems.having(minutes),
        "launcher": launcher,
        "base": base,
        "namespace": namespace if isinstance(namespace, str) else None,
        "exclude": None,
    }


def _train_job(file: Path | None) -> dict[str, JsonValue]:
    """Return the mapping in a file; ``{}`` without one. BadRequestError for anything else."""
    found = read_yaml(file, f"--kubeflow_job {file}", by_pyyaml=True).at(()) if file else {}
    remedy = "write a TrainJob, as for kubectl"
    if not isinstance(found, dict):
        raise BadRequestError(f"--kubeflow_job {file}: is not a mapping", remedy=remedy)
    try:
        return dict(json.loads(json.dumps(found, allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise BadRequestError(f"--kubeflow_job {file}: {error}", remedy=remedy) from error


def limit_minutes(text: str | None) -> int:
    """Return ``30``, ``01:30:00`` or ``1-12:00:00`` in whole minutes, rounded up.

    BadRequestError for any other text.
    """
    remedy = "--time_limit 30 (minutes) or 01:30:00"
    if text is None:
        raise BadRequestError("a job needs a time limit", remedy=remedy)
    match = _TIME.fullmatch(text)
    if match:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        total = days * 1440 + hours * 60 + minutes + (seconds > 0)
    else:
        total = int(text) if _MINUTES.fullmatch(text) else 0
    if total < 1:
        raise BadRequestError(f"--time_limit {text!r} must be a time of at least one minute", remedy=remedy)
    return total
