"""A job of a cluster as a value: the file that is submitted, and the command that submits it."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import BadRequestError
from harness.launch.environment import SAFE_PATH, EnvVar
from harness.records.job import JobRecord
from harness.records.redact import redact

CONTAINER_PYTHON = "python3"
WARNING_S = 90  # before the time limit the ranks are asked to end, so that they keep their measurements
_SHORT_LIMIT_MINUTES = 6  # of a shorter one a quarter: Slurm warns a job at once whose limit is nearer than that


def warning_s(time_limit_minutes: int) -> int:
    """Return how many seconds before the time limit the ranks are asked to end."""
    return WARNING_S if time_limit_minutes >= _SHORT_LIMIT_MINUTES else time_limit_minutes * 60 // 4


def unfit(given: Mapping[str, str | None], pattern: re.Pattern[str], file: str) -> list[BadRequestError]:
    """Return a problem for each option whose value is not of ``pattern``, so that ``file`` cannot hold it."""
    return [
        BadRequestError(f"{option} {value!r} cannot be in {file}", remedy=f"allowed: {pattern.pattern}")
        for option, value in given.items()
        if value is not None and not pattern.fullmatch(value)
    ]


def exported(variables: list[EnvVar], but: re.Pattern[str]) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the exported variables without ``but``, and the names left out because their values look secret."""
    allowed = {v.name: v.value for v in variables if not but.fullmatch(v.name)}
    secret = sorted(name for name, value in allowed.items() if redact(value) != value)
    kept = {name: value for name, value in allowed.items() if name not in secret} | SAFE_PATH
    return tuple(sorted(kept.items())), tuple(secret)


@dataclass(frozen=True)
class ClusterJob(ABC):
    """What is submitted. ``environment``: what the file exports; ``left_out``: names whose values look secret."""

    record: JobRecord
    python: str
    environment: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...] = ()

    @property
    @abstractmethod
    def submit_command(self) -> tuple[str, ...]:
        """Return the command that submits the file."""

    @abstractmethod
    def render(self) -> str:
        """Return the file, whole."""

    @property
    def task(self) -> tuple[str, ...]:
        """Return the command of each node."""
        module = "harness.sweep.run" if self.record.what == "sweep" else "harness.cluster.task"
        return (self.python, "-m", module, "--job_dir", self.record.job_dir)
