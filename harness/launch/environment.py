"""The environment of ranks: variables from the table, a recipe, ``-E`` and the shell, each with its reason."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from harness.errors import BadRequestError, Problems
from harness.experiment.experiment import ExperimentSpec
from harness.launch.environment_rows import ALLOCATOR, ALLOCATOR_ALIAS, EXPANDABLE_SEGMENTS, ROWS, Asked
from harness.records.quoting import quoted_error
from harness.records.redact import MASK, is_secret_name, redact

Source = Literal["table", "your shell", "spec.env", "--pass_env", "inherited"]

# Shell variables that ranks inherit; the second group does not decide results and stays out of records.
INHERITED = (
    "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_*", "NCCL_*", "NVTE_*", "PYTORCH_*", "TORCH_*", "OMP_*", "MKL_*", "UCX_*",
    "GLOO_*", "NVIDIA_*", "TRITON_*", "TORCHINDUCTOR_*",
)  # fmt: skip
# SLURM_* numbers jobs, ports and processes, so that no two runs would have the same; a note names job and nodes.
# USER and LOGNAME name torch's kernel cache where the user id has no entry in passwd; Triton compiles with CC.
INHERITED_UNRECORDED = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_*", "TMPDIR", "VIRTUAL_ENV", "XDG_*", "CC", "CXX",
    "SLURM_*",
)  # fmt: skip

TORCHRUN_OWNS = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
     "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"}
)  # fmt: skip

# For children that run mbr-perf's modules: a folder harness in the working folder must not shadow this package.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}

NODE_NAME = "MBR_PERF_NODE"  # of a pod, whose hostname is not that of its node
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class EnvVar:
    """A variable of ranks, its reason, and its source."""

    name: str
    value: str
    reason: str
    source: Source

    @property
    def shown(self) -> str:
        """Return the value to show: secrets and variables passed by name are masked."""
        hidden = self.source == "--pass_env" or is_secret_name(self.name)
        return MASK if hidden else redact(self.value)


@dataclass(frozen=True)
class Host:
    """The machine, as far as a plan depends on it. ``num_cores``: cores that this process may use."""

    python: str
    hostname: str
    num_cores: int
    shell: Mapping[str, str]


def this_host() -> Host:
    """Read the process environment. Only this function does so outside ranks."""
    shell = MappingProxyType(dict(os.environ))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Host(sys.executable, shell.get(NODE_NAME) or socket.gethostname(), cores, shell)


def child_environment(
    spec: ExperimentSpec,
    shell: Mapping[str, str],
    pass_env: tuple[str, ...],
    local_ranks: int,
    *,
    num_cores: int = 1,
    nnodes: int = 1,
) -> tuple[EnvVar, ...]:
    """Return the environment of ranks: ``spec.env`` over shell over table. BadRequestError with all bad names."""
    _require_names(spec.env, shell, pass_env)
    spec_env, shell = _one_allocator(spec.env), _one_allocator(shell)
    asked = Asked(spec, local_ranks, num_cores, nnodes)
    of_table = next(row for row in ROWS if row.name == ALLOCATOR).value(asked) or ""
    allocator = spec_env.get(ALLOCATOR, shell.get(ALLOCATOR, of_table))
    asked = replace(asked, expandable_segments=EXPANDABLE_SEGMENTS in allocator)
    merged = {v.name: v for v in inherited(shell)}
    by_name = "from your shell, named by --pass_env"
    merged |= {name: EnvVar(name, shell[name], by_name, "--pass_env") for name in pass_env if name in shell}
    for row in ROWS:
        if (value := row.value(asked)) is not None:
            of_shell = None if row.forced else shell.get(row.name)
            source: Source = "table" if of_shell is None else "your shell"
            merged[row.name] = EnvVar(row.name, value if of_shell is None else of_shell, row.reason, source)
    merged |= {name: EnvVar(name, value, "from the recipe or -E", "spec.env") for name, value in spec_env.items()}
    return tuple(merged[name] for name in sorted(merged))


def recordable(environment: Iterable[EnvVar]) -> dict[str, str]:
    """Return the variables to record: those that affect results, redacted, without those from ``--pass_env``."""
    own = (v for v in environment if v.source != "inherited" or not _listed(v.name, INHERITED_UNRECORDED))
    return {v.name: v.shown for v in own if v.source != "--pass_env"}


def _listed(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def inherited(shell: Mapping[str, str]) -> list[EnvVar]:
    """Return the variables that ranks inherit from ``shell``, without names of secrets such as ``NVIDIA_API_KEY``."""
    allowed = (*INHERITED, *INHERITED_UNRECORDED)
    return [
        EnvVar(name, value, "inherited", "inherited")
        for name, value in shell.items()
        if _listed(name, allowed) and not is_secret_name(name)
    ]


def _one_allocator(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the allocator setting under the name that megatron-core also reads. Rule V06 refuses two settings."""
    value = environment.get(ALLOCATOR_ALIAS)
    if value is None or environment.get(ALLOCATOR, value) != value:
        return environment
    return {ALLOCATOR: value, **{name: kept for name, kept in environment.items() if name != ALLOCATOR_ALIAS}}


def secrets_in(env: Mapping[str, str], option: str = "", path: str = "") -> list[BadRequestError]:
    """Return a problem for each variable, and for the file's name, that looks like a secret: both would be recorded."""
    problems = Problems()
    name = Path(path).name
    if redact(name) != name:
        message = (
            f"{option} {redact(path)} contains what looks like a secret, and folders and records would get this name"
        )
        problems.add(message, "rename the file")
    for name, value in env.items():
        if is_secret_name(name) or redact(value) != value:
            what = "has the name of a secret" if is_secret_name(name) else "contains what looks like a secret"
            message = f"{name} {what}, and records contain the variables of recipes and -E"
            problems.add(message, f"export it and pass it by name: --pass_env {name}")
    return problems.found


def _require_names(spec_env: Mapping[str, str], shell: Mapping[str, str], pass_env: tuple[str, ...]) -> None:
    problems = Problems()
    for name in (*spec_env, *pass_env):
        if not _NAME.fullmatch(name):
            problems.add(f"{name!r} is not the name of a variable", "pass -E NAME=VALUE")
        if name in TORCHRUN_OWNS or name.startswith("TORCHELASTIC_"):
            problems.add(f"torchrun sets {name} for each rank", f"leave {name} out")
    problems.found += secrets_in(spec_env)
    for name, value in spec_env.items():
        if "\0" in value:
            problems.add(f"{name}: the value contains a NUL byte", f"give {name} another value")
    for name in pass_env:
        if name not in shell:
            problems.add(f"--pass_env {name}: not set in your shell", f"export {name}, or leave it out")
    problems.raise_if_any()


LATE = "no answer within"
LATE_REMEDY = "check the file system that the environment is on, and the load of this machine; then try again"


def output_of(command: Sequence[str], timeout_s: float, env: Mapping[str, str], text: bytes = b"") -> tuple[bytes, str]:
    """Return what a short process prints, and why that is not all (``LATE`` if the time was over); else empty."""
    env = {**env, **SAFE_PATH}
    try:
        done = subprocess.run(command, env=env, input=text, capture_output=True, timeout=timeout_s, check=False)
    except OSError as error:
        return b"", error.strerror or str(error)
    except subprocess.TimeoutExpired as late:
        return late.stdout or b"", f"{LATE} {timeout_s:g} s"
    return done.stdout, f"exit code {done.returncode}: {quoted_error(done.stderr)}" if done.returncode else ""
