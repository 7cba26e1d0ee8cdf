"""Gets traces: from the cache, from those that travel with mbr-perf, or from tracer processes, and keeps them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import TypeVar

from pydantic import ValidationError

import harness
from harness.errors import BadRequestError, RunFailedError
from harness.experiment.effective import Implementation, settled_implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.software import ASSUMED_MEGATRON_CORE, Software
from harness.launch.environment import Host
from harness.launch.machine import TRAIN_EXTRA, installed_software
from harness.predict.assumptions import imbalance_of
from harness.predict.rank_parts import Read
from harness.predict.search import Traces
from harness.predict.shipped_traces import Shipped, find_events, find_shipped
from harness.predict.trace_cases import CachedTrace, TraceCache, tracer_fingerprint
from harness.predict.tracer_processes import WarmTracers
from harness.records.trace import ChunkTrace, TraceCase, TraceFile, TraceRequest, megatron_core_stamps

_REMEDY = f"{TRAIN_EXTRA}; torch for CPU is enough, no GPU is needed"


def _missing_packages() -> str:
    """Return the names of packages that the tracer needs and this Python lacks, joined; empty if it has them."""
    packages = (("torch", "torch"), ("megatron-core", "megatron"))
    return " and ".join(name for name, module in packages if not find_spec(module))


def require_megatron(host: Host) -> None:
    """Raise BadRequestError if torch or megatron-core is missing."""
    if missing := _missing_packages():
        raise BadRequestError(f"tracing needs {missing}, which {host.python} does not have", remedy=_REMEDY)


TIMEOUT_S = 900.0
# With fewer cases for each, a second process does not pay.
_CASES_PER_PROCESS = 8


TraceKind = tuple[Implementation, float]  # the implementation of layers, and the imbalance of routing


def trace_kind(spec: ExperimentSpec) -> TraceKind:
    """Return the kind of traces that a prediction of ``spec`` reads."""
    return settled_implementation(spec), imbalance_of(spec)


@dataclass(frozen=True)
class Tracing:
    """Makes traces on ``host``. With ``cache`` None it makes all traces again, also those that travel with mbr-perf.

    ``megatron_core``: the release to trace. ``reads_shipped``: False where the traces that mbr-perf brings are made.
    ``cached_only``: traces that are not cached stay missing. Setting ``stop`` ends the tracers. ``progress`` gets the
    number of finished cases and of all. ``warm``: tracers that go on to the next call.
    """

    host: Host
    cache: TraceCache | None
    timeout_s: float = TIMEOUT_S
    cached_only: bool = False
    stop: Event = field(default_factory=Event)
    progress: Callable[[int, int], None] | None = None
    megatron_core: str | None = None
    reads_shipped: bool = True
    warm: WarmTracers | None = None

    @cached_property
    def _source(self) -> "_Source":
        return source_of(self.megatron_core, installed_software()) if self.reads_shipped else _Source(None)

    @cached_property
    def _requests(self) -> Read | None:
        installed = installed_software()
        found = find_events(release_of(self.megatron_core, installed), installed) if self.reads_shipped else None
        return found.read if found else None

    def by_kind(self, needed: Iterable[tuple[TraceKind, Iterable[TraceCase]]]) -> dict[TraceKind, Traces]:
        """Trace the cases of several requests, each once, and return the traces by kind. Errors as :meth:`traces`."""
        due: dict[TraceKind, dict[str, TraceCase]] = {}
        for kind, cases in needed:
            due.setdefault(kind, {}).update({case.key: case for case in cases})
        return {kind: self.traces(tuple(cases.values()), kind[0], imbalance=kind[1]) for kind, cases in due.items()}

    def traces(self, cases: tuple[TraceCase, ...], implementation: Implementation, *, imbalance: float = 1.0) -> Traces:
        """Trace all ``cases``; an ``imbalance`` above 1 adds ranks with so many times their share of tokens.

        BadRequestError where all traces are missing and none can be made, RunFailedError when a tracer dies. Cases that
        nothing traced are refused with the reason.
        """
        experts = tuple(case for case in cases if case.has_experts and imbalance > 1)
        even, unevenly = self._cached(cases, 1.0), self._cached(experts, imbalance)
        due, also_due = self._due(cases, even), self._due(experts, unevenly)
        lost, num_due = dict[str, str](), len(due) + len(also_due)
        if self._source.cannot_trace:
            lost = self._untraceable((*due, *also_due), has_some=bool(even))
        elif num_due:
            self._show(0, num_due)
            even |= self._made(due, implementation, 1.0, lambda done: self._show(done, num_due))
            unevenly |= self._made(
                also_due, implementation, imbalance, lambda done: self._show(len(due) + done, num_due)
            )
        found = even | unevenly
        refused = {key: trace.refused for key, trace in found.items() if trace.refused}
        return Traces(_chunks(even), _chunks(found) if experts else None, refused | lost, lambda: self._requests)

    def _untraceable(self, due: tuple[TraceCase, ...], *, has_some: bool) -> dict[str, str]:
        """Return why the due cases have no trace, by key. BadRequestError if no case has a trace."""
        if self.cache is None:
            require_megatron(self.host)
        if due and not has_some:
            raise BadRequestError(self._source.cannot_trace, remedy=self._source.remedy)
        return dict.fromkeys((case.key for case in due), f"{self._source.cannot_trace}; {self._source.remedy}")

    def _show(self, num_done: int, num_due: int) -> None:
        if self.progress:
            self.progress(num_done, num_due)

    def _cached(self, cases: tuple[TraceCase, ...], imbalance: float) -> dict[str, CachedTrace]:
        """Return traces of the cache, or, without one, those that travel with mbr-perf."""
        if self.cache is None:
            return {}
        shipped, reads_cache = self._source.shipped, not self._source.is_other
        found: dict[str, CachedTrace | None] = {}
        for case in cases:
            trace = self.cache.read(case.key, imbalance) if reads_cache else None
            found[case.key] = trace or (shipped.read(case, imbalance) if shipped else None)
        return {key: trace for key, trace in found.items() if trace is not None}

    def _due(self, cases: tuple[TraceCase, ...], have: Mapping[str, CachedTrace]) -> tuple[TraceCase, ...]:
        return () if self.cached_only else tuple(case for case in cases if case.key not in have)

    def _made(
        self,
        due: tuple[TraceCase, ...],
        implementation: Implementation,
        imbalance: float,
        progress: Callable[[int], None],
    ) -> dict[str, CachedTrace]:
        """Trace the due cases, and keep the traces."""
        if not due:
            return {}
        require_megatron(self.host)
        num = max(1, min(self.host.num_cores, len(due) // _CASES_PER_PROCESS))
        done, found = [0] * num, dict[str, CachedTrace]()
        warm = nullcontext(self.warm) if self.warm else WarmTracers(self.host, self.timeout_s, self.stop)
        with warm as tracers:

            def ask(place: int) -> bytes:
                def count(num_done: int) -> None:
                    done[place] = num_done
                    progress(sum(done))

                request = TraceRequest(cases=due[place::num], implementation=implementation, imbalance=imbalance)
                return tracers.answer(request, count)

            for answer in side_by_side(ask, range(num), num, self.stop):
                try:
                    made = TraceFile.model_validate_json(answer)
                except ValidationError as error:
                    remedy = "start this command again: mbr-perf was updated while it ran"
                    raise RunFailedError("the tracer ended, but its answer cannot be read", remedy=remedy) from error
                found |= self._kept(made, imbalance)
        return found

    def _kept(self, answer: TraceFile, imbalance: float) -> dict[str, CachedTrace]:
        about = CachedTrace(megatron_core=answer.megatron_core, torch=answer.torch, stand_in=answer.stand_in)
        traces = {key: about.model_copy(update={"chunk": chunk}) for key, chunk in answer.chunks.items()}
        traces |= {key: about.model_copy(update={"refused": reason}) for key, reason in answer.refused.items()}
        if self.cache:
            for key, trace in traces.items():
                self.cache.write(key, imbalance, trace)
        return traces


@dataclass(frozen=True)
class _Source:
    """Where traces come from besides the cache. ``cannot_trace``: why no tracer can make the missing ones."""

    shipped: Shipped[CachedTrace] | None
    cannot_trace: str = ""
    remedy: str = ""
    is_other: bool = False


def release_of(release: str | None, installed: Software) -> str:
    """Return the release of megatron-core that is traced: as asked, else the installed or the assumed one."""
    return release or installed.megatron_core or ASSUMED_MEGATRON_CORE


def source_of(release: str | None, installed: Software) -> _Source:
    """Return where traces of a release come from besides the cache."""
    wanted = release_of(release, installed)
    shipped, reason = find_shipped(wanted, installed)
    reason = reason or (
        f"mbr-perf brings traces for megatron-core {wanted}, but only of the shipped operating points: none has these "
        "layers with this precision, micro-batch, sequence length, TP, CP and EP"
    )
    if missing := _missing_packages():
        return _Source(shipped, f"a prediction needs {missing}, not installed here; {reason}", _REMEDY)
    if installed.megatron_core == wanted or shipped is None:
        return _Source(shipped)
    remedy = f"install megatron-core {wanted}, or plan for {installed.megatron_core} without --assume"
    here = f"megatron-core {installed.megatron_core} is installed, not {wanted}"
    return _Source(shipped, f"{here}; {reason}", remedy, is_other=True)


def trace_cache(shell: Mapping[str, str]) -> TraceCache:
    """`$XDG_CACHE_HOME/mbr-perf/traces`, by default below `~/.cache`, for the installed tracer."""
    software = installed_software()
    package = Path(harness.__file__).parent
    installed = (software.megatron_core, software.torch, software.python, *megatron_core_stamps())
    fingerprint = tracer_fingerprint(package, installed)
    return TraceCache(cache_folder(shell) / "traces" / fingerprint)


def cache_folder(shell: Mapping[str, str]) -> Path:
    """Return `$XDG_CACHE_HOME/mbr-perf`, by default below `~/.cache`."""
    root = Path(shell["XDG_CACHE_HOME"]) if shell.get("XDG_CACHE_HOME") else Path.home() / ".cache"
    return root / "mbr-perf"


def _chunks(traces: Mapping[str, CachedTrace]) -> dict[str, ChunkTrace]:
    return {key: trace.chunk for key, trace in traces.items() if trace.chunk}


_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


def side_by_side(
    ask: Callable[[_Asked], _Answer], asked: Sequence[_Asked], num_threads: int, stop: Event
) -> list[_Answer]:
    """Call ``ask`` for each item, at most ``num_threads`` at once. Return the answers in order.

    Any error, also Ctrl-C, sets ``stop``, which ``ask`` must check, and drops calls that have not begun.
    """
    with ThreadPoolExecutor(max(1, num_threads)) as pool:
        try:
            return list(pool.map(ask, asked))
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
