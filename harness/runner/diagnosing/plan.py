"""The planner's part in a diagnosis: what was to be expected of the job, and the cheapest change that fits."""

from dataclasses import replace

from harness.analysis.diagnosis.outlook import Outlook, asked_row, outlook_of
from harness.analysis.diagnosis.stages import unexplained_bytes
from harness.analysis.diagnosis.values import Case
from harness.errors import HarnessError
from harness.launch.environment import Host
from harness.planning.assumptions import is_routed_naturally
from harness.planning.search import Limits, Plan, plan, required_cases
from harness.planning.settings import candidates
from harness.runner.calibration import constants_for
from harness.runner.machine import software_for
from harness.runner.tracing import Tracing, trace_cache
from harness.spec.effective import settled_implementation
from harness.spec.experiment import CudaGraphSpec, ExperimentSpec
from harness.spec.layout import LayoutError

_PATIENCE_S = 300.0


def planned(case: Case, host: Host) -> tuple[Case, Outlook | None]:
    """The case with a prediction, kept or made now, and what would fit. Without a spec both are as they were.

    Never raises for what the planner cannot do: that is told in the case and in the outlook.
    """
    spec = case.spec
    if spec is None:
        return case, None
    try:
        made = _plan(spec, host, capacity_bytes=_capacity(case))
        asked = asked_row(made)
        if case.prediction is None and asked is not None:
            case = _with_prediction(case, made)
        more = unexplained_bytes(case)
        capacity = _capacity(case)
        if more is not None and more > 0 and capacity is not None and case.has_oom:
            made = _plan(spec, host, capacity_bytes=max(0, capacity - more))
    except (HarnessError, OSError, LayoutError) as problem:
        told = str(problem).splitlines()[0]
        return replace(case, no_prediction=case.no_prediction or told), Outlook(problem=told)
    return case, outlook_of(made) if made.limits.capacity_bytes is not None else None


def _with_prediction(case: Case, made: Plan) -> Case:
    asked = asked_row(made)
    assert asked is not None
    if asked.prediction is None:
        return replace(case, no_prediction=asked.reason)
    return replace(case, prediction=asked.prediction.record(), no_prediction="")


def _capacity(case: Case) -> int | None:
    """What the device has, by the failure's own text where it says so."""
    told = case.verdict.figures.total_bytes if case.verdict.figures else None
    known = [size for size in (told, case.spec.capacity_bytes if case.spec else None) if size]
    return min(known, default=None)


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
    traces = tracing.traces(required_cases(found, implementation), implementation, uneven=is_routed_naturally(spec))
    limits = Limits(capacity_bytes)
    return plan(spec, found, traces, limits, implementation, software, constants_for(spec.gpu))
