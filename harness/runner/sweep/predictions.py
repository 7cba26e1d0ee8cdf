"""Predictions of all cells of a sweep, from one tracer run for those that share layers' implementation."""

from collections.abc import Sequence

from harness.errors import HarnessError
from harness.launch.environment import Host
from harness.planning.assumptions import is_routed_naturally
from harness.planning.prediction import predict
from harness.planning.search import Traces
from harness.planning.stages import Composer, MissingTraceError
from harness.runner.calibration import constants_for
from harness.runner.prediction import RunPrediction
from harness.runner.tracing import Tracing, trace_cache
from harness.spec.effective import Implementation, settled_implementation
from harness.spec.experiment import ExperimentSpec
from harness.spec.software import Software


def foretell(specs: Sequence[ExperimentSpec], software: Software, host: Host) -> tuple[RunPrediction, ...]:
    """One answer for each of ``specs``, in their order; the reason where there is no prediction. Never raises for that."""
    kinds = [(settled_implementation(spec), is_routed_naturally(spec)) for spec in specs]
    tracing = Tracing(host, trace_cache(host.shell))
    traced = {
        kind: _traces(
            tracing,
            [spec for spec, own in zip(specs, kinds, strict=True) if own == kind],
            implementation=kind[0],
            uneven=kind[1],
        )
        for kind in dict.fromkeys(kinds)
    }
    return tuple(_foretold(spec, kind[0], traced[kind], software) for spec, kind in zip(specs, kinds, strict=True))


def _traces(
    tracing: Tracing, specs: Sequence[ExperimentSpec], *, implementation: Implementation, uneven: bool
) -> Traces | str:
    cases = {case.key: case for spec in specs for case in Composer(spec, implementation).cases()}
    try:
        return tracing.traces(tuple(cases.values()), implementation, uneven=uneven)
    except (HarnessError, OSError) as error:
        return str(error).splitlines()[0]


def _foretold(
    spec: ExperimentSpec, implementation: Implementation, traces: Traces | str, software: Software
) -> RunPrediction:
    if isinstance(traces, str):
        return RunPrediction(None, traces)
    try:
        constants = constants_for(spec.gpu)
        return RunPrediction(predict(spec, implementation, traces.even, traces.uneven, software, constants))
    except MissingTraceError:
        reasons = (traces.refused.get(case.key) for case in Composer(spec, implementation).cases())
        return RunPrediction(None, next((reason for reason in reasons if reason), "not traced"))
    except (HarnessError, OSError) as error:  # a calibration file that cannot be read, say
        return RunPrediction(None, str(error).splitlines()[0])
