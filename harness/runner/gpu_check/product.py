"""Runs `mbr-perf run` as a person would: a process, an exit code, a run folder."""

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import harness
from harness.launch.environment import Host
from harness.records.redact import redact
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_run

LAST_LINES = 5
# The product ends its run at the time limit by itself, within seconds.
ENDS_S = 15.0
KILLED = -9


@dataclass(frozen=True)
class Ran:
    """One run. ``record`` is None where none was committed; ``said`` are the last lines of its narration, without secrets.

    ``was_killed``: it was still there long after its time limit.
    """

    exit_code: int
    seconds: float
    run_dir: Path
    record: RunRecord | None
    said: str
    was_killed: bool = False

    @property
    def timed_out(self) -> bool:
        """As :func:`timed_out`; a run that had to be killed leaves no record."""
        return timed_out(self.record) if self.record else self.was_killed


def timed_out(record: RunRecord) -> bool:
    """Whether a run was stopped at its time limit, and nothing else had gone wrong."""
    return {rank.failure.kind for rank in record.ranks if rank.failure} == {"timeout"}


def run_product(host: Host, options: Sequence[str], run_dir: Path, timeout_s: float) -> Ran:
    """`mbr-perf run OPTIONS` into a new ``run_dir``, stopped by the product itself after ``timeout_s``, or killed soon after."""
    began, was_killed = time.monotonic(), False
    try:
        done = subprocess.run(
            command_of(host, options, run_dir, timeout_s), cwd=Path(harness.__file__).parents[1], env=dict(host.shell),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout_s + ENDS_S,
        )  # fmt: skip
        code, said = done.returncode, last_lines(done.stderr)
    except subprocess.TimeoutExpired:
        code, was_killed = KILLED, True
        said = f"still there {ENDS_S:.0f} s after its time limit, and killed"
    record = read_run(run_dir) if (run_dir / RECORD).is_file() else None
    return Ran(code, round(time.monotonic() - began, 1), run_dir, record, said, was_killed)


def last_lines(text: str) -> str:
    """Of what a run told, without secrets."""
    return redact("\n".join(text.strip().splitlines()[-LAST_LINES:]))


def command_of(host: Host, options: Sequence[str], run_dir: Path, timeout_s: float) -> tuple[str, ...]:
    """What :func:`run_product` starts."""
    limit = ("--timeout", f"{timeout_s:.0f}", "--json")
    return (host.python, "-m", "harness.cli.app", "run", *options, "--run_dir", str(run_dir), *limit)
