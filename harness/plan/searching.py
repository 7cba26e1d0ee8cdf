"""`mbr-perf plan --search`: every legal layout of a request, as far as bounds do not rule it out."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import inf

from harness.errors import BadRequestError, RunFailedError
from harness.experiment.effective import Implementation, settled_implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout import LayoutError
from harness.experiment.recompute import FullRecompute, NoRecompute, RecomputePolicy, SelectiveRecompute
from harness.experiment.rules.check import check
from harness.launch.environment import Host
from harness.plan.request import PlanRequest, check_plan
from harness.plan.run import Layout
from harness.planning.assumptions import imbalance_of
from harness.planning.layouts import Sizes, Space, least_bytes, least_seconds
from harness.planning.prediction import BUILT_IN, Constants
from harness.planning.search import Candidate, Candidates, Limits, Plan, Row, Traces, candidates, plan, required_cases
from harness.recipes.recipe import Recipe, Request
from harness.recipes.resolve import recipe_of, resolve_recipe
from harness.recipes.sweep_file import SIZES
from harness.records.trace import ChunkTrace, TraceCase
from harness.run.predicting.calibration import constants_for
from harness.run.predicting.tracer import Tracing, trace_cache, traces_note
from harness.run.understanding import RunRequest, Settled, settle

# How many layouts are recommended, and from which multiple of the fastest step on a layout is of no interest.
NUM_BEST, SLOWEST = 10, 1.5
# Shapes that are traced together: few at first, so that the first answers come early.
_AT_ONCE = (1, 2, 4, 8)
_FINE_AT_ONCE, _MOST_WITH_LAYERS, _MOST_WITH_MODULES = 4, 48, 10
_ENDS: tuple[RecomputePolicy, ...] = (NoRecompute(), FullRecompute(method="uniform", num_layers=1))
_OF_MEASURING = "CPU17"


@dataclass(frozen=True)
class Tried:
    """One layout with what is known of it. ``settings``: those that a request needs beside the sizes, as for `--set`."""

    sizes: Sizes
    settings: tuple[str, ...]
    settled: Settled
    plan: Plan

    @property
    def row(self) -> Row | None:
        """Return the cheapest setting that fits with its whole range, else the cheapest tight one."""
        return self.plan.recommended

    @cached_property
    def seconds(self) -> float:
        """Return the predicted step time of that setting; infinite without one."""
        return _seconds(self.row) if self.row else inf

    @property
    def rank(self) -> tuple[bool, float]:
        """Return a sort key: what fits with its whole range comes before what is tight."""
        return self.row is None or self.row.verdict == "TIGHT", self.seconds

    @cached_property
    def least_seconds(self) -> float:
        """Return the step time without recompute, which no other setting of the layout beats."""
        control = self.plan.control
        return _seconds(control) if control else 0.0


def _seconds(row: Row) -> float:
    return row.prediction.time.likely_s if row.prediction and row.prediction.time else inf


@dataclass
class Searched:
    """What a search knows so far. ``counts``: layouts by how they ended. ``interrupted``: the user stopped it early."""

    base: Settled
    tried: dict[Sizes, Tried] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    num_layouts: int = 0
    interrupted: bool = False
    traced_with: str = ""
    fastest: float = inf

    def add(self, tried: Tried) -> None:
        """Keep a layout, in place of what was known of it. ``fastest``: the shortest step that fits with its whole range."""
        self.tried[tried.sizes] = tried
        if not tried.rank[0]:
            self.fastest = min(self.fastest, tried.seconds)

    @property
    def best(self) -> list[Tried]:
        """Return the layouts with the fastest fitting settings, fastest first."""
        return sorted((each for each in self.tried.values() if each.row), key=lambda each: each.rank)[:NUM_BEST]

    @property
    def worst_of_best(self) -> float:
        """Return the step time that a layout must beat to be among the best; infinite while there are too few."""
        best = [each for each in self.best if not each.rank[0]]
        return best[-1].seconds if len(best) == NUM_BEST else inf

    @property
    def pareto(self) -> list[tuple[Tried, Row]]:
        """Return the fitting settings that no other predicted one beats in both memory and time, smallest first."""
        slowest = SLOWEST * self.fastest
        rows = [
            (row.prediction.peak_bytes, _seconds(row), each, row)
            for each in self.tried.values()
            for row in each.plan.rows
            if row.prediction and row.verdict != "OOM" and _seconds(row) <= slowest
        ]
        front: list[tuple[Tried, Row]] = []
        fastest = inf
        for _, seconds, each, row in sorted(rows, key=lambda found: found[:2]):
            if seconds < fastest:
                fastest = seconds
                front.append((each, row))
        return front

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Return the best layouts as those of any other plan."""
        return tuple(Layout(each.sizes.name, each.settled, each.plan) for each in self.best)


