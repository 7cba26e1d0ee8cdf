"""`mbr-perf plan`: every recompute setting of a request predicted, for one layout or for several."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field

from harness.errors import BadRequestError, SeveralMatchError, raise_all, with_cure
from harness.experiment.effective import Implementation, settled_implementation
from harness.experiment.experiment import CudaGraphSpec, ExperimentSpec
from harness.experiment.layout_text import LayoutError
from harness.experiment.recompute import NoRecompute, canonical_text, parse_recompute
from harness.experiment.rules.cures import cure
from harness.experiment.rules.rule import Finding
from harness.launch.environment import Host
from harness.measure.prediction import constants_for
from harness.measure.understanding import RunRequest, Settled, settle, with_exports, with_stop
from harness.plan.nearest import Nearest, nearest_golden
from harness.plan.request import PlanRequest, check_plan, chosen, source_notes
from harness.predict.draws import CONSTANT, Varied
from harness.predict.exact import ExactSetting, ExactTracing
from harness.predict.prediction import BUILT_IN
from harness.predict.ranges import cost_error, ratio_error
from harness.predict.reserved import not_composed, not_known
from harness.predict.search import (
    NO_TRACES,
    Candidates,
    Plan,
    Row,
    Traces,
    candidate_of,
    candidates,
    plan,
    required_cases,
)
from harness.predict.step_history import StepHistory
from harness.predict.tracer import TraceKind, Tracing, trace_cache, trace_kind
from harness.predict.weighing import row_history, with_replays
from harness.records.trace import TraceCase
from harness.resolve.sweep_file import SWEPT
from harness.show.json import Text
from harness.units import GIB

if TYPE_CHECKING:
    from harness.predict.fastest import Optimal


@dataclass(frozen=True)
class Layout:
    """One planned point of the sweep."""

    name: str
    settled: Settled
    plan: Plan
    traces: Traces = NO_TRACES

    @property
    def row(self) -> Row | None:
        return self.plan.recommended

    @property
    def smallest(self) -> Row:
        """Return the predicted setting of least memory."""
        return min(self.plan.predicted, key=lambda row: row.prediction.fits[1] if row.prediction else inf)

    @property
    def lacking(self) -> float:
        """Return the bytes that the setting of least memory needs beyond what is usable."""
        found = self.smallest.prediction
        assert found
        return found.fits[1] - (self.plan.limits.budget_bytes or 0)

    def step(self) -> tuple[Row, StepHistory] | None:
        """Return a setting, asked for or else recommended, and its first steps; None where requests are not known."""
        rows = {row.text: row for row in self.plan.predicted}
        is_asked = self.settled.sources.get("recompute", "").startswith("-")
        asked = rows.get(self.plan.spec.recompute.text) if is_asked else None
        row = asked or self.plan.recommended or next(iter(rows.values()), None)
        found = row_history(row, self.traces, self.settled.software) if row else None
        return (row, found) if row and found else None


@dataclass(frozen=True)
class Unplanned:
    """A point of the sweep without a plan, and why. ``settled``: the request, if rules forbid each of its settings."""

    name: Annotated[Text, Field(serialization_alias="layout")]
    problem: str
    settled: Annotated[Any, Field(exclude=True)] = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Planned:
    """All layouts in the order asked for. ``best`` is None where nothing fits, or where nothing is judged."""

    layouts: tuple[Layout | Unplanned, ...]
    exact: tuple[ExactSetting, ...] = ()
    sources: tuple[str, ...] = ()
    varied: Varied = CONSTANT
    optimal: "Optimal | None" = None

    @property
    def made(self) -> list[Layout]:
        return [each for each in self.layouts if isinstance(each, Layout)]

    @property
    def best(self) -> Layout | None:
        """The layout to use, as of :func:`leanest`."""
        return leanest(self.made)

    @property
    def same_time(self) -> tuple[Layout, ...]:
        """The other layouts that fit as surely as the best one and may be as fast, within the error of predictions."""
        best = self.best
        if best is None:
            return ()
        unsure, fastest, _ = _seconds_per_token(best)
        times = ((each, *_seconds_per_token(each)[:2]) for each in self.made if each.row and each is not best)
        return tuple(layout for layout, also, time in times if also == unsure and ratio_error().hides(fastest, time))

    @property
    def nearest_golden(self) -> Nearest | None:
        """Return the golden nearest to a setting of the judged layout."""
        layout = self.judged
        return nearest_golden(layout.plan, layout.settled.sources) if layout else None

    @property
    def judged(self) -> Layout | None:
        return self.best or next(iter(self.made), None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the first layout: its operating point, scaled values, assumptions, and the source of its traces."""
        return (*(note for each in self.made[:1] for note in each.settled.notes), *self.sources)


