"""Plan a request: predict every distinct recompute setting, judge it by the GPU's memory, choose the cheapest."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from harness.experiment.effective import Implementation, computation, effective_recompute
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout import chunks
from harness.experiment.modules import MODULES
from harness.experiment.recompute import (
    FullRecompute,
    NoRecompute,
    RecomputePolicy,
    SelectiveRecompute,
    runs_again,
    shown_setting,
)
from harness.experiment.rules.check import check
from harness.experiment.rules.rule import Finding
from harness.experiment.software import Software
from harness.predict.device import device_needs
from harness.predict.limits import Limits
from harness.predict.prediction import BUILT_IN, Constants, Prediction, Verdict, predict, verdict
from harness.predict.ranges import cost_error
from harness.predict.rank_parts import Read
from harness.predict.stages import Composer
from harness.predict.trace_book import MissingTraceError, Shared
from harness.predict.trace_cases import base_policies
from harness.records.prediction import PredictionRecord
from harness.records.trace import ChunkTrace, TraceCase
from harness.units import GIB, format_bytes

# Above this many combinations, modules that free almost nothing are tried alone only.
_MANY = 16
# These rules concern the window of measured steps, which a prediction does not have.
_OF_MEASURING = frozenset({"CPU17"})


@dataclass(frozen=True)
class Candidate:
    """One setting: the request with it, the findings of the rules, and its modules without effect, with reasons."""

    spec: ExperimentSpec
    findings: tuple[Finding, ...]
    inert_modules: dict[str, str]

    @property
    def text(self) -> str:
        return self.spec.recompute.text

    @property
    def is_legal(self) -> bool:
        """Return whether a run with it may start, apart from its window of measured steps."""
        return not any(finding.blocks for finding in self.findings)

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(finding.id for finding in self.findings if finding.blocks)


@dataclass(frozen=True)
class Candidates:
    """Settings in the order none, modules, whole layers, the requested one among them; ``known``: predicted rows."""

    rows: tuple[Candidate, ...]
    inert: dict[str, str]
    skipped: tuple[str, ...] = ()
    known: Mapping[str, "Row"] = field(default_factory=dict, repr=False, compare=False)
    shared: Shared = field(default_factory=Shared, repr=False, compare=False)

    def composer(self, implementation: Implementation, software: Software) -> Composer:
        """Return what composes the settings."""
        return Composer(self.rows[0].spec, implementation, software, shared=self.shared)


def candidates(spec: ExperimentSpec, software: Software, implementation: Implementation) -> Candidates:
    """Return all settings for ``spec``; LayoutError where the model cannot be cut over its pipeline stages."""
    every = effective_recompute(_with(spec, SelectiveRecompute(modules=tuple(MODULES))), implementation, software)
    modules = tuple(name for name in MODULES if name in every.modules)
    weak = _weak(spec, modules)
    policies: list[RecomputePolicy] = [NoRecompute(), *_selective(modules, weak), *_full(spec)]
    rows: list[Candidate] = []
    seen: list[object] = []
    for policy in (spec.recompute, *policies):
        asked = _with(spec, policy)
        what = computation(asked, software)
        if what in seen:
            continue
        rows.append(candidate_of(asked, software, implementation))
        # A request that the rules refuse must not hide the setting that computes the same: ``layernorm`` without effect
        # hides ``none``.
        if rows[-1].is_legal or policy in policies:
            seen.append(what)
    rows.sort(key=lambda row: _place(row.spec.recompute, policies))
    skipped = tuple(f"{name} with other modules: it frees almost nothing" for name in sorted(weak))
    return Candidates(tuple(rows), every.inert_modules, skipped)


def candidate_of(spec: ExperimentSpec, software: Software, implementation: Implementation) -> Candidate:
    """Return the setting of ``spec``, judged by the rules."""
    findings = (f for f in check(spec, software) if f.id not in _OF_MEASURING)
    return Candidate(spec, tuple(findings), effective_recompute(spec, implementation, software).inert_modules)


def _with(spec: ExperimentSpec, policy: RecomputePolicy) -> ExperimentSpec:
    return spec.model_copy(update={"recompute": policy})


def _weak(spec: ExperimentSpec, modules: tuple[str, ...]) -> frozenset[str]:
    """Return {core_attn} under flash-like attention if there are many combinations without it, else nothing."""
    if len(list(_subsets(modules))) <= _MANY or spec.kernels.attention_backend == "unfused":
        return frozenset()
    return frozenset({"core_attn"}) & set(modules)


def _selective(modules: tuple[str, ...], weak: frozenset[str]) -> Iterator[SelectiveRecompute]:
    for subset in _subsets(modules):
        if len(subset) == 1 or not weak & set(subset):
            yield SelectiveRecompute(modules=subset)


def _subsets(modules: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield non-empty subsets, small ones first; no module beside the one that it is inside of."""
    for size in range(1, len(modules) + 1):
        for subset in combinations(modules, size):
            if not {MODULES[name].inside for name in subset} & set(subset):
                yield subset


