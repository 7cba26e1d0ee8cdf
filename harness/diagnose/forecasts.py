"""Predicts what each fix would do before it is recommended."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from harness.diagnose.allocator import SPLITS, Trials, own_settings, replaced_by
from harness.diagnose.commands import NO_GRAPHS, Settings, changed
from harness.diagnose.stages import available_bytes, refuted, stage_of_failure, unexplained_bytes
from harness.diagnose.values import Case, Change, Outlook, Rulings, Trial, findings_text
from harness.errors import BadRequestError, HarnessError
from harness.experiment.effective import settled_implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout_text import LayoutError
from harness.experiment.recompute import canonical_text
from harness.experiment.rules.check import check
from harness.experiment.rules.rule import Finding
from harness.launch.environment import Host
from harness.launch.environment_rows import EXPANDABLE_SEGMENTS
from harness.launch.machine import software_for
from harness.launch.plan import Nodes
from harness.measure.prediction import constants_for
from harness.measure.understanding import rank_environment
from harness.predict.allocator_settings import settings_of
from harness.predict.assumptions import imbalance_of
from harness.predict.limits import Limits
from harness.predict.prediction import predict
from harness.predict.search import Plan, Row, candidates, plan, required_cases
from harness.predict.tracer import Tracing, trace_cache
from harness.predict.weighing import composer_of, stage_held, with_replays
from harness.records.gating import LaunchSettings
from harness.records.prediction import Source
from harness.units import first_line

_PATIENCE_S = 300.0


@dataclass(frozen=True)
class Planner:
    """Plans a job and its variants for a device of ``capacity_bytes``. HarnessError, OSError, LayoutError."""

    host: Host
    capacity_bytes: int | None

    def plan(self, spec: ExperimentSpec) -> Plan:
        """Plan every recompute setting of ``spec``. BadRequestError: the rules refuse all of them."""
        software, implementation = software_for(spec.gpu, self.host)[0], settled_implementation(spec)
        found = candidates(spec, software, implementation)
        if not any(row.is_legal for row in found.rows):  # sizes of a layout that does not divide the GPUs mean nothing
            raise BadRequestError(findings_text(each for each in found.rows[0].findings if each.blocks))
        tracing = Tracing(self.host, trace_cache(self.host.shell), timeout_s=_PATIENCE_S)
        cases = required_cases(found, implementation, software)
        traces = tracing.traces(cases, implementation, imbalance=imbalance_of(spec))
        limits = replace(Limits.of(spec), capacity_bytes=self.capacity_bytes)
        made = plan(spec, found, traces, limits, implementation, software, constants_for(spec.gpu))
        return with_replays(made, traces, software)  # as `plan` shows it

    def variants(self, spec: ExperimentSpec) -> Iterator[tuple[Settings, Row]]:
        """Yield each variant that can be cut and fits, with its cheapest setting."""
        for update in _variants(spec) if self.capacity_bytes else ():
            with suppress(HarnessError, LayoutError, OSError):
                if row := self.plan(changed(spec, update)).safe:
                    yield update, row


def outlook_of(made: Plan, variants: Iterable[tuple[Settings, Row]] = ()) -> Outlook:
    """Return what fits: another recompute setting, or the cheapest of each kind of ``variants``."""
    budget, asked = made.limits.budget_bytes, asked_row(made)
    if asked is None or asked.prediction is None:
        reason = asked.reason if asked else "the planner does not know its recompute setting"
        return Outlook(budget_bytes=budget, problem=f"the memory of the job as it is cannot be predicted ({reason})")
    if asked.verdict == "FITS":
        return Outlook(fits_already=True, budget_bytes=budget)
    found = [_change(row, asked, update) for update, row in (*([({}, made.safe)] if made.safe else ()), *variants)]
    cheapest: dict[object, Change] = {}
    for change in sorted(found, key=lambda change: (change.overhead or 0, change.peak_bytes)):
        cheapest.setdefault(tuple(change.settings), change)
    return Outlook(tuple(cheapest.values()), budget_bytes=budget, capacity_bytes=made.limits.capacity_bytes)


def _variants(spec: ExperimentSpec) -> Iterator[Settings]:
    micro, sizes = spec.batch.micro_batch_size, spec.parallelism
    for part in (2, 4, 8):
        if micro % part == 0:
            yield {"batch.micro_batch_size": micro // part}
    yield {"parallelism.pipeline_model_parallel_size": 2 * sizes.pipeline_model_parallel_size}
    if 2 * sizes.tensor_model_parallel_size <= spec.gpus_per_node:
        yield {"parallelism.tensor_model_parallel_size": 2 * sizes.tensor_model_parallel_size}
    if spec.cuda_graph.impl != "none":
        yield NO_GRAPHS


def asked_row(plan: Plan) -> Row | None:
    """Find the job's own setting by its canonical text; None if the plan has no row of it."""
    own = canonical_text(plan.spec.recompute)
    return next((row for row in plan.rows if canonical_text(row.candidate.spec.recompute) == own), None)