def search(
    request: PlanRequest,
    host: Host,
    news: Callable[[Searched], None] = lambda _: None,
) -> Searched:
    """Try every legal layout. ``news`` is called whenever more of them are known.

    BadRequestError for a wrong request, and where no layout is legal. Ctrl-C ends the search with what is known.
    """
    check_plan(request)
    base = settle(RunRequest(asked=request.asked), host, request.assume, gpu_point=True)
    pinned = {name: value for name, value in _pinned(request).items() if name in Sizes._fields}
    space = Space(base.spec, pinned)
    recipe = recipe_of(request.asked)
    release = base.software.megatron_core
    tracing = Tracing(host, trace_cache(host.shell) if request.use_cache else None, megatron_core=release)
    run = _Run(request, base, recipe, space, tracing, Searched(base, traced_with=traces_note(release)), news)
    try:
        run.coarse()
        run.fine()
    except KeyboardInterrupt:
        tracing.stop.set()
        run.known.interrupted = True
    if not run.known.tried and not run.known.interrupted:
        reasons = "; ".join(f"{text} ({count} layouts)" for text, count in run.known.reasons.most_common(3))
        raise BadRequestError(
            f"--search: none of {run.known.num_layouts} layouts of {base.spec.num_gpus} GPUs can be planned: {reasons or 'no sizes divide them'}",
            remedy="change -ng or -gb, or leave out sizes that pin the search",
        )
    return run.known


def _pinned(request: PlanRequest) -> dict[str, int | None]:
    given = {name: getattr(request.asked, option) for name, option in SIZES.items()}
    return {name: None if value == "none" else value for name, value in given.items() if value is not None}


@dataclass
class _Run:
    request: PlanRequest
    base: Settled
    recipe: Recipe
    space: Space
    tracing: Tracing
    known: Searched
    news: Callable[[Searched], None]
    too_large: set[tuple[object, ...]] = field(default_factory=set)

    @property
    def constants(self) -> Constants:
        return constants_for(self.base.spec.gpu) if self.request.use_calibration else BUILT_IN

    def coarse(self) -> None:
        """Predict every layout without recompute and with that of whole layers; traces of the next ones are made meanwhile."""
        shapes: dict[object, list[Sizes]] = {}
        for sizes in self.space.sizes():
            shapes.setdefault(sizes.shape, []).append(sizes)
            self.known.num_layouts += 1
        own = _own(self.base.spec).shape
        order = sorted(shapes.values(), key=lambda group: group[0].shape != own)
        self._pipelined(self._batches(order), self._ends)

    def fine(self) -> None:
        """Predict more settings of layouts that are fast without recompute but do not fit then.

        Whole layers need no further traces, so more such layouts get them; modules are traced for the most promising ones.
        """
        self._pipelined(self._promising(_MOST_WITH_LAYERS), self._whole_layers)
        self._pipelined(self._promising(_MOST_WITH_MODULES), self._everything)

    def _promising(self, most: int) -> "Iterator[list[_Due]]":
        due = sorted(filter(_may_gain, self.known.tried.values()), key=lambda each: each.least_seconds)[:most]
        for at in range(0, len(due), _FINE_AT_ONCE):
            batch = [each for each in due[at : at + _FINE_AT_ONCE] if each.least_seconds < self.known.worst_of_best]
            if batch:
                yield [_Due(each.sizes, each.settings, each.settled) for each in batch]

    def _ends(self, due: "_Due") -> Candidates:
        spec, software = due.settled.spec, due.settled.software
        rows = []
        for policy in _ENDS:
            asked = spec.model_copy(update={"recompute": policy})
            findings = check(asked, software, implementation=settled_implementation(spec))
            rows.append(Candidate(asked, tuple(each for each in findings if each.id != _OF_MEASURING), {}))
        return Candidates(tuple(rows), {})

    def _whole_layers(self, due: "_Due") -> Candidates:
        found = self._everything(due)
        kept = (row for row in found.rows if not isinstance(row.spec.recompute, SelectiveRecompute))
        return replace(found, rows=tuple(kept))

    def _everything(self, due: "_Due") -> Candidates:
        return candidates(due.settled.spec, due.settled.software, settled_implementation(due.settled.spec))

    def _pipelined(self, batches: "Iterator[list[_Due]]", settings_of: "Callable[[_Due], Candidates]") -> None:
        with ThreadPoolExecutor(1) as pool:
            waiting: list[tuple[list[tuple[_Due, Candidates]], Future[Traces]]] = []
            try:
                for batch in batches:
                    settings = [(due, settings_of(due)) for due in batch]
                    waiting.append((settings, pool.submit(self._traces, settings)))
                    if len(waiting) > 1:
                        self._take(*waiting.pop(0))
                while waiting:
                    self._take(*waiting.pop(0))
            except BaseException:
                self.tracing.stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _batches(self, shapes: list[list[Sizes]]) -> "Iterator[list[_Due]]":
        """Shapes with a layout that may fit and is legal, several at once."""
        at, waiting = 0, 0
        batch: list[_Due] = []
        for group in shapes:
            found = [due for sizes in group if (due := self._due(sizes))]
            batch += found
            waiting += bool(found)
            if waiting == _AT_ONCE[min(at, len(_AT_ONCE) - 1)]:
                yield batch
                batch, waiting, at = [], 0, at + 1
        if batch:
            yield batch

    def _due(self, sizes: Sizes) -> "_Due | None":
        """The layout's request; None for one that bounds or rules exclude."""
        limits, spec = self._limits(self.base.spec), self.space.spec_of(sizes)
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
        settings = self.space.settings(sizes)
        sized = {SIZES[name]: value for name, value in sizes._asdict().items() if value is not None or name == "vp"}
        changes = {**self.base.from_point, **sized, "gpu": self.base.spec.gpu}
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

    def _ended(self, how: str) -> None:
        self.known.counts[how] += 1

    def _illegal(self, why: str) -> None:
        self.known.reasons[why] += 1
        self._ended("not legal")

    def _limits(self, spec: ExperimentSpec) -> Limits:
        return Limits(self.request.capacity_bytes(spec), self.request.margin, self.request.max_overhead)

    def _traces(self, settings: "list[tuple[_Due, Candidates]]") -> Traces:
        even: dict[str, ChunkTrace] = {}
        uneven: dict[str, ChunkTrace] = {}
        refused: dict[str, str] = {}
        kinds: dict[tuple[Implementation, float], dict[str, TraceCase]] = {}
        for due, found in settings:
            spec = due.settled.spec
            kind = settled_implementation(spec), imbalance_of(spec)
            with suppress(LayoutError):
                kinds.setdefault(kind, {}).update({case.key: case for case in required_cases(found, kind[0])})
        for (implementation, imbalance), cases in kinds.items():
            traced = self.tracing.traces(tuple(cases.values()), implementation, imbalance=imbalance)
            even |= traced.even
            uneven |= traced.uneven or {}
            refused |= traced.refused
        return Traces(even, {**even, **uneven} if uneven else None, refused)

    def _take(self, settings: "list[tuple[_Due, Candidates]]", traced: "Future[Traces]") -> None:
        try:
            traces = traced.result()
        except RunFailedError as error:
            if self.tracing.stop.is_set():
                raise KeyboardInterrupt from error
            raise
        for due, found in settings:
            spec = due.settled.spec
            made = plan(
                spec,
                found,
                traces,
                self._limits(spec),
                settled_implementation(spec),
                due.settled.software,
                self.constants,
            )
            self._keep(Tried(due.sizes, due.settings, due.settled, made))
        self.news(self.known)

    def _keep(self, tried: Tried) -> None:
        predicted = [row for row in tried.plan.rows if row.prediction]
        if not predicted:
            why = next((row.reason for row in tried.plan.rows if row.reason), "not traced")
            self._illegal(why)
            return
        if tried.sizes not in self.known.tried:
            fits = any(row.verdict != "OOM" for row in predicted)
            self._ended("predicted" if fits else "too large even with full recompute")
            if not fits and len(predicted) == len(_ENDS):
                self.too_large.add(tried.sizes)
                return
        self.known.add(tried)


