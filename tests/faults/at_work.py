"""A command of ours at work, with its processes."""

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from harness.launch.processes import Process
from tests.faults.stage import ROOT
from tests.faults.victims import victims

PATIENCE_S = 400.0  # for what takes two seconds where nothing else runs


class Run:
    """`mbr-perf` at work on the stage."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def victims(self, until: Callable[[], bool] = lambda: True, **least: int) -> dict[str, list[Process]]:
        """Its processes by kind, once ``until`` holds and there are so many of each that is named."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = victims(self.process.pid)
            if until() and all(len(found[kind]) >= number for kind, number in least.items()):
                return found
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)
        raise AssertionError(f"not so many processes came up: {least}")

    def ended(self) -> tuple[int, str, str]:
        """Exit code, answer, narration."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


@contextmanager
def started(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Run]:
    """The running command, killed at the end in any case."""
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:  # fmt: skip
        try:
            yield Run(process)
        finally:
            process.kill()
