"""Starts runs of mbr-perf and programs of this folder, one after the other, until the time is used up."""

import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from case import Case, Check, Unfinished, facts_of, figures
from machine import Target
from shapes import Shape

import harness
from harness.launch.environment import Host
from harness.launch.processes import descendants, send
from harness.records.redact import redact
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_run

LEAST_S = 20.0  # a run with less time than this cannot even import torch
ENDS_S = 15.0  # mbr-perf ends its run within seconds after the time limit
LAST_CHARACTERS = 2000
SAME_NUMBERS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as ranks number GPUs


@dataclass(frozen=True)
class Ran:
    """A process that ended. ``folder`` holds its files, ``output`` the end of its stderr without secrets.

    ``record``: what a run of mbr-perf committed. ``was_killed``: it did not end in time.
    """

    exit_code: int
    seconds: float
    folder: Path
    output: str
    record: RunRecord | None = None
    was_killed: bool = False


def case_of(
    name: str, ran: Ran | Unfinished, checks: Callable[[Ran], Iterable[Check]], recompute: str = "none"
) -> Case:
    """Return the case of a run: what ``checks`` find, and its figures; without a record it has none."""
    if isinstance(ran, Unfinished):
        return ran.case(name, recompute)
    kept = (figures(ran.record), facts_of(ran.record)) if ran.record else ()
    return Case(name, recompute, tuple(checks(ran)), ran.seconds, *kept)


def timed_out(record: RunRecord) -> bool:
    """Return whether a run was stopped at its time limit, and nothing else went wrong."""
    return {rank.failure.kind for rank in record.ranks if rank.failure} == {"timeout"}


class Runs:
    """Starts nothing that would likely last beyond ``deadline_s`` on the monotonic clock.

    ``runs_dir`` receives a folder per run. ``programs``: the folder of this file. ``kept``: cases of earlier sittings by
    name, which are not run again.
    """

    def __init__(
        self, target: Target, runs_dir: Path, deadline_s: float, programs: Path,
        kept: Mapping[str, Case] | None = None, least_s: float = LEAST_S,
    ) -> None:  # fmt: skip
        self.target, self.programs, self.kept = target, programs, kept or {}
        self._runs_dir, self._deadline_s = runs_dir, deadline_s
        self._longest_s: defaultdict[str, float] = defaultdict(lambda: least_s)
        self._count = 0

    def run(self, name: str, shape: Shape, **asked: Any) -> Ran | Unfinished:
        """Run `mbr-perf run` with fields of `Request` in ``asked`` if there is time left. It ends at the deadline."""
        left = self.left_s("run")
        if left is None:
            return Unfinished()
        folder = self.folder(name)
        command = command_of(self.target.host, shape.options(self.target, **asked), folder, left)
        ran = finished(command, self.target.host.shell, folder, left + ENDS_S)
        self.took("run", ran.seconds)
        record = read_run(folder) if (folder / RECORD).is_file() else None
        stopped = timed_out(record) if record else ran.was_killed
        return Unfinished(ran.seconds) if stopped else replace(ran, record=record)

    def program(self, name: str, script: str, arguments: Sequence[str], env: Mapping[str, str]) -> Ran | Unfinished:
        """Run a program of this folder; its first argument is a new folder. It ends at the deadline."""
        left = self.left_s("program")
        if left is None:
            return Unfinished()
        folder = self.folder(name)
        folder.mkdir(parents=True)
        command = (self.target.host.python, str(self.programs / script), str(folder), *arguments)
        ran = finished(command, {**self.target.host.shell, **SAME_NUMBERS, **env}, folder, left)
        self.took("program", ran.seconds)
        return Unfinished(ran.seconds) if ran.was_killed else ran

    def left_s(self, kind: str) -> float | None:
        """Return the seconds until the deadline; None where the longest process of this kind so far took more."""
        left = self._deadline_s - time.monotonic()
        return None if left < self._longest_s[kind] else left

    def took(self, kind: str, seconds: float) -> None:
        """Note how long a process of this kind took."""
        self._longest_s[kind] = max(self._longest_s[kind], seconds)

    def folder(self, name: str) -> Path:
        """Return a new path for the next run, without creating it."""
        self._count += 1
        return self._runs_dir / f"{self._count:03d}-{name}"


def command_of(host: Host, options: Sequence[str], run_dir: Path, timeout_s: float) -> tuple[str, ...]:
    """Return the command of a run of mbr-perf into the new folder ``run_dir``."""
    limit = ("--timeout", f"{timeout_s:.0f}", "--json")
    return (host.python, "-m", "harness.app", "run", *options, "--run_dir", str(run_dir), *limit)


def finished(command: Sequence[str], env: Mapping[str, str], folder: Path, timeout_s: float) -> Ran:
    """Run ``command`` until it ends; after ``timeout_s``, end it with everything it started."""
    began, was_killed = time.monotonic(), False
    with subprocess.Popen(
        command, cwd=Path(harness.__file__).parents[1], env=dict(env), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            _, output = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            was_killed = True
            end(process, within_s=2.0)
            _, output = process.communicate()
        except BaseException:
            end(process, within_s=ENDS_S)
            raise
    text = redact(output.decode(errors="replace").strip())[-LAST_CHARACTERS:]
    seconds = round(time.monotonic() - began, 1)
    text = f"still running after {timeout_s:.0f} s, ended by gpu-check" if was_killed else text
    return Ran(process.returncode, seconds, folder, text, was_killed=was_killed)


def end(process: "subprocess.Popen[bytes]", within_s: float) -> None:
    """Ask it to end; after ``within_s`` kill it and everything it started."""
    family = descendants(process.pid)
    process.terminate()
    try:
        process.wait(timeout=within_s)
    except subprocess.TimeoutExpired:
        family = (*family, *descendants(process.pid))
        process.kill()
        process.wait()
    for member in family:
        send(member, signal.SIGKILL)
