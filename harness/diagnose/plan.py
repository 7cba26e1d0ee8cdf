"""Predicts what each fix would do before it is recommended."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from harness.diagnose.stages import unexplained_bytes
from harness.diagnose.values import Case, Change, Rulings
from harness.errors import HarnessError
from harness.experiment.effective import settled_implementation
from harness.experiment.experiment import CudaGraphSpec, ExperimentSpec
from harness.experiment.layout_text import LayoutError
from harness.experiment.recompute import canonical_text
from harness.experiment.rules.check import check
from harness.experiment.rules.rule import Finding
from harness.launch.environment import Host
from harness.launch.machine import software_for
from harness.launch.plan import Nodes
from harness.measure.prediction import constants_for
from harness.measure.understanding import rank_environment
from harness.predict.assumptions import imbalance_of
from harness.predict.limits import Limits
from harness.predict.search import Plan, Row, candidates, plan, required_cases
from harness.predict.tracer import Tracing, trace_cache
from harness.records.gating import LaunchSettings
from harness.units import first_line


@dataclass(frozen=True, slots=True)
class Outlook:
    """``change`` is None if nothing fits, the job already fits (``fits_already``), or planning failed (``problem``).

    ``budget_bytes``: the memory that a setting may use, of ``capacity_bytes``.
    """

    change: Change | None = None
    fits_already: bool = False
    budget_bytes: int | None = None
    capacity_bytes: int | None = None
    problem: str = ""


def outlook_of(plan: Plan) -> Outlook:
    """Return the recommended setting if its verdict is FITS; try without CUDA graphs if none fits with them."""
    budget, capacity = plan.limits.budget_bytes, plan.limits.capacity_bytes
    asked = asked_row(plan)
    if asked is None or asked.prediction is None:
        reason = asked.reason if asked else "the planner does not know its recompute setting"
        return Outlook(budget_bytes=budget, problem=f"the memory of the job as it is cannot be predicted ({reason})")
    if asked.verdict == "FITS":
        return Outlook(fits_already=True, budget_bytes=budget)
    if plan.recommended is not None and plan.recommended.verdict == "FITS":
        return Outlook(_change(plan.recommended), budget_bytes=budget)
    other = plan.without_graphs.recommended if plan.without_graphs else None
    if other is not None and other.verdict == "FITS":
        return Outlook(_change(other, "none"), budget_bytes=budget)
    return Outlook(budget_bytes=budget, capacity_bytes=capacity)


def asked_row(plan: Plan) -> Row | None:
    """Return the row of the job's own setting."""
    own = canonical_text(plan.spec.recompute)
    return next((row for row in plan.rows if canonical_text(row.candidate.spec.recompute) == own), None)


def _change(row: Row, graphs: str | None = None) -> Change:
    assert row.prediction is not None
    cost = "step time" if row.prediction.time else "FLOPs"
    return Change(row.text, row.prediction.peak_bytes, row.overhead, cost, graphs)


_PATIENCE_S = 300.0


def planned(case: Case, host: Host) -> tuple[Case, Outlook | None]:
    """Return the case with a prediction, kept or made now, and the outlook. Without a spec there is neither.

    Planning problems do not raise: they are in the case and in the outlook.
    """
    spec = case.spec
    if spec is None:
        return case, None
    try:
        made = _plan(spec, host, capacity_bytes=case.capacity_bytes)
        asked = asked_row(made)
        if case.prediction is None and asked is not None:
            prediction = asked.prediction.record() if asked.prediction else None
            case = replace(case, prediction=prediction, no_prediction="" if prediction else asked.reason)
        more, capacity = unexplained_bytes(case) or 0, case.capacity_bytes
        if more > 0 and capacity is not None and case.has_oom:
            made = _plan(spec, host, capacity_bytes=max(0, capacity - more))
    except (HarnessError, OSError, LayoutError) as error:
        problem = first_line(str(error))
        return replace(case, no_prediction=case.no_prediction or problem), Outlook(problem=problem)
    return case, outlook_of(made) if made.limits.capacity_bytes is not None else None


def _plan(spec: ExperimentSpec, host: Host, *, capacity_bytes: int | None) -> Plan:
    made = _plan_as_asked(spec, host, capacity_bytes)
    fits = made.recommended is not None and made.recommended.verdict == "FITS"
    if spec.cuda_graph.impl == "none" or fits or capacity_bytes is None:
        return made
    eager = spec.model_copy(update={"cuda_graph": CudaGraphSpec()})
    return replace(made, without_graphs=_plan_as_asked(eager, host, capacity_bytes))


def _plan_as_asked(spec: ExperimentSpec, host: Host, capacity_bytes: int | None) -> Plan:
    software, implementation = software_for(spec.gpu, host)[0], settled_implementation(spec)
    found = candidates(spec, software, implementation)
    tracing = Tracing(host, trace_cache(host.shell), timeout_s=_PATIENCE_S)
    traces = tracing.traces(required_cases(found, implementation), implementation, imbalance=imbalance_of(spec))
    limits = replace(Limits.of(spec), capacity_bytes=capacity_bytes)
    return plan(spec, found, traces, limits, implementation, software, constants_for(spec.gpu))


def rulings_on(case: Case, host: Host) -> Rulings:
    """Return what the rules refuse with the software that a run on the job's GPUs would find."""
    spec = case.spec
    if spec is None:
        return Rulings()
    software = software_for(spec.gpu, host)[0]

    def refused(asked: ExperimentSpec, env: dict[str, str] | None) -> tuple[Finding, ...]:
        found = check(asked, software, env=env, implementation=settled_implementation(asked))
        return tuple(finding for finding in found if finding.blocks and finding.id not in case.forced)

    def start(asked: ExperimentSpec) -> tuple[Finding, ...]:
        env, problems = rank_environment(asked, host, LaunchSettings(), Nodes())
        return (*problems, *refused(asked, env))

    known = spec.model_copy(update={"env": given_env(spec, dict(case.sources))}) if case.has_given_settings else spec
    return Rulings(refused(known, None), start)


def given_env(spec: ExperimentSpec, sources: Mapping[str, str]) -> dict[str, str]:
    """Return the variables given as options. A job of others may not have those of the recipe."""
    return {name: value for name, value in spec.env.items() if sources.get(f"env.{name}", "").startswith("--")}
