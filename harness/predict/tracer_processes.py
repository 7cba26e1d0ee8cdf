"""Tracer processes: one that stays and forks for each request of chunks, and one for each request of whole steps."""

import os
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from time import monotonic, sleep
from typing import IO

from harness.errors import RunFailedError
from harness.experiment.effective import Implementation
from harness.launch.environment import SAFE_PATH, Host
from harness.records.launch import PARENT_PID_VARIABLE
from harness.records.quoting import quoted_error
from harness.records.trace import TraceRequest, progress_file

_LOOK_EVERY_S = 0.05
_PREFIX = "mbr-perf-trace-"


class TracerLateError(RunFailedError):
    """The tracer exceeded its time. ``so_far``: the part of the answer that it wrote, if any."""

    so_far: bytes | None = None


def _environment(host: Host) -> dict[str, str]:
    """Return the variables of a tracer. It sees no GPU, or autograd would start threads, and could not be forked."""
    own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", PARENT_PID_VARIABLE: str(os.getpid())}
    return {**host.shell, **SAFE_PATH, **own}


def _died(exit_code: int, stderr: str) -> RunFailedError:
    return RunFailedError(f"the tracer failed (exit {exit_code}): {quoted_error(stderr)}")


def _await(is_done: Callable[[], bool], timeout_s: float, stop: Event) -> None:
    """Wait until it is done. TracerLateError after the time limit or ``stop``."""
    end = monotonic() + timeout_s
    while not is_done():
        if stop.is_set():
            raise TracerLateError("the run ended before the tracer did")
        if monotonic() > end:
            raise TracerLateError(f"the tracer did not finish within {timeout_s:g} s")
        sleep(_LOOK_EVERY_S)


@dataclass(frozen=True)
class TracerProcess:
    """Runs ``python -m harness.engine.trace`` for one request. Setting ``stop`` ends it."""

    host: Host
    timeout_s: float
    stop: Event = field(default_factory=Event)

    def answer(self, request: str, flag: str) -> bytes:
        """The answer file. TracerLateError after the time limit or ``stop``; RunFailedError when it dies."""
        with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
            asked, out, stderr = (Path(name) / each for each in ("request.json", "answer.json", "stderr"))
            asked.write_text(request)
            command = (self.host.python, "-m", "harness.engine.trace", flag, "--request", str(asked), "--out", str(out))
            with (
                stderr.open("w") as errors,
                subprocess.Popen(
                    command,
                    env=_environment(self.host),
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    start_new_session=True,
                ) as process,
            ):
                try:
                    _await(lambda: process.poll() is not None, self.timeout_s, self.stop)
                except TracerLateError as late:
                    late.so_far = out.read_bytes() if out.exists() else None
                    raise
                finally:
                    process.kill()
            if process.returncode:
                raise _died(process.returncode, stderr.read_text(errors="replace"))
            return out.read_bytes()


@dataclass(frozen=True)
class WarmTracers:
    """A tracer process for each implementation of layers, started by its first request.

    A process ends with the context, and at the end of its stdin, which the kernel closes with the process that asks.
    """

    host: Host
    timeout_s: float
    stop: Event
    _processes: dict[Implementation, tuple["subprocess.Popen[bytes]", IO[str]]] = field(default_factory=dict)
    _open: ExitStack = field(default_factory=ExitStack)
    _starting: Lock = field(default_factory=Lock)

    def __enter__(self) -> "WarmTracers":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def answer(self, request: TraceRequest, progress: Callable[[int], None]) -> bytes:
        """The answer file; ``progress`` gets the finished cases. TracerLateError, RunFailedError when it dies."""
        process, errors = self._process(request.implementation)
        with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
            answer, ended, stderr = (Path(name) / each for each in ("answer.json", "exit", "stderr"))
            done = progress_file(answer)

            def is_done() -> bool:
                if done.exists():
                    progress(done.stat().st_size)
                if not ended.exists() and (code := process.poll()) is not None:
                    errors.seek(0)
                    raise _died(code, errors.read())
                return ended.exists()

            (Path(name) / "request.json").write_text(request.model_dump_json())
            assert process.stdin
            with suppress(BrokenPipeError):
                process.stdin.write(f"{name}\n".encode())
            _await(is_done, self.timeout_s, self.stop)
            if code := int(ended.read_text()):
                raise _died(code, stderr.read_text())
            return answer.read_bytes()

    def _process(self, implementation: Implementation) -> tuple["subprocess.Popen[bytes]", IO[str]]:
        """Return the process, and the file of its stderr; both are closed with ``_open``."""
        with self._starting:
            if implementation not in self._processes:
                command = (self.host.python, "-m", "harness.engine.warm_trace", implementation)
                errors = self._open.enter_context(tempfile.TemporaryFile("w+", errors="replace"))  # noqa: SIM115
                process = subprocess.Popen(
                    command, bufsize=0, env=_environment(self.host), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                    stderr=errors, start_new_session=True,
                )  # fmt: skip
                self._open.enter_context(process)
                self._open.callback(process.kill)
                self._processes[implementation] = process, errors
            return self._processes[implementation]
