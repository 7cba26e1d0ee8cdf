"""`mbr-perf plan --search`: tries every legal layout of a request that bounds do not exclude."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from threading import Event, Timer
from time import monotonic
from typing import Any, NamedTuple

from harness.errors import BadRequestError, RunFailedError, raise_all
from harness.experiment.effective import settled_implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout_text import LayoutError
from harness.experiment.recompute import FullRecompute, NoRecompute, RecomputePolicy
from harness.experiment.rules import cuda_graph
from harness.launch.environment import Host
from harness.measure.prediction import constants_for
from harness.measure.understanding import Settled
from harness.plan.request import PlanRequest, check_plan, source_notes
from harness.plan.run import Unplanned, broken_rules, legal, replayed
from harness.plan.searched import SLOWEST, Searched, Tried, settled_for_search
from harness.predict.layouts import Sizes, Space, least_seconds
from harness.predict.model_states import least_bytes
from harness.predict.prediction import BUILT_IN, Constants
from harness.predict.search import NO_TRACES, Candidates, Traces, candidate_of, candidates, plan, required_cases
from harness.predict.trace_book import Shared
from harness.predict.tracer import TIMEOUT_S, TraceKind, Tracing, trace_cache, trace_kind
from harness.predict.tracer_processes import WarmTracers
from harness.records.trace import ChunkTrace, TraceCase
from harness.resolve.recipe import Recipe
from harness.resolve.resolve import recipe_of, resolve_recipe
from harness.resolve.sweep_file import SIZES

_AT_ONCE = 4  # shapes that are traced together
_FINE_AT_ONCE, _MOST_FINE = 4, 10
_ENDS: tuple[RecomputePolicy, ...] = (NoRecompute(), FullRecompute(method="uniform", num_layers=1))
_PIPELINE = {"pipeline_model_parallel_size", "pipeline_model_parallel_layout", SIZES["vp"]}
_NOT_LEGAL = "not legal"
_SLOW = f"over {SLOWEST:g} times the fastest step"


def fewest(
    request: PlanRequest, host: Host, numbers: list[int], news: Callable[[Searched], None] = lambda _: None
) -> Searched:
    """Search with each number of GPUs, the smallest first, until a layout fits. Otherwise as :func:`search`."""
    too_few: list[int] = []
    for number in numbers:
        asked = replace(request, asked=replace(request.asked, num_gpus=number), over=())
        try:
            found = search(asked, host, news)
        except BadRequestError:
            if number == numbers[-1]:
                raise
            too_few.append(number)
            continue
        if found.interrupted or any(each.row for each in found.best) or number == numbers[-1]:
            return replace(found, too_few=tuple(too_few))
        too_few.append(number)
    raise AssertionError("there is a last number")


def search(request: PlanRequest, host: Host, news: Callable[[Searched], None] = lambda _: None) -> Searched:
    """Try every legal layout; Ctrl-C ends it with what is known. BadRequestError where none is legal."""
    check_plan(request)
    base = settled_for_search(request, host)
    raise_all(broken_rules(base, only={rule.id for rule in cuda_graph.RULES}))  # no layout mends them
    pinned = _pinned(request)
    space = Space(base.spec, pinned)
    recipe = recipe_of(request.asked)
    release = base.software.megatron_core
    stop, began, limit_s = Event(), monotonic(), 60 * (request.max_minutes or inf)
    with WarmTracers(host, TIMEOUT_S, stop) as warm:
        cache = trace_cache(host.shell) if request.use_cache else None
        tracing = Tracing(host, cache, stop=stop, megatron_core=release, warm=warm)
        known = Searched(base, sources=source_notes(release, base.spec))
        run = _Run(request, base, recipe, space, tracing, known, news)
        timer = Timer(limit_s, stop.set)
        try:
            if request.max_minutes:
                timer.start()
            run.coarse()
            run.fine()
        except KeyboardInterrupt:
            stop.set()
            known.interrupted, known.is_time_up = True, monotonic() - began >= limit_s
        finally:
            timer.cancel()
    if known.counts.keys() <= {_NOT_LEGAL} and not known.interrupted:
        sizes = f" with {' '.join(f'{name}={value}' for name, value in pinned.items())}" if pinned else ""
        reasons = "; ".join(f"{text} ({count} layouts)" for text, count in known.reasons.most_common(3))
        raise BadRequestError(
            f"--search: none of {known.num_layouts} layouts of {base.spec.num_gpus} GPUs{sizes} can be planned: "
            f"{reasons or run.broken_rule()}",
            remedy="change -ng or -gb, or leave out sizes that pin the search",
        )
    return known


def _pinned(request: PlanRequest) -> dict[str, int | None]:
    given = {name: getattr(request.asked, SIZES[name]) for name in Sizes._fields}
    return {name: None if size == "none" else size for name, size in given.items() if size is not None}


@dataclass
class _Run:
    """One search.

    ``open``: layouts that do not fit without recompute and are not tried with it yet. ``computing``: seconds of a step
    without recompute and bubble; infinite for layouts left out as too slow. ``planned``: layouts with all settings.
    """

    request: PlanRequest
    base: Settled
    recipe: Recipe
    space: Space
    tracing: Tracing
    known: Searched
    news: Callable[[Searched], None]
    too_large: set[tuple[object, ...]] = field(default_factory=set)
    open: set[Sizes] = field(default_factory=set)
    computing: dict[Sizes, float] = field(default_factory=dict)
    planned: set[Sizes] = field(default_factory=set)
    shared: dict[str, Shared] = field(default_factory=dict)

    @cached_property
    def constants(self) -> Constants:
        return constants_for(self.base.spec.gpu) if self.request.use_calibration else BUILT_IN

    def coarse(self) -> None:
        """Predict every layout without recompute, then the layouts that are not too slow with full recompute.

        The request's own shape comes first, because mbr-perf may bring its traces. Small micro-batches come first,
        because a layout that is too large with one is too large with a larger one.
        """
        own, levels = Sizes.of(self.base.spec).shape, dict[int, dict[object, list[Sizes]]]()
        for sizes in self.space.sizes():
            level = 0 if sizes.shape == own else sizes.mb
            levels.setdefault(level, {}).setdefault(sizes.shape, []).append(sizes)
            self.known.num_layouts += 1
        for order in ([*levels[level].values()] for level in sorted(levels)):
            self._batches(order, self._due, _ENDS[:1])
            self._batches(order, self._due_again, _ENDS)
            for sizes in [*self.open]:  # recompute only makes them slower
                self.open.remove(sizes)
                del self.known.tried[sizes]
                self._ended(_SLOW)

    def fine(self) -> None:
        """Plan the best layouts as a plan of one does, and those that recompute may help; replay the Pareto set."""
        while due := {
            each.sizes: each for each in (*self._promising(), *self.known.best) if each.sizes not in self.planned
        }:
            some = [*due.values()][:_FINE_AT_ONCE]
            self.planned.update(each.sizes for each in some)
            again = (_Due(each.sizes, each.settings, each.settled) for each in some)
            self._take([(due, self._everything(due)) for due in again])
        done = set[tuple[Sizes, str]]()
        while rows := {(each.sizes, row.text) for each, row in self.known.pareto if not row.is_weighed} - done:
            for sizes, text in rows:
                self._end_if_stopped()
                self.known.add(replayed(self.known.tried[sizes], self.request, [text]))
            done |= rows

    def _promising(self) -> list[Tried]:
        tried = ((each, each.plan.control) for each in self.known.tried.values())
        gaining = (each for each, control in tried if control is None or control.verdict != "FITS")
        first, most = sorted(gaining, key=lambda each: each.least_seconds)[:_MOST_FINE], self.known.worst_of_best
        return [each for each in first if each.least_seconds < most]

    def _settings(self, due: "_Due", policies: tuple[RecomputePolicy, ...]) -> Candidates:
        spec, software = due.settled.spec, due.settled.software
        each = (spec.model_copy(update={"recompute": policy}) for policy in policies)
        rows = tuple(candidate_of(asked, software, settled_implementation(spec)) for asked in each)
        return Candidates(rows, {}, shared=self._shared(spec))

    def _everything(self, due: "_Due") -> Candidates:
        spec = due.settled.spec
        found = candidates(spec, due.settled.software, settled_implementation(spec))
        return replace(found, shared=self._shared(spec))

    def _shared(self, spec: ExperimentSpec) -> Shared:
        """Return what layouts have in common that differ in their pipelines alone."""
        return self.shared.setdefault(spec.model_dump_json(exclude={"parallelism": _PIPELINE}), Shared())

    def _batches(
        self, shapes: list[list[Sizes]], due_of: "Callable[[Sizes], _Due | None]", policies: tuple[RecomputePolicy, ...]
    ) -> None:
        """Trace and predict the layouts of several shapes at once; of each shape those that may fit and are legal."""
        for at in range(0, len(shapes), _AT_ONCE):
            self._end_if_stopped()
            due = (due_of(sizes) for group in shapes[at : at + _AT_ONCE] for sizes in group)
            self._take([(each, self._settings(each, policies)) for each in due if each])

    def _due(self, sizes: Sizes) -> "_Due | None":
        limits, spec = self.request.limits(self.base.spec), self.space.spec_of(sizes)
        if limits.capacity_bytes is not None and least_bytes(spec) > limits.capacity_bytes:
            self._ended("weights, gradients and optimizer states alone do not fit")
            return None
        if (*sizes[:-1], sizes.mb // 2) in self.too_large:
            self.too_large.add(sizes)
            self._ended("too large with a smaller micro-batch already")
            return None
        if least_seconds(spec) > SLOWEST * self.known.fastest:
            self._ended(f"pipeline bubble: over {SLOWEST:g} times the fastest step")
            return None
        if any(self.computing.get(half, 0.0) > SLOWEST * self.known.fastest for half in sizes.halves()):
            self.computing[sizes] = inf
            self._ended(_SLOW)
            return None
        return self._resolved(sizes, self.space.settings(sizes))

    def broken_rule(self) -> str:
        """Return what the pinned sizes break where all others are 1."""
        own = Sizes.of(self.base.spec)
        ones: dict[str, Any] = {name: 1 for name, size in own._asdict().items() if size} | {"vp": None}
        sizes = own._replace(**ones | dict(self.space.pinned))
        due = self._resolved(sizes, self.space.settings(sizes))
        found = legal("", due.settled, ()) if due else None
        return found.problem if isinstance(found, Unplanned) else "no sizes divide them"

    def _resolved(self, sizes: Sizes, settings: tuple[str, ...]) -> "_Due | None":
        sized = {SIZES[name]: value for name, value in sizes._asdict().items() if value is not None or name == "vp"}
        changes = {**self.base.from_point, **sized, "gpu": self.base.spec.gpu}
        changes["global_batch_size"] = self.base.spec.batch.global_batch_size  # else scaled with the layout's copies
        if sizes.vp is None:
            changes[SIZES["vp"]] = "none"
        asked = replace(self.request.asked, **changes)
        asked = replace(asked, set_values=(*asked.set_values, *settings))
        try:
            spec = resolve_recipe(self.recipe, asked).spec
        except BadRequestError as error:
            self._illegal(error.message)
            return None
        implementation = settled_implementation(self.base.spec)
        spec = spec.model_copy(update={"kernels": spec.kernels.model_copy(update={"transformer_impl": implementation})})
        return _Due(sizes, settings, replace(self.base, spec=spec))

    def _due_again(self, sizes: Sizes) -> "_Due | None":
        tried = self.known.tried.get(sizes)
        if tried is None or tried.least_seconds > SLOWEST * self.known.fastest:
            return None
        return _Due(sizes, tried.settings, tried.settled)

    def _ended(self, how: str) -> None:
        self.known.counts[how] += 1

    def _illegal(self, why: str) -> None:
        self.known.reasons[why] += 1
        self._ended(_NOT_LEGAL)

    def _traces(self, settings: "_Batch") -> Traces:
        even: dict[str, ChunkTrace] = {}
        uneven: dict[str, ChunkTrace] = {}
        refused: dict[str, str] = {}
        find_requests = NO_TRACES.find_requests
        for traced in self.tracing.by_kind(_needed(settings)).values():
            even |= traced.even
            uneven |= traced.uneven or {}
            refused |= traced.refused
            find_requests = traced.find_requests
        return Traces(even, {**even, **uneven} if uneven else None, refused, find_requests)

    def _take(self, settings: "_Batch") -> None:
        """Trace and predict the layouts."""
        try:
            traces = self._traces(settings)
        except RunFailedError:
            self._end_if_stopped()
            raise
        for due, found in settings:
            self._end_if_stopped()
            before = self.known.tried.get(due.sizes)
            known = {row.text: row for row in before.plan.predicted} if before else {}
            tried = self._tried(due, replace(found, known=known), traces)
            self._keep(replayed(tried, self.request) if due.sizes in self.planned else tried)
        self.news(self.known)

    def _tried(self, due: "_Due", found: Candidates, traces: Traces) -> Tried:
        spec, software, limits = due.settled.spec, due.settled.software, self.request.limits(due.settled.spec)
        made = plan(spec, found, traces, limits, settled_implementation(spec), software, self.constants)
        return Tried(due.sizes.name, due.settled, made, traces, sizes=due.sizes, settings=due.settings)

    def _end_if_stopped(self) -> None:
        """End the search at its time limit. A signal would be lost where it meets a callback that ignores errors."""
        if self.tracing.stop.is_set():
            raise KeyboardInterrupt

    def _keep(self, tried: Tried) -> None:
        predicted = tried.plan.predicted
        if not predicted:
            why = next((row.reason for row in tried.plan.rows if row.reason), "not traced")
            self._illegal(why)
            return
        fits, ends = any(row.verdict != "OOM" for row in predicted), len(tried.plan.rows) > 1
        if tried.sizes not in self.known.tried:
            self.computing[tried.sizes] = tried.computing
            self.open.add(tried.sizes)
        if tried.sizes in self.open and (fits or ends):
            self.open.remove(tried.sizes)
            self._ended("predicted" if fits else "too large even with full recompute")
            if not fits:
                self.known.nearest = min(filter(None, (self.known.nearest, tried)), key=lambda each: each.lacking)
                self.too_large.add(tried.sizes)
                self.known.tried.pop(tried.sizes)
                return
        self.known.add(tried)


class _Due(NamedTuple):
    sizes: Sizes
    settings: tuple[str, ...]
    settled: Settled


_Batch = list[tuple[_Due, Candidates]]


def _needed(settings: _Batch) -> Iterator[tuple[TraceKind, tuple[TraceCase, ...]]]:
    for due, found in settings:
        kind = trace_kind(due.settled.spec)
        with suppress(LayoutError):  # the plan refuses such a layout with the reason
            yield kind, required_cases(found, kind[0], due.settled.software)