@dataclass(frozen=True)
class _Due:
    sizes: Sizes
    settings: tuple[str, ...]
    settled: Settled


def _may_gain(tried: Tried) -> bool:
    """Whether other settings may be faster than the known ones that fit."""
    control = tried.plan.control
    return control is None or control.verdict != "FITS"


def _own(spec: ExperimentSpec) -> Sizes:
    p, has_experts = spec.parallelism, spec.model.moe is not None
    return Sizes(
        p.tensor_model_parallel_size, p.pipeline_model_parallel_size, p.virtual_pipeline_model_parallel_size,
        p.context_parallel_size, p.expert_model_parallel_size if has_experts else None,
        p.expert_tensor_size if has_experts else None, spec.batch.micro_batch_size,
    )  # fmt: skip


def command(tried: Tried, row: Row, request: PlanRequest) -> str:
    """Return the command that runs a setting of a layout."""
    spec = tried.settled.spec
    words = ["mbr-perf", "run", *request.asked.job_words, "--task", spec.task, "-g", spec.gpu, "-c", spec.compute_dtype,
             "-ng", str(spec.num_gpus), "-gb", str(spec.batch.global_batch_size)]  # fmt: skip
    names = {"et": "-et", "ep": "-ep", "tp": "-tp", "pp": "-pp", "vp": "-vp", "cp": "-cp", "mb": "-mb"}
    for name, value in tried.sizes._asdict().items():
        if value is not None or name == "vp":
            words += [names[name], "none" if value is None else str(value)]
    for setting in tried.settings:
        words += ["--set", setting]
    return shlex.join([*words, *_given(request.asked), "--recompute", row.text])


_NAMED = {
    "model_recipe_name",
    "source",
    "task",
    "gpu",
    "compute_dtype",
    "num_gpus",
    "global_batch_size",
    *SIZES.values(),
}


def _given(asked: Request) -> Iterator[str]:
    """Yield the options of the request that a layout does not change; recompute is the search's answer."""
    for item in fields(asked):
        value = getattr(asked, item.name)
        if item.name in _NAMED or item.name.startswith("recompute") or value in (None, (), item.default):
            continue
        option = {"set_values": "--set", "env": "--env"}.get(item.name, f"--{item.name}")
        for each in value if isinstance(value, tuple) else (value,):
            yield from (option,) if each is True else (option, str(each))