_OneLayout = TypeVar("_OneLayout", bound=Layout)


def as_fast(layouts: Iterable[_OneLayout]) -> list[_OneLayout]:
    """Return the fastest layout, and those that fit as surely in the same time; tight ones only where none fits."""
    ranked = sorted((each for each in layouts if each.row), key=_seconds_per_token)
    unsure, fastest, _ = _seconds_per_token(ranked[0]) if ranked else (False, 0.0, 0.0)
    times = ((each, *_seconds_per_token(each)[:2]) for each in ranked[1:])
    most = fastest * (1 + cost_error().least)
    return ranked[:1] + [each for each, also, time in times if also == unsure and 0 < time <= most]


def leanest(layouts: Iterable[_OneLayout]) -> _OneLayout | None:
    """Return the one of :func:`as_fast` that needs the least memory, in 0.1 GiB; of equal ones the fastest."""

    def need_gib(layout: _OneLayout) -> float:
        found = layout.row.prediction if layout.row else None
        return round(found.fits[1] / GIB, 1) if found else inf

    return min(as_fast(layouts), key=need_gib, default=None)


def plan_request(
    request: PlanRequest,
    host: Host,
    progress: Callable[[int, int], None] | None = None,
) -> Planned:
    """Predict all settings of all layouts; one tracer run serves them all.

    ``progress`` is called now and then with the number of traces made, and of all to make.
    BadRequestError for a wrong request, for layouts none of which is legal, and without megatron-core.
    """
    check_plan(request)
    found = list(_layouts(request, host))
    legal = [layout for layout in found if isinstance(layout, _Found)]
    if not legal:
        raise_all(_refusals(layout for layout in found if isinstance(layout, Unplanned)))
    _check_varied(request.varied, [layout.settled.spec for layout in legal])
    cache, release = trace_cache(host.shell) if request.use_cache else None, legal[0].settled.software.megatron_core
    tracing = Tracing(host, cache, progress=progress, megatron_core=release)
    traced = tracing.by_kind(layout.needed for layout in legal)
    planned = Planned(
        tuple(_planned(request, each, traced) if isinstance(each, _Found) else each for each in found),
        sources=source_notes(release, legal[0].settled.spec),
        varied=request.varied,
    )
    if len(found) == 1:
        planned = replace(planned, layouts=(_beside_others(request, planned.made[0], tracing),))
    planned = _with_replays(planned, request)
    if request.optimal:
        planned = replace(planned, optimal=_optimal(request, planned))
    return replace(planned, exact=_exact(request, planned, host)) if request.exact else planned


def _refusals(layouts: Iterable[Unplanned]) -> list[BadRequestError]:
    """Return every problem once."""
    each = (broken_rules(of.settled) if of.settled else [BadRequestError(of.problem)] for of in layouts)
    problems = sorted(chain.from_iterable(each), key=lambda problem: bool(problem.choices))
    return [*{problem.message: problem for problem in problems}.values()]


def broken_rules(settled: Settled, only: Container[str] | None = None) -> list[BadRequestError]:
    """Return the rules of ``only`` that forbid any recompute; the last one with options that mend all."""

    def judge(spec: ExperimentSpec) -> list[Finding]:
        asked = spec.model_copy(update={"recompute": NoRecompute()})
        found = candidate_of(asked, settled.software, settled_implementation(spec)).findings
        return [finding for finding in found if finding.blocks and (only is None or finding.id in only)]

    problems = [BadRequestError(f"{each.id}: {each.message}", remedy=each.fix) for each in judge(settled.spec)]
    return with_cure(problems, cure(settled.spec, judge, settled.sources)) if problems else []


def _check_varied(varied: Varied, specs: list[ExperimentSpec]) -> None:
    """Raise BadRequestError, before anything is traced, for sizes that some layout cannot have, or none can use."""
    if varied.options and all(map(not_composed, specs)):
        raise not_known(varied.options[0], specs[0])
    for spec in specs:
        varied.check(spec)


def _optimal(request: PlanRequest, planned: Planned) -> "Optimal":
    """Find the fastest plan by layer of the best layout; of the first one planned where there is no best."""
    from harness.predict.fastest import optimal  # it imports scipy
    from harness.predict.splits import Splits

    layout = planned.judged
    assert layout
    spec = layout.plan.spec
    constants = constants_for(spec.gpu) if request.use_calibration else BUILT_IN
    asked = layout.plan, layout.traces, settled_implementation(spec), layout.settled.software, constants
    found = optimal(*asked, mixes={})
    return Splits(*asked).best(found) if request.layers_too else found


