"""Watches a sweep: time and memory of the harness whenever a run is committed."""

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from processes import BenchmarkFailedError, cpu_seconds

POLL_S = 0.01
WARM_PARENT = b"harness.engine.warm_parent"


@dataclass(frozen=True)
class Look:
    """A reading at a commit: wall seconds since the start, the harness's processor seconds, resident bytes (0: no parent)."""

    wall_s: float
    cpu_s: float
    harness_bytes: int
    parent_bytes: int


def watched(command: Sequence[str], records: Sequence[Path], log: Path, max_s: float) -> list[Look]:
    """Start the sweep; return a reading per record, in order of their commits, for at most ``max_s`` seconds.

    The command is ended after the last record: its report is not part of a run. BenchmarkFailedError if it ends earlier.
    """
    looks = list[Look]()
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        began = time.perf_counter()
        try:
            for record in records:
                while not record.exists():
                    if time.perf_counter() - began > max_s:
                        return looks
                    if process.poll() is not None and not record.exists():
                        last_lines = log.read_text(errors="replace")[-2000:]
                        raise BenchmarkFailedError(f"ended with {process.returncode} before {record}:\n{last_lines}")
                    time.sleep(POLL_S)
                looks.append(look(process.pid, time.perf_counter() - began))
        finally:
            process.terminate()
    return looks


def look(pid: int, wall_s: float) -> Look:
    """Return a reading of a running harness."""
    parents = [child for child in _children(pid) if WARM_PARENT in _command(child)]
    parent_bytes = _resident_bytes(parents[0]) if parents else 0  # those after it are agents that it forked
    return Look(wall_s, cpu_seconds(pid), _resident_bytes(pid), parent_bytes)


def _children(pid: int) -> list[int]:
    """Return the child processes, oldest first."""
    return sorted(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def _command(pid: int) -> bytes:
    """Return the command line of a process; empty if it has just ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
