"""Tracer processes: a new one for each request, or one that stays for a command that traces many times."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from time import monotonic, sleep

from harness.errors import RunFailedError
from harness.experiment.effective import Implementation
from harness.launch.environment import SAFE_PATH, Host
from harness.records.launch import PARENT_PID_VARIABLE
from harness.records.quoting import quoted_error
from harness.records.trace import TraceRequest, progress_file

_LOOK_EVERY_S = 0.2
_LOOK_AT_FILES_EVERY_S = 0.05


class TracerDiedError(RunFailedError):
    """The tracer ended without an answer, at one of its cases or stages, before its time was over."""


class TracerLateError(RunFailedError):
    """The tracer exceeded its time. ``so_far``: the part of the answer that it wrote, if any."""

    def __init__(self, message: str, so_far: bytes | None) -> None:
        super().__init__(message)
        self.so_far = so_far


def tracer_environment(host: Host) -> dict[str, str]:
    """Return the variables of a tracer. It sees no GPU, or autograd would start threads, and forks could not use it.

    One thread of OpenMP: more would not speed it up.
    """
    own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", PARENT_PID_VARIABLE: str(os.getpid())}
    return {**host.shell, **SAFE_PATH, **own}


def death_of(exit_code: int, stderr: str) -> str:
    """Return how a tracer failed."""
    return f"the tracer failed (exit {exit_code}): {quoted_error(stderr)}"


def why_late(timeout_s: float, *, stopped: bool) -> str:
    """Return why a tracer was ended before its answer."""
    return "the run ended before the tracer did" if stopped else f"the tracer did not finish within {timeout_s:g} s"


@dataclass(frozen=True)
class TracerProcess:
    """How to run the tracer. ``niceness``: as for nice(1). Setting ``stop`` ends it.

    ``progress`` is called now and then with the number of finished cases.
    """

    host: Host
    timeout_s: float
    niceness: int = 0
    stop: Event | None = None
    progress: Callable[[int], None] | None = None

    def answer(self, request: str, *flags: str) -> bytes:
        """The answer file. TracerLateError after ``timeout_s`` or ``stop``; RunFailedError when the tracer dies."""
        with tempfile.TemporaryDirectory(prefix="mbr-perf-trace-") as folder:
            asked, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
            asked.write_text(request)
            command = (self.host.python, "-m", "harness.engine.trace", *flags, "--request", str(asked))
            command += ("--out", str(answer))
            late = self._run(command, tracer_environment(self.host), progress_file(answer))
            found = answer.read_bytes() if answer.exists() else None
        if late or found is None:
            raise TracerLateError(late or "the tracer left no answer", found)
        return found

    def _run(self, command: tuple[str, ...], env: Mapping[str, str], done: Path) -> str:
        """Run the tracer. Return why it was ended early, or nothing.

        It has its own session: Ctrl-C reaches only this process, which sets ``stop``. The kernel ends the tracer
        together with this thread, which waits for it.
        """
        process = subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        with process:
            try:
                if self.niceness:
                    os.setpriority(os.PRIO_PROCESS, process.pid, self.niceness)
                stderr = self._wait(process, done)
            finally:
                process.kill()
        if stderr is None:
            return why_late(self.timeout_s, stopped=self.stop is not None and self.stop.is_set())
        if process.returncode != 0:
            began = done.exists() or "--exact" in command  # whole steps leave no note of progress
            raise (TracerDiedError if began else RunFailedError)(death_of(process.returncode, stderr))
        return ""

    def _wait(self, process: subprocess.Popen[str], done: Path) -> str | None:
        """Return the tracer's stderr; None after the time limit or ``stop``."""
        end = monotonic() + self.timeout_s
        while monotonic() < end and not (self.stop and self.stop.is_set()):
            try:
                return process.communicate(timeout=_LOOK_EVERY_S)[1]
            except subprocess.TimeoutExpired:
                if self.progress and done.exists():
                    self.progress(done.stat().st_size)
        return None


class _Process:
    """One process. It ends at the end of its stdin, which the kernel closes with the process that asks."""

    def __init__(self, host: Host, implementation: Implementation) -> None:
        self._asking = Lock()
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (open as long as the process)
        self._process = subprocess.Popen(
            (host.python, "-m", "harness.engine.warm_trace", implementation),
            env=tracer_environment(host),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )

    @property
    def death(self) -> str:
        """How the process ended; empty while it runs."""
        if (code := self._process.poll()) is None:
            return ""
        self._errors.seek(0)
        return death_of(code, self._errors.read())

    def ask(self, folder: Path) -> None:
        """Send the folder of a request. A dead process hears nothing; `death` then says why."""
        assert self._process.stdin
        with self._asking, suppress(BrokenPipeError):
            self._process.stdin.write(f"{folder}\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """End the process, and with it the requests that it works on."""
        self._process.kill()
        with self._errors, suppress(BrokenPipeError):
            self._process.communicate()


@dataclass(frozen=True)
class WarmTracers:
    """A tracer process for each implementation of layers, started by its first request.

    Leave the context to end them.
    """

    host: Host
    timeout_s: float
    stop: Event
    _processes: dict[Implementation, _Process] = field(default_factory=dict)
    _starting: Lock = field(default_factory=Lock)

    def __enter__(self) -> "WarmTracers":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.end()

    def answer(self, request: TraceRequest, progress: Callable[[int], None]) -> bytes:
        """The answer file. TracerLateError after the time limit or ``stop``, TracerDiedError when the tracer dies."""
        process = self._process(request.implementation)
        with tempfile.TemporaryDirectory(prefix="mbr-perf-trace-") as name:
            folder = Path(name)
            (folder / "request.json").write_text(request.model_dump_json())
            process.ask(folder)
            code = self._wait(folder, process, progress)
            if code:
                raise TracerDiedError(death_of(code, (folder / "stderr").read_text()))
            return (folder / "answer.json").read_bytes()

    def _process(self, implementation: Implementation) -> _Process:
        with self._starting:
            if implementation not in self._processes:
                self._processes[implementation] = _Process(self.host, implementation)
            return self._processes[implementation]

    def _wait(self, folder: Path, process: _Process, progress: Callable[[int], None]) -> int:
        done, ended, end = progress_file(folder / "answer.json"), folder / "exit", monotonic() + self.timeout_s
        while not ended.exists():
            if self.stop.is_set() or monotonic() > end:
                raise TracerLateError(why_late(self.timeout_s, stopped=self.stop.is_set()), None)
            if process.death:
                raise TracerDiedError(process.death)
            if done.exists():
                progress(done.stat().st_size)
            sleep(_LOOK_AT_FILES_EVERY_S)
        return int(ended.read_text())
