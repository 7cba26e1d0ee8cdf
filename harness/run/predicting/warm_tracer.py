"""Tracer processes that stay between requests, for a command that traces many times."""

import os
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic, sleep

from harness.experiment.effective import Implementation
from harness.launch.environment import SAFE_PATH, Host
from harness.records.launch import PARENT_PID_VARIABLE
from harness.records.redact import quoted_error
from harness.records.trace import TraceRequest, progress_file
from harness.run.predicting.tracer import TracerDiedError, TracerLateError

_LOOK_EVERY_S = 0.05


class _Process:
    """One process, started by a thread that lives as long: the kernel ends a tracer together with the thread that started it."""

    def __init__(self, host: Host, implementation: Implementation) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
        self._command = (host.python, "-m", "harness.engine.warm_trace", implementation)
        self._env = {
            **host.shell,
            **SAFE_PATH,
            "OMP_NUM_THREADS": "1",
            PARENT_PID_VARIABLE: str(os.getpid()),
        }
        self._asking, self._started = Lock(), Event()
        self._process: subprocess.Popen[str] | None = None
        Thread(target=self._live, daemon=True).start()
        self._started.wait()

    def _live(self) -> None:
        try:
            process = self._process = subprocess.Popen(
                self._command, env=self._env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._errors,
                text=True, start_new_session=True,
            )  # fmt: skip
        finally:
            self._started.set()
        process.wait()

    def ask(self, folder: Path) -> None:
        """Send the folder of a request. A dead process hears nothing; `death` then says why."""
        if self._process and self._process.stdin and not self.death:
            with self._asking, suppress(BrokenPipeError):  # it died just now
                self._process.stdin.write(f"{folder}\n")
                self._process.stdin.flush()

    @property
    def death(self) -> str:
        """Return how the process ended; empty while it runs."""
        code = self._process.poll() if self._process else -1
        if code is None:
            return ""
        self._errors.seek(0)
        return f"the tracer failed (exit {code}): {quoted_error(self._errors.read())}"

    def end(self) -> None:
        """End the process, and with it the requests that it works on."""
        if self._process:
            self._process.kill()
            self._process.wait()
            if self._process.stdin:
                with suppress(BrokenPipeError):
                    self._process.stdin.close()
        self._errors.close()


@dataclass(frozen=True)
class WarmTracers:
    """A tracer process for each implementation of layers, started by its first request. Leave the context to end them."""

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
        """Return the answer file. TracerLateError after the time limit or ``stop``, TracerDiedError when the tracer dies."""
        process = self._process(request.implementation)
        with tempfile.TemporaryDirectory(prefix="mbr-perf-trace-") as name:
            folder = Path(name)
            (folder / "request.json").write_text(request.model_dump_json())
            process.ask(folder)
            code = self._wait(folder, process, progress)
            if code:
                raise TracerDiedError(
                    f"the tracer failed (exit {code}): {quoted_error((folder / 'stderr').read_text())}"
                )
            return (folder / "answer.json").read_bytes()

    def _process(self, implementation: Implementation) -> _Process:
        with self._starting:
            if implementation not in self._processes:
                self._processes[implementation] = _Process(self.host, implementation)
            return self._processes[implementation]

    def _wait(self, folder: Path, process: _Process, progress: Callable[[int], None]) -> int:
        done, ended, end = progress_file(folder / "answer.json"), folder / "exit", monotonic() + self.timeout_s
        while not ended.exists():
            if self.stop.is_set():
                raise TracerLateError("the run ended before the tracer did", None)
            if monotonic() > end:
                raise TracerLateError(f"the tracer did not finish within {self.timeout_s:g} s", None)
            if why := process.death:
                raise TracerDiedError(why)
            if done.exists():
                progress(done.stat().st_size)
            sleep(_LOOK_EVERY_S)
        return int(ended.read_text())
