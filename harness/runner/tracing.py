"""Traces for a plan: from the cache, else from tracer processes, side by side where there are cores."""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from time import monotonic

import harness
from harness.errors import BadRequestError, RunFailedError
from harness.launch.environment import SAFE_PATH, Host
from harness.planning.assumptions import IMBALANCE
from harness.planning.search import Traces
from harness.planning.trace_cache import CachedTrace, TraceCache, tracer_fingerprint
from harness.records.trace import ChunkTrace, TraceCase, TraceFile, TraceRequest
from harness.runner.machine import TRAIN_EXTRA, installed_software
from harness.spec.effective import Implementation

TIMEOUT_S = 900.0
# A tracer takes two to five seconds to start and a fraction of a second per chunk.
_CASES_PER_PROCESS = 12
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Tracing:
    """Makes traces on ``host``; ``cache`` None makes them all anew.

    ``cached_only``: what is not in the cache stays missing. ``niceness``: how far tracers give way to other processes.
    ``stop``, once set, ends them.
    """

    host: Host
    cache: TraceCache | None
    timeout_s: float = TIMEOUT_S
    cached_only: bool = False
    niceness: int = 0
    stop: Event | None = None

    def traces(self, cases: tuple[TraceCase, ...], implementation: Implementation, *, uneven: bool) -> Traces:
        """Answers to all ``cases``; with ``uneven`` also under unevenly routed tokens, which only chunks with experts notice.

        BadRequestError without torch and megatron-core, RunFailedError when a tracer dies.
        """
        experts = tuple(case for case in cases if case.layer_kind == "moe") if uneven else ()
        even = self._all(cases, implementation, 1.0)
        found = even if not experts else even | self._all(experts, implementation, IMBALANCE)
        refused = {key: trace.refused for key, trace in (even | found).items() if trace.refused}
        return Traces(_chunks(even), _chunks(found) if experts else None, refused)

    def _all(
        self, cases: tuple[TraceCase, ...], implementation: Implementation, imbalance: float
    ) -> dict[str, CachedTrace]:
        found = {case.key: self.cache.read(case.key, imbalance) for case in cases} if self.cache else {}
        have = {key: trace for key, trace in found.items() if trace is not None}
        missing = [case for case in cases if case.key not in have]
        if not missing or self.cached_only:
            return have
        _require_megatron(self.host)
        num = max(1, min(self.host.num_cores, len(missing) // _CASES_PER_PROCESS))
        requests = [
            TraceRequest(cases=tuple(missing[i::num]), implementation=implementation, imbalance=imbalance)
            for i in range(num)
        ]
        with ThreadPoolExecutor(num) as pool:
            for answer in pool.map(self._run, requests):
                have |= self._kept(answer, imbalance)
        return have

    def _kept(self, answer: TraceFile, imbalance: float) -> dict[str, CachedTrace]:
        about = CachedTrace(megatron_core=answer.megatron_core, torch=answer.torch, stand_in=answer.stand_in)
        traces = {key: about.model_copy(update={"chunk": chunk}) for key, chunk in answer.chunks.items()}
        traces |= {key: about.model_copy(update={"refused": reason}) for key, reason in answer.refused.items()}
        if self.cache:
            for key, trace in traces.items():
                self.cache.write(key, imbalance, trace)
        return traces

    def _run(self, request: TraceRequest) -> TraceFile:
        """One tracer process. One thread: it computes nothing that more could speed up."""
        env = {**self.host.shell, **SAFE_PATH, "OMP_NUM_THREADS": "1"}
        with tempfile.TemporaryDirectory(prefix="mbr-perf-trace-") as folder:
            asked, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
            asked.write_text(request.model_dump_json())
            command = (self.host.python, "-m", "harness.engine.trace", "--request", str(asked), "--out", str(answer))
            self._traced(command, env)
            return TraceFile.model_validate_json(answer.read_bytes())

    def _traced(self, command: tuple[str, ...], env: Mapping[str, str]) -> None:
        """One tracer from start to end. Its own session: a Ctrl-C is for this process, which ends its tracers."""
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
        if process.returncode != 0:
            last = "\n  ".join(told.strip().splitlines()[-3:]) or "no message"
            raise RunFailedError(f"the tracer failed (exit {process.returncode}): {last}")

    def _wait(self, process: subprocess.Popen[str]) -> str:
        """What the tracer wrote to stderr. RunFailedError when its time is up, or nobody wants its answer any more."""
        end = monotonic() + self.timeout_s
        while monotonic() < end:
            if self.stop and self.stop.is_set():
                raise RunFailedError("the run ended before the tracer did")
            try:
                return process.communicate(timeout=_LOOK_EVERY_S)[1]
            except subprocess.TimeoutExpired:
                continue
        raise RunFailedError(f"the tracer did not finish within {self.timeout_s:g} s")


def trace_cache(shell: Mapping[str, str]) -> TraceCache:
    """`$XDG_CACHE_HOME/mbr-perf/traces`, by default below `~/.cache`, for the installed tracer."""
    root = Path(shell["XDG_CACHE_HOME"]) if shell.get("XDG_CACHE_HOME") else Path.home() / ".cache"
    software = installed_software()
    package = Path(harness.__file__).parent
    fingerprint = tracer_fingerprint(package, (software.megatron_core, software.torch, software.python))
    return TraceCache(root / "mbr-perf" / "traces" / fingerprint)


def _chunks(traces: Mapping[str, CachedTrace]) -> dict[str, ChunkTrace]:
    return {key: trace.chunk for key, trace in traces.items() if trace.chunk}


def _require_megatron(host: Host) -> None:
    missing = [name for name, module in (("torch", "torch"), ("megatron-core", "megatron")) if not find_spec(module)]
    if missing:
        raise BadRequestError(
            f"the planner traces megatron-core, and {' and '.join(missing)} is not installed in {host.python}",
            remedy=f"no GPU is needed, torch for CPU does: {TRAIN_EXTRA}",
        )
