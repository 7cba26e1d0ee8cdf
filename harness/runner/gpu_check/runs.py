"""Starts runs and programs one after the other until the time is used up."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.runner.gpu_check.case import Case, Unfinished
from harness.runner.gpu_check.product import Ran, run_product
from harness.runner.gpu_check.programs import Program, run_program
from harness.runner.gpu_check.shapes import Shape
from harness.runner.gpu_check.target import Target

# A run that has less than this left cannot even import torch.
LEAST_S = 20.0


class Runs:
    """``runs_dir`` receives one folder per run; none is started that would likely outlast ``deadline_s``.

    ``deadline_s`` is on the monotonic clock. ``programs``: the folder of what is started beside the product. ``kept``:
    cases of earlier sittings by name, which are not run again. ``least_s``: nothing takes less. ``told``: what is
    not taken over of them, in words.
    """

    def __init__(
        self, target: Target, runs_dir: Path, deadline_s: float, programs: Path,
        kept: Mapping[str, Case] | None = None, least_s: float = LEAST_S,
    ) -> None:  # fmt: skip
        self.target, self.programs, self.kept = target, programs, kept or {}
        self._runs_dir, self._deadline_s = runs_dir, deadline_s
        self._longest_s: defaultdict[str, float] = defaultdict(lambda: least_s)
        self._count = 0
        self.told: list[str] = []

    def kept_case(self, name: str, shape: Shape, **asked: Any) -> Case | None:
        """That of an earlier sitting, unless ``shape`` with the options ``asked`` has become another experiment."""
        case = self.kept.get(name)
        if case is None or case.fingerprint == shape.fingerprint(self.target, **asked):
            return case
        self.told.append(f"not taken over, of another recipe: {name}")
        return None

    def run(self, name: str, options: Sequence[str]) -> Ran | Unfinished:
        """One `mbr-perf run`, if there is time left for it. It is stopped at the deadline at the latest."""
        left = self.left_s("run")
        if left is None:
            return Unfinished()
        ran = run_product(self.target.host, options, self.folder(name), left)
        self.took("run", ran.seconds)
        return Unfinished(ran.seconds) if ran.timed_out else ran

    def program(self, name: str, script: str, arguments: Sequence[str], env: Mapping[str, str]) -> Program | Unfinished:
        """One program of ``programs`` with ``env`` beside the shell's variables; its first argument is a folder of its own."""
        left = self.left_s("program")
        if left is None:
            return Unfinished()
        folder = self.folder(name)
        folder.mkdir(parents=True)
        done = run_program(self.target.host, self.programs / script, (str(folder), *arguments), env, left)
        self.took("program", done.seconds)
        return Unfinished(done.seconds) if done.timed_out else done

    def left_s(self, kind: str) -> float | None:
        """Seconds until the deadline; None where they are fewer than the longest of this kind took so far."""
        left = self._deadline_s - time.monotonic()
        return None if left < self._longest_s[kind] else left

    def took(self, kind: str, seconds: float) -> None:
        """What the next of this kind is expected to take at most."""
        self._longest_s[kind] = max(self._longest_s[kind], seconds)

    def folder(self, name: str) -> Path:
        """A path of its own for the next run; it is not made."""
        self._count += 1
        return self._runs_dir / f"{self._count:03d}-{name}"