def _full(spec: ExperimentSpec) -> Iterator[FullRecompute]:
    """Yield uniform N that divides some chunk, block N up to the largest chunk; the rules forbid the rest."""
    sizes = {len(chunk.layers) for stage in chunks(spec.model, spec.parallelism) for chunk in stage if chunk.layers}
    for n in sorted({n for size in sizes for n in range(1, size + 1) if size % n == 0}):
        yield FullRecompute(method="uniform", num_layers=n)
    for n in range(1, max(sizes, default=0) + 1):
        yield FullRecompute(method="block", num_layers=n)


def _place(policy: RecomputePolicy, order: Iterable[RecomputePolicy]) -> int:
    """Return the sort key among all settings; the request's own spelling comes after the others of its kind."""
    order = list(order)
    if policy in order:
        return order.index(policy)
    last = [i for i, other in enumerate(order) if other.granularity == policy.granularity]
    return last[-1] if last else len(order)


# A difference in the step time that no table shows.
SAME_COST = 0.001


@dataclass(frozen=True)
class Row:
    """One setting. ``prediction`` is None for the ``reason``. ``is_certain``: the whole range has the same verdict.

    ``is_weighed``: its steps were replayed where known. ``otherwise``: the same without expandable segments, if the
    verdict then differs; where it has none, with them, if tried. ``allocator``: what replaces the request's setting.
    """

    candidate: Candidate
    prediction: Prediction | None
    verdict: Verdict | None
    overhead: float | None
    reason: str = ""
    is_certain: bool = True
    is_weighed: bool = False
    otherwise: Prediction | None = None
    allocator: str = ""

    @property
    def text(self) -> str:
        return self.candidate.text

    @property
    def label(self) -> str:
        return shown_setting(self.text) + f" with {self.allocator}" * bool(self.allocator)

    def compared_with(self, control: Prediction | None) -> "Row":
        """Return it with its overhead over the setting without recompute."""
        if self.prediction is None or control is None:
            return self
        return replace(self, overhead=self.prediction.overhead_over(control))


