"""Starts processes and measures their time."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from harness.records.quoting import quoted_error


class BenchmarkFailedError(RuntimeError):
    """A timed process did not end well."""


@dataclass(frozen=True)
class Timed:
    """Wall and processor seconds of one process and its children, and its output."""

    wall_s: float
    cpu_s: float
    stdout: str


def timed(command: Sequence[str], env: dict[str, str] | None = None) -> Timed:
    """Run a command to its end and time it. BenchmarkFailedError with its error if it does not exit with 0."""
    before, began = os.times(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    wall, after = time.perf_counter() - began, os.times()
    if done.returncode != 0:
        output = quoted_error(done.stderr or done.stdout)
        raise BenchmarkFailedError(f"{' '.join(command)} exited with {done.returncode}: {output}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Timed(wall, cpu, done.stdout)


def mbr_perf(*arguments: str) -> tuple[str, ...]:
    """Return the command line of the product under this interpreter."""
    return (sys.executable, "-m", "harness.app", *arguments)
