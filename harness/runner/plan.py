"""`mbr-perf plan`: every recompute setting of a request predicted, for one layout or for several."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from harness.errors import BadRequestError, raise_all
from harness.launch.environment import Host
from harness.planning.assumptions import is_routed_naturally
from harness.planning.constants import BUILT_IN
from harness.planning.search import Limits, Plan, Traces, plan, required_cases
from harness.planning.settings import Candidates, candidates
from harness.recipes.request import Request
from harness.records.trace import TraceCase
from harness.runner.calibration import constants_for
from harness.runner.exact import ASKED, RECOMMENDED, ExactSetting, ExactTracing
from harness.runner.request import RunRequest
from harness.runner.tracing import Tracing, trace_cache
from harness.runner.understanding import Settled, settle
from harness.spec.effective import Implementation, settled_implementation
from harness.spec.experiment import ExperimentSpec
from harness.spec.layout import LayoutError
from harness.spec.recompute import parse_recompute
from harness.units import GIB

# Names of `--over`, and the option each stands for.
SWEPT = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "et": "expert_tensor_parallel_size",
    "mb": "micro_batch_size",
    "gb": "global_batch_size",
    "sl": "seq_length",
    "ng": "num_gpus",
}


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """All that `mbr-perf plan` asks for. ``over``: values by name of :data:`SWEPT`; None turns interleaving off.

    ``exact``: settings to trace whole, each for ``exact_timeout_s``.
    """

    asked: Request
    margin: float = 0.06
    fit_into_gib: float | None = None
    max_overhead: float | None = None
    over: tuple[tuple[str, tuple[int | None, ...]], ...] = ()
    use_cache: bool = True
    assume: str | None = None
    exact: tuple[str, ...] = ()
    exact_timeout_s: float = 300.0
    use_calibration: bool = True


@dataclass(frozen=True)
class Layout:
    """One point of the sweep: its name, and its plan or the reason why there is none."""

    name: str
    settled: Settled | None
    plan: Plan | None
    problem: str = ""
    traces: Traces | None = None


@dataclass(frozen=True)
class Planned:
    """All layouts in the order asked for. ``best`` is None where nothing fits, or where nothing is judged.

    ``exact``: settings of the best layout, of the first one planned where there is no best, traced whole.
    """

    layouts: tuple[Layout, ...]
    exact: tuple[ExactSetting, ...] = ()

    @property
    def best(self) -> Layout | None:
        """The layout whose recommended setting takes the shortest time per token."""
        fitting = [layout for layout in self.layouts if layout.plan and layout.plan.recommended]
        return min(fitting, key=_seconds_per_token, default=None)


def plan_request(request: PlanRequest, host: Host) -> Planned:
    """Predict all settings of all layouts; one tracer run serves them all.

    BadRequestError for a wrong request, for layouts none of which is legal, and without megatron-core.
    """
    _check(request)
    found = [_found(request, values, host) for values in _points(request)]
    legal = [layout for layout in found if isinstance(layout, _Found)]
    if not legal:
        problems = [layout.problem for layout in found if isinstance(layout, Layout)]
        raise BadRequestError("\n".join(dict.fromkeys(problems)), remedy="`mbr-perf check` explains each rule")
    tracing = Tracing(host, trace_cache(host.shell) if request.use_cache else None)
    planned = Planned(tuple(_planned(request, layout, legal, tracing) for layout in found))
    return replace(planned, exact=_exact(request, planned, host)) if request.exact else planned


def _exact(request: PlanRequest, planned: Planned, host: Host) -> tuple[ExactSetting, ...]:
    layout = planned.best or next(layout for layout in planned.layouts if layout.plan)
    assert layout.plan and layout.traces
    tracing = ExactTracing(host, request.exact_timeout_s, settled_implementation(layout.plan.spec))
    return tracing.settings(layout.plan, request.exact, layout.traces)


@dataclass(frozen=True)
class _Found:
    name: str
    settled: Settled
    candidates: Candidates
    cases: tuple[TraceCase, ...]

    @property
    def implementation(self) -> Implementation:
        return settled_implementation(self.settled.spec)


def _check(request: PlanRequest) -> None:
    problems = []
    if not 0 <= request.margin < 1:
        problems.append(BadRequestError(f"--margin {request.margin:g} is no share of the memory", remedy="e.g. 0.06"))
    if request.fit_into_gib is not None and request.fit_into_gib <= 0:
        problems.append(BadRequestError(f"--fit_into {request.fit_into_gib:g} must be above 0 GiB"))
    if request.max_overhead is not None and request.max_overhead < 0:
        problems.append(
            BadRequestError(f"--max_overhead {request.max_overhead:g} is no share of the step time", remedy="e.g. 0.1")
        )
    if not request.exact_timeout_s > 0:
        problems.append(BadRequestError(f"--exact_timeout {request.exact_timeout_s:g} must be above 0 seconds"))
    raise_all([*problems, *_unreadable(request.exact)])


def _unreadable(settings: tuple[str, ...]) -> list[BadRequestError]:
    problems = []
    for text in settings:
        try:
            parse_recompute("none" if text in (ASKED, RECOMMENDED) else text)
        except ValueError as error:
            problems.append(BadRequestError(f"--exact {text}: {error}"))
    return problems


def _points(request: PlanRequest) -> list[dict[str, int | None]]:
    names = [name for name, _ in request.over]
    return [dict(zip(names, values, strict=True)) for values in product(*(values for _, values in request.over))]


def _found(request: PlanRequest, values: Mapping[str, int | None], host: Host) -> _Found | Layout:
    """The settings of one layout, or why it has none."""
    name = " ".join(f"{key}={value or 'none'}" for key, value in values.items())
    options = {SWEPT[key]: value if value is not None else "none" for key, value in values.items()}
    asked = replace(request.asked, **options)  # type: ignore[arg-type]
    if not values:
        return _legal(name, settle(RunRequest(asked=asked), host, request.assume))
    try:
        return _legal(name, settle(RunRequest(asked=asked), host, request.assume))
    except BadRequestError as error:
        return Layout(name, None, None, error.message)


def _legal(name: str, settled: Settled) -> _Found | Layout:
    implementation = settled_implementation(settled.spec)
    try:
        found = candidates(settled.spec, settled.software, implementation)
    except LayoutError as error:
        return Layout(name, settled, None, f"{error.rule}: {error.message}")
    if not any(candidate.is_legal for candidate in found.rows):
        first = next(finding for finding in found.rows[0].findings if finding.blocks)
        return Layout(name, settled, None, f"{first.id}: {first.message}")
    return _Found(name, settled, found, required_cases(found, implementation))


def _planned(request: PlanRequest, layout: _Found | Layout, legal: list[_Found], tracing: Tracing) -> Layout:
    if isinstance(layout, Layout):
        return layout
    spec = layout.settled.spec
    alike = [other for other in legal if other.implementation == layout.implementation]
    together = {case.key: case for other in alike for case in other.cases}
    uneven = is_routed_naturally(spec)
    traces = tracing.traces(tuple(together.values()), layout.implementation, uneven=uneven)
    limits = Limits(_capacity(request, spec), request.margin, request.max_overhead)
    constants = constants_for(spec.gpu) if request.use_calibration else BUILT_IN
    made = plan(spec, layout.candidates, traces, limits, layout.implementation, layout.settled.software, constants)
    return Layout(layout.name, layout.settled, made, traces=traces)


def _capacity(request: PlanRequest, spec: ExperimentSpec) -> int | None:
    """`--fit_into`, else what the GPU has, or what of it a memory limit leaves; None where nothing is known."""
    if request.fit_into_gib is not None:
        return int(request.fit_into_gib * GIB)
    known = (spec.gpu_type.memory_bytes, spec.measure.memory_limit_bytes)
    return min((size for size in known if size), default=None)


def _seconds_per_token(layout: Layout) -> tuple[float, float]:
    """Throughput decides; where no seconds are predicted, the smallest overhead."""
    assert layout.plan is not None and layout.plan.recommended is not None
    row = layout.plan.recommended
    time = row.prediction.time if row.prediction else None
    seconds = time.likely_s / layout.plan.spec.tokens_per_step if time else 0.0
    return seconds, row.overhead or 0.0
