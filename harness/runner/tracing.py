"""Traces for a plan: from the cache, else from tracer processes, side by side where there are cores."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from pydantic import ValidationError

import harness
from harness.errors import RunFailedError
from harness.launch.environment import Host
from harness.planning.assumptions import IMBALANCE
from harness.planning.search import Traces
from harness.planning.trace_cache import CachedTrace, TraceCache, tracer_fingerprint
from harness.records.source_tree import megatron_core_stamps
from harness.records.trace import ChunkTrace, TraceCase, TraceFile, TraceRequest
from harness.runner.machine import installed_software
from harness.runner.side_by_side import side_by_side
from harness.runner.tracer_process import TracerProcess, require_megatron
from harness.spec.effective import Implementation

TIMEOUT_S = 900.0
# A tracer takes two to five seconds to start and a fraction of a second per chunk.
_CASES_PER_PROCESS = 12


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
    stop: Event = field(default_factory=Event)

    def traces(self, cases: tuple[TraceCase, ...], implementation: Implementation, *, uneven: bool) -> Traces:
        """Answers to all ``cases``; with ``uneven`` also under unevenly routed tokens, which only chunks with experts notice.

        BadRequestError without torch and megatron-core, RunFailedError when all tracers die. Where one of several does,
        its cases are refused with the reason, which is not kept.
        """
        experts = tuple(case for case in cases if case.layer_kind == "moe") if uneven else ()
        even, lost = self._all(cases, implementation, 1.0)
        found = even
        if experts:
            unevenly, also_lost = self._all(experts, implementation, IMBALANCE)
            found, lost = even | unevenly, lost | also_lost
        refused = {key: trace.refused for key, trace in found.items() if trace.refused}
        return Traces(_chunks(even), _chunks(found) if experts else None, refused | lost)

    def _all(
        self, cases: tuple[TraceCase, ...], implementation: Implementation, imbalance: float
    ) -> tuple[dict[str, CachedTrace], dict[str, str]]:
        """What was answered, and why tracers died that should have answered the rest; both by key."""
        found = {case.key: self.cache.read(case.key, imbalance) for case in cases} if self.cache else {}
        have = {key: trace for key, trace in found.items() if trace is not None}
        missing = [case for case in cases if case.key not in have]
        if not missing or self.cached_only:
            return have, {}
        require_megatron(self.host)
        num = max(1, min(self.host.num_cores, len(missing) // _CASES_PER_PROCESS))
        requests = [
            TraceRequest(cases=tuple(missing[i::num]), implementation=implementation, imbalance=imbalance)
            for i in range(num)
        ]
        answers = side_by_side(self._run, requests, num, self.stop)
        lost: dict[str, str] = {}
        died = [answer for answer in answers if isinstance(answer, RunFailedError)]
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, RunFailedError):
                lost |= dict.fromkeys((case.key for case in request.cases), str(answer))
            else:
                have |= self._kept(answer, imbalance)
        if died and (len(died) == num or self.stop.is_set()):
            raise died[0]
        return have, lost

    def _kept(self, answer: TraceFile, imbalance: float) -> dict[str, CachedTrace]:
        about = CachedTrace(megatron_core=answer.megatron_core, torch=answer.torch, stand_in=answer.stand_in)
        traces = {key: about.model_copy(update={"chunk": chunk}) for key, chunk in answer.chunks.items()}
        traces |= {key: about.model_copy(update={"refused": reason}) for key, reason in answer.refused.items()}
        if self.cache:
            for key, trace in traces.items():
                self.cache.write(key, imbalance, trace)
        return traces

    def _run(self, request: TraceRequest) -> TraceFile | RunFailedError:
        process = TracerProcess(self.host, self.timeout_s, self.niceness, self.stop)
        try:
            return TraceFile.model_validate_json(process.answer(request.model_dump_json()))
        except RunFailedError as error:
            return error
        except ValidationError:
            return RunFailedError(
                "the tracer's answer is that of another version", remedy="was mbr-perf changed meanwhile? ask again"
            )


def trace_cache(shell: Mapping[str, str]) -> TraceCache:
    """`$XDG_CACHE_HOME/mbr-perf/traces`, by default below `~/.cache`, for the installed tracer."""
    root = Path(shell["XDG_CACHE_HOME"]) if shell.get("XDG_CACHE_HOME") else Path.home() / ".cache"
    software = installed_software()
    package = Path(harness.__file__).parent
    installed = (software.megatron_core, software.torch, software.python, *megatron_core_stamps())
    fingerprint = tracer_fingerprint(package, installed)
    return TraceCache(root / "mbr-perf" / "traces" / fingerprint)


def _chunks(traces: Mapping[str, CachedTrace]) -> dict[str, ChunkTrace]:
    return {key: trace.chunk for key, trace in traces.items() if trace.chunk}