def _change(row: Row, asked: Row, settings: Settings) -> Change:
    assert row.prediction is not None and asked.prediction is not None
    cost, overhead = "step time" if row.prediction.time else "FLOPs", row.prediction.overhead_over(asked.prediction)
    return Change(row.text, row.prediction.peak_bytes, overhead, cost, settings)


def planned(case: Case, host: Host) -> tuple[Case, Outlook | None]:
    """Return the case with a prediction, and the outlook; problems of the planner are in both. None without a spec."""
    spec, planner = case.spec, Planner(host, case.capacity_bytes)
    if spec is None:
        return case, None
    try:
        made = planner.plan(spec)
        asked = asked_row(made)
        if case.prediction is None and asked is not None:
            prediction = asked.prediction.record() if asked.prediction else None
            case = replace(case, prediction=prediction, no_prediction="" if prediction else asked.reason)
        if why := refuted(case):
            return case, Outlook(problem=why)
        more, capacity = unexplained_bytes(case) or 0, case.capacity_bytes
        if more > 0 and capacity is not None and case.has_oom:
            planner = Planner(host, max(0, capacity - more))
            made = planner.plan(spec)
    except (HarnessError, OSError, LayoutError) as error:
        problem = first_line(str(error))
        return replace(case, no_prediction=case.no_prediction or problem), Outlook(problem=problem)
    if made.limits.capacity_bytes is None:
        return case, None
    return case, outlook_of(made, planner.variants(spec))


def rulings_on(case: Case, host: Host) -> Rulings:
    """Return what the rules refuse with the software that a run on the job's GPUs would find."""
    spec = case.spec
    if spec is None:
        return Rulings()
    software = software_for(spec.gpu, host)[0]

    def refused(asked: ExperimentSpec, env: dict[str, str] | None) -> tuple[Finding, ...]:
        found = check(asked, software, env=env)
        return tuple(finding for finding in found if finding.blocks and finding.id not in case.forced)

    def start(asked: ExperimentSpec) -> tuple[Finding, ...]:
        env, problems = rank_environment(asked, host, LaunchSettings(), Nodes())
        return (*problems, *refused(asked, env))

    # A job of others may not have the variables of the recipe.
    typed = {path.removeprefix("env.") for path, source in case.sources if source.startswith("--")}
    env = {name: value for name, value in spec.env.items() if name in typed or not case.has_given_settings}
    return Rulings(refused(spec.model_copy(update={"env": env}), None), start)


def tried(case: Case, host: Host) -> Trials | None:
    """Replay the failed rank's stage under several settings; None where that decides nothing. HarnessError, OSError."""
    spec, stage, available = case.spec, stage_of_failure(case), available_bytes(case)
    if spec is None or stage is None or available is None or not case.fills_device or case.is_on_cpu or refuted(case):
        return None
    software, implementation = software_for(spec.gpu, host)[0], settled_implementation(spec)
    composer = composer_of(spec, software)
    traces = Tracing(host, trace_cache(host.shell)).traces(composer.cases(), implementation)
    made = predict(spec, implementation, traces.even, None, software, constants_for(spec.gpu), composer)
    costs, own_stage = composer.chunk_costs(traces.even)[stage.pp_rank], made.stages[stage.pp_rank]
    more, own, rows, sources = max(0, unexplained_bytes(case) or 0), own_settings(case), [], set[Source]()
    others = [] if settings_of(own).expandable_segments else [*([] if case.pools else [EXPANDABLE_SEGMENTS]), *SPLITS]
    for text in dict.fromkeys((own, *(replaced_by(own, other) for other in others))):
        held = stage_held(composer, own_stage, costs, settings_of(text), traces)
        sources.add(held.source)
        needed = held.fits[1] + more
        rows.append(Trial(settings=text, reserved_bytes=held.in_time[1], fits_bytes=needed, helps=needed <= available))
    is_known = bool(own) or case.expandable_segments is not None
    return Trials(tuple(rows), "estimated" if "estimated" in sources else "replayed", is_known)
