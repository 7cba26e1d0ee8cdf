"""One tracer process from request to answer."""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from time import monotonic

from harness.errors import BadRequestError, RunFailedError
from harness.launch.environment import SAFE_PATH, Host
from harness.records.launch import PARENT_PID_VARIABLE
from harness.records.process_error import quoted_error
from harness.runner.machine import TRAIN_EXTRA

_LOOK_EVERY_S = 0.2


class TracerLateError(RunFailedError):
    """The tracer's time was up. ``so_far``: the answer as far as it had been written, None for nothing."""

    def __init__(self, message: str, so_far: bytes | None) -> None:
        super().__init__(message)
        self.so_far = so_far


@dataclass(frozen=True)
class TracerProcess:
    """How to run the tracer. ``niceness``: how far it gives way to others; ``stop``, once set, ends it."""

    host: Host
    timeout_s: float
    niceness: int = 0
    stop: Event | None = None

    def answer(self, request: str, *flags: str) -> bytes:
        """The answer file. TracerLateError after ``timeout_s`` or once stopped, RunFailedError when the tracer dies.

        One thread: it computes nothing that more could speed up.
        """
        env = {**self.host.shell, **SAFE_PATH, "OMP_NUM_THREADS": "1", PARENT_PID_VARIABLE: str(os.getpid())}
        with tempfile.TemporaryDirectory(prefix="mbr-perf-trace-") as folder:
            asked, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
            asked.write_text(request)
            module = (self.host.python, "-m", "harness.engine.trace", *flags)
            late = self._run((*module, "--request", str(asked), "--out", str(answer)), env)
            found = answer.read_bytes() if answer.exists() else None
        if late or found is None:
            raise TracerLateError(late or "the tracer left no answer", found)
        return found

    def _run(self, command: tuple[str, ...], env: Mapping[str, str]) -> str:
        """Why it was ended early, or nothing.

        Its own session: a Ctrl-C is for this process, which sets ``stop``. The kernel ends it with the thread that is
        here, which stays until it has ended.
        """
        process = subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        with process:
            try:
                if self.niceness:
                    os.setpriority(os.PRIO_PROCESS, process.pid, self.niceness)
                told = self._wait(process)
            finally:
                process.kill()
        if told is None:
            stopped = self.stop is not None and self.stop.is_set()
            return (
                "the run ended before the tracer did"
                if stopped
                else f"the tracer did not finish within {self.timeout_s:g} s"
            )
        if process.returncode != 0:
            raise RunFailedError(f"the tracer failed (exit {process.returncode}): {quoted_error(told)}")
        return ""

    def _wait(self, process: subprocess.Popen[str]) -> str | None:
        """What the tracer wrote to stderr; None when its time is up or nobody wants its answer any more."""
        end = monotonic() + self.timeout_s
        while monotonic() < end and not (self.stop and self.stop.is_set()):
            try:
                return process.communicate(timeout=_LOOK_EVERY_S)[1]
            except subprocess.TimeoutExpired:
                continue
        return None


def require_megatron(host: Host) -> None:
    """BadRequestError without torch and megatron-core."""
    missing = [name for name, module in (("torch", "torch"), ("megatron-core", "megatron")) if not find_spec(module)]
    if missing:
        raise BadRequestError(
            f"the planner traces megatron-core, and {' and '.join(missing)} is not installed in {host.python}",
            remedy=f"no GPU is needed, torch for CPU does: {TRAIN_EXTRA}",
        )