def _with_replays(planned: Planned, request: PlanRequest) -> Planned:
    """Replay the first steps of every layout. BadRequestError for varied sizes where no requests are known."""
    layouts = tuple(replayed(each, request) if isinstance(each, Layout) else each for each in planned.layouts)
    planned = replace(planned, layouts=layouts)
    best, varied = planned.judged, request.varied
    assert best
    if varied.options and not any(row.prediction and row.prediction.drawn for row in best.plan.rows):
        raise not_known(varied.options[0], best.plan.spec)
    return planned


def replayed(layout: _OneLayout, request: PlanRequest, named: Sequence[str] = ()) -> _OneLayout:
    """Replay the settings of a layout that decide, and the ``named`` ones or else those of `--only`."""
    texts = [canonical_text(parse_recompute(text)) for text in named or request.only]
    made = with_replays(layout.plan, layout.traces, layout.settled.software, request.varied, texts)
    return replace(layout, plan=made)


def _exact(request: PlanRequest, planned: Planned, host: Host) -> tuple[ExactSetting, ...]:
    layout = planned.judged
    assert layout
    implementation = settled_implementation(layout.plan.spec)
    tracing = ExactTracing(host, implementation, layout.settled.software)
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

    @property
    def needed(self) -> tuple[TraceKind, tuple[TraceCase, ...]]:
        return trace_kind(self.settled.spec), self.cases


def _layouts(request: PlanRequest, host: Host) -> Iterator["_Found | Unplanned"]:
    """Yield every combination asked for; what the machine decides is settled once."""
    known: Settled | None = None
    for values in request.points():
        layout = _found(request, values, host, known)
        if isinstance(layout, _Found):
            known = known or layout.settled
        yield layout


def _found(
    request: PlanRequest, values: Mapping[str, int | None], host: Host, known: Settled | None
) -> "_Found | Unplanned":
    """Return the settings of one layout, or why it has none. BadRequestError where only one layout was asked for."""
    name = " ".join(f"{key}={value or 'none'}" for key, value in values.items())
    options = {SWEPT[key]: value if value is not None else "none" for key, value in values.items()}
    asked = replace(request.asked, **options)  # type: ignore[arg-type]
    try:
        settled = settle(RunRequest(asked=asked), host, request.assume, known, gpu_point=True)
        settled = with_stop(with_exports(settled, asked), asked)
    except BadRequestError as error:
        if not values or isinstance(error, SeveralMatchError):
            raise
        return Unplanned(name, f"{error.message}; {error.remedy}" if error.remedy else error.message)
    return legal(name, settled, request.only)


def legal(name: str, settled: Settled, only: tuple[str, ...]) -> "_Found | Unplanned":
    """Return the settings of a layout, or the first rule that forbids all of them. ``only``: as `--only`."""
    implementation = settled_implementation(settled.spec)
    try:
        found = chosen(candidates(settled.spec, settled.software, implementation), only)
    except LayoutError as error:
        return Unplanned(name, f"{error.rule}: {error.message}", settled)
    if not any(candidate.is_legal for candidate in found.rows):
        first = next(finding for finding in found.rows[0].findings if finding.blocks)
        return Unplanned(name, f"{first.id}: {first.message}; {first.fix}", settled)
    return _Found(name, settled, found, required_cases(found, implementation, settled.software))


def _planned(request: PlanRequest, layout: _Found, traced: Mapping[TraceKind, Traces]) -> Layout:
    spec, traces = layout.settled.spec, traced[layout.needed[0]]
    limits = request.limits(spec)
    constants = constants_for(spec.gpu) if request.use_calibration else BUILT_IN
    made = plan(spec, layout.candidates, traces, limits, layout.implementation, layout.settled.software, constants)
    return Layout(layout.name, layout.settled, made, traces)


def _beside_others(request: PlanRequest, layout: Layout, tracing: Tracing) -> Layout:
    """Return the layout, where no setting fits safely also planned without CUDA graphs, if rules allow that."""
    made = layout.plan
    if made.limits.capacity_bytes is None or made.safe is not None or made.spec.cuda_graph.impl == "none":
        return layout
    graphs_off = made.spec.model_copy(update={"cuda_graph": CudaGraphSpec()})
    try:
        found = legal(layout.name, replace(layout.settled, spec=graphs_off), request.only)
    except BadRequestError:  # a setting of --only that computes the same as another one there
        return layout
    if isinstance(found, Unplanned):
        return layout
    eager = replayed(_planned(request, found, tracing.by_kind([found.needed])), request).plan
    return replace(layout, plan=replace(made, without_graphs=eager))


def _seconds_per_token(layout: Layout) -> tuple[bool, float, float]:
    """A sort key: fitting before tight, then throughput, or the smallest overhead if no seconds are predicted."""
    row = layout.plan.recommended
    assert row
    return row.verdict != "FITS", layout.plan.seconds_per_token(row), row.overhead or 0.0