@dataclass(frozen=True)
class Plan:
    """The answer for one layout. ``control`` is the row without recompute, None where it could not be predicted.

    ``cure``: a better setting than the recommended one, with expandable segments. ``without_graphs``: the same layout.
    """

    spec: ExperimentSpec
    rows: tuple[Row, ...]
    inert: dict[str, str]
    skipped: tuple[str, ...]
    limits: Limits
    recommended: Row | None
    cure: Row | None = None
    without_graphs: "Plan | None" = None

    @property
    def limit_texts(self) -> list[str]:
        """Return what may be used of the GPU as a sum, and what a node holds of optimizer states in host memory."""
        usable = [f"Usable: {self.limits.text}"] if self.limits.capacity_bytes else []
        host = max((row.prediction.host_bytes for row in self.rows if row.prediction), default=0)
        there = self.spec.gpu_type.host_memory_bytes
        of = f" of {format_bytes(there)}" if there else ", whose memory is not known"
        return [*usable, f"Host: {format_bytes(host)} of optimizer states on each node{of}"] if host else usable

    @property
    def control(self) -> Row | None:
        return next((row for row in self.rows if row.text == NoRecompute().text and row.prediction), None)

    @property
    def predicted(self) -> list[Row]:
        return [row for row in self.rows if row.prediction]

    @property
    def too_dear(self) -> Row | None:
        """Return the cheapest setting that fits if its cost is above the limit, so that it is not recommended."""
        cheapest = recommended(self.rows, replace(self.limits, max_overhead=None))
        if cheapest is None or cheapest.verdict != "FITS" or _is_affordable(cheapest, self.limits):
            return None
        return cheapest

    @property
    def safe(self) -> Row | None:
        """The cheapest setting within the limit of cost whose whole range fits; None also if nothing is judged."""
        return self.recommended if self.recommended and self.recommended.verdict == "FITS" else None

    @property
    def same_time(self) -> tuple[Row, ...]:
        """Return the other settings whose time may equal the recommended setting's."""
        return tuple(row for row in same_time(self.rows, self.limits) if row is not self.recommended)

    @property
    def riskier(self) -> Row | None:
        """Return the cheapest setting that costs less than the safe one but may not fit: its range ends too high."""
        if self.safe is None:
            return None
        tight = [row for row in self.rows if row.verdict == "TIGHT" and _is_cheaper(row, self.safe)]
        return min(tight, key=cost_of, default=None)

    def seconds_per_token(self, row: Row) -> float:
        """Return predicted seconds per token, by which layouts are ordered; 0 where no seconds are predicted."""
        time = row.prediction.time if row.prediction else None
        return time.likely_s / self.spec.tokens_per_step if time else 0.0

    @property
    def assumptions(self) -> tuple[str, ...]:
        predicted = (row.prediction.assumptions for row in self.rows if row.prediction)
        return tuple(dict.fromkeys(assumption.text for each in predicted for assumption in each))


def required_cases(found: Candidates, implementation: Implementation, software: Software) -> tuple[TraceCase, ...]:
    """Return all traces that the legal settings need, each once."""
    composer = found.composer(implementation, software)
    legal = (candidate.spec.recompute for candidate in found.rows if candidate.is_legal)
    return tuple({case.key: case for policy in legal for case in composer.with_recompute(policy).cases()}.values())


def traced_policies(spec: ExperimentSpec, implementation: Implementation, software: Software) -> list[RecomputePolicy]:
    """Return the policies that `candidates` are composed of, also those that rules, CUDA graphs or layouts forbid."""
    every = effective_recompute(_with(spec, SelectiveRecompute(modules=tuple(MODULES))), implementation, software)
    modules = tuple(name for name in MODULES if name in every.modules)
    selective = _selective(modules, _weak(spec, modules))
    return [*base_policies(spec.recompute), NoRecompute(), *selective, FullRecompute(method="uniform", num_layers=1)]


@dataclass(frozen=True)
class Traces:
    """The tracer's answers by key, and reasons for refused cases; ``find_requests``: reads requests for memory."""

    even: Mapping[str, ChunkTrace]
    uneven: Mapping[str, ChunkTrace] | None
    refused: Mapping[str, str]
    find_requests: Callable[[], Read | None] = lambda: None

    @property
    def requests(self) -> Read | None:
        return self.find_requests()

    def why_missing(self, composer: Composer, otherwise: str = "not traced") -> str:
        """Say why a trace of the request is missing; ``otherwise``: where no tracer declined one."""
        return next(filter(None, (self.refused.get(case.key) for case in composer.cases())), otherwise)


NO_TRACES = Traces({}, None, {})


