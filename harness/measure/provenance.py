"""Where and with what a run was measured."""

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path

import harness
from harness.launch.environment import Host, output_of, recordable, this_host
from harness.launch.plan import LaunchPlan
from harness.launch.replay import Plan
from harness.records.folders import checkout_dir
from harness.records.rank import RankRecord, processor_name
from harness.records.redact import own_command
from harness.records.run import NodeSample, Provenance
from harness.units import utc_now

Began = tuple[str, float]
"""When a run began: UTC, and by the monotonic clock, since a wall clock may be set back."""


def provenance(
    began: Began, plan: Plan | None, ranks: tuple[RankRecord, ...], nodes: tuple[NodeSample, ...], host: Host
) -> Provenance:
    """Facts of a run. Versions and devices are those of rank 0. ``plan`` None: nothing was started."""
    first, checkout = next((rank for rank in ranks if rank.device), None), checkout_dir()
    return Provenance(
        started_at=began[0],
        finished_at=utc_now(),
        duration_s=round(time.monotonic() - began[1], 3),
        command=own_command(),
        mbr_perf=harness.__version__,
        git_commit=git_commit(),
        git_branch=(git(checkout, "symbolic-ref", "--quiet", "--short", "HEAD") or None) if checkout else None,
        container=container_of(host.shell),
        job_id=host.shell.get("SLURM_ARRAY_JOB_ID") or host.shell.get("SLURM_JOB_ID"),
        hostname=host.hostname,
        platform=platform.platform(),
        processor=processor_name(),
        num_cpus=len(os.sched_getaffinity(0)),
        device_name=first.device.name if first and first.device else None,
        driver_version=next((node.driver_version for node in nodes if node.driver_version), None),
        versions=first.versions if first else {},
        environment=recordable(plan.env) if isinstance(plan, LaunchPlan) else {},
    )


def container_of(shell: Mapping[str, str]) -> str | None:
    """The container image, named by NVIDIA's variables, e.g. ``nvidia pytorch 25.09 build 1234``; None elsewhere."""
    release = shell.get("NVIDIA_PYTORCH_VERSION")
    if not release:
        return None
    build = shell.get("NVIDIA_BUILD_ID")
    return f"nvidia pytorch {release}" + (f" build {build}" if build else "")


def git_commit() -> str | None:
    """Return the checkout's commit, with ``+`` if files differ from it; None for an installed wheel."""
    checkout = checkout_dir()
    if checkout is None:
        return None
    described = git(checkout, "rev-parse", "HEAD")
    dirty = git(checkout, "status", "--porcelain", "--untracked-files=no")
    return None if described is None else described + ("+" if dirty else "")


def git(folder: Path, *arguments: str) -> str | None:
    """Return what git answers in that folder, without surrounding blanks; None if it fails or is not there."""
    answer, why = output_of(("git", "-C", str(folder), *arguments), 10.0, this_host().shell)
    return None if why else answer.decode(errors="replace").strip()