def plan(
    spec: ExperimentSpec,
    found: Candidates,
    traces: Traces,
    limits: Limits,
    implementation: Implementation,
    software: Software,
    constants: Constants = BUILT_IN,
) -> Plan:
    """Predict every legal setting and choose. ``limits`` get what the device of ``spec`` needs beside tensors."""
    limits = replace(limits, needs=device_needs(spec, constants.outside_allocator_bytes))
    composer = found.composer(implementation, software)
    rows = tuple(
        found.known.get(row.text) or row_of(row, composer, traces, software, constants, limits) for row in found.rows
    )
    control = next((row.prediction for row in rows if row.prediction and row.text == NoRecompute().text), None)
    rows = tuple(row.compared_with(control) for row in rows)
    return Plan(spec, rows, found.inert, found.skipped, limits, recommended(rows, limits))


def row_of(
    candidate: Candidate, composer: Composer, traces: Traces, software: Software, constants: Constants, limits: Limits
) -> Row:
    """Predict a setting and judge it."""
    prediction, reason = None, "; ".join(f"{f.id}: {f.message}" for f in candidate.findings if f.blocks)
    if candidate.is_legal:
        own = composer.with_recompute(candidate.spec.recompute)
        try:
            prediction = predict(
                candidate.spec, own.implementation, traces.even, traces.uneven, software, constants, own
            )
        except MissingTraceError:
            reason = traces.why_missing(own)
    found_verdict, is_certain = judged(prediction, limits)
    return Row(candidate, prediction, found_verdict, None, reason, is_certain)


def judged(prediction: Prediction | PredictionRecord | None, limits: Limits) -> tuple[Verdict | None, bool]:
    """Return the verdict (None if nothing is judged), and whether both ends of the range get the same one."""
    budget = limits.budget_bytes
    if prediction is None or budget is None:
        return None, True
    found = verdict(prediction.fits, budget)
    return found, found == "FITS" or prediction.fits[0] > budget


def recommended(rows: tuple[Row, ...], limits: Limits) -> Row | None:
    """Return the best of the settings that are as fast as the fastest; None where nothing fits or is judged.

    That is the one that needs the least memory, in 0.1 GiB as tables show it, and of equal ones the cheapest. Where all
    fit, none that recomputes all that another does, and more.
    """
    equal = same_time(rows, limits)
    fewest = [row for row in equal if row.verdict == "TIGHT" or not any(_is_part(other, row) for other in equal)]
    return min(
        fewest, key=lambda row: (row.prediction and round(row.prediction.fits[1] / GIB, 1), cost_of(row)), default=None
    )


def same_time(rows: tuple[Row, ...], limits: Limits) -> tuple[Row, ...]:
    """The cheapest setting whose whole range fits, or else the cheapest tight one, with all that may be as fast."""
    affordable = [row for row in rows if _is_affordable(row, limits)]
    for wanted in ("FITS", "TIGHT"):
        fitting = [row for row in affordable if row.verdict == wanted]
        if fitting:
            cheapest = min(fitting, key=cost_of)
            return tuple(row for row in fitting if row is cheapest or not _is_cheaper(cheapest, row))
    return ()


def _is_cheaper(first: Row, second: Row) -> bool:
    """Return whether ``first`` certainly costs less. What runs again in addition certainly costs more."""
    costs = cost_of(first)[0], cost_of(second)[0]
    return costs[1] - costs[0] > (SAME_COST if _is_part(first, second) else cost_error().between(*costs))


def _is_part(first: Row, second: Row) -> bool:
    """Return whether ``second`` runs again all that ``first`` does, and more."""
    one, other = (row.candidate.spec.recompute for row in (first, second))
    return runs_again(other, one) and not runs_again(one, other)


def _is_affordable(row: Row, limits: Limits) -> bool:
    return limits.max_overhead is None or (row.overhead is not None and row.overhead <= limits.max_overhead)


def cost_of(row: Row) -> tuple[float, int]:
    """The share by which a step is longer than without recompute, and the peak in bytes; only with a prediction."""
    assert row.prediction is not None
    overhead = row.overhead if row.overhead is not None else row.prediction.recompute_flops / row.prediction.model_flops
    return round(overhead, 4), row.prediction.peak_bytes
