"""The prediction that a run keeps with its measurement. It is made before the ranks start or while they run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import HarnessError
from harness.experiment.effective import settled_implementation
from harness.experiment.experiment import NOT_DESCRIBED, ExperimentSpec
from harness.experiment.gpu import SPARE
from harness.experiment.software import Software
from harness.launch.environment import Host, child_environment
from harness.launch.environment_rows import ALLOCATOR
from harness.launch.replay import ReplayPlan
from harness.measure.understanding import Understood
from harness.predict.allocator_settings import require_taken
from harness.predict.exact import why_of_another_planner
from harness.predict.limits import Limits
from harness.predict.model_states import least_bytes
from harness.predict.prediction import BUILT_IN, Constants, calibrated
from harness.predict.prediction import predict as predicted
from harness.predict.search import Traces
from harness.predict.stages import Composer
from harness.predict.trace_book import MissingTraceError
from harness.predict.tracer import TraceKind, Tracing, trace_cache, trace_kind
from harness.predict.weighing import weighed
from harness.records.calibration import PROBED, Calibration
from harness.records.folders import calibration_path
from harness.records.prediction import PredictionRecord
from harness.records.strict_json import read_document
from harness.units import counted, first_line, format_bytes, format_seconds, grouped

# A run waits at most this long for its prediction.
_PATIENCE_S = 120.0
# The reason in a dry run, which starts no tracer.
NOT_TRACED = "no trace yet. Run `mbr-perf plan` with the same options once; later dry runs show the prediction"


@dataclass(frozen=True)
class KeptPrediction:
    """A prediction as records hold it, or the reason why there is none."""

    prediction: PredictionRecord | None
    reason: str = ""


def cached_prediction(spec: ExperimentSpec, software: Software, host: Host, *, starts: bool = True) -> KeptPrediction:
    """Return the prediction of a settled request from cached traces, without starting a tracer."""
    return predictions((spec,), software, tracing(host, cached_only=True), starts=starts)[0]


def predict_with(tracing: Tracing, spec: ExperimentSpec, software: Software) -> KeptPrediction:
    """Like :func:`predictions` for one request."""
    return predictions((spec,), software, tracing)[0]


def predictions(
    specs: Sequence[ExperimentSpec], software: Software, tracing: Tracing, *, starts: bool = True
) -> tuple[KeptPrediction, ...]:
    """Predict settled requests with the kept calibrations of their GPU types. Makes each trace once.

    ``starts``: mbr-perf starts the jobs, with the shell's settings of the allocator where they have none.
    Never raises for a request that may run: a run must not fail because of its prediction. BadRequestError where torch
    refuses the shell's settings.
    """
    specs = [_as_started(spec, tracing.host) for spec in specs] if starts else specs
    traced: dict[TraceKind, Traces | str] = {}
    for kind, own in grouped((trace_kind(spec), spec) for spec in specs if spec.is_described).items():
        try:
            cases = {case.key: case for spec in own for case in Composer(spec, kind[0], software).cases()}
            traced[kind] = tracing.traces(tuple(cases.values()), kind[0], imbalance=kind[1])
        except (HarnessError, OSError) as error:
            traced[kind] = first_line(str(error))
    known = (traced[trace_kind(spec)] if spec.is_described else NOT_DESCRIBED for spec in specs)
    return tuple(predicted_with(*each, software, use_calibration=True) for each in zip(specs, known, strict=True))


def _as_started(spec: ExperimentSpec, host: Host) -> ExperimentSpec:
    """Return the request with the shell's settings of the allocator, if these can be replayed."""
    for each in () if spec.gpu_type.is_cpu else child_environment(spec, host.shell, (), 1):
        if each.name == ALLOCATOR and each.source == "your shell":
            require_taken(each.value, where=ALLOCATOR)
            if "cudaMallocAsync" not in each.value:
                return spec.model_copy(update={"env": {**spec.env, ALLOCATOR: each.value}})
    return spec


def predicted_with(
    spec: ExperimentSpec, traces: Traces | str, software: Software, *, use_calibration: bool
) -> KeptPrediction:
    """Predict one settled request from its traces; a text in their place is the reason why there are none."""
    if isinstance(traces, str):
        return KeptPrediction(None, traces)
    implementation = settled_implementation(spec)
    try:
        constants = constants_for(spec.gpu) if use_calibration else BUILT_IN
        made = predicted(spec, implementation, traces.even, traces.uneven, software, constants)
        return KeptPrediction((made if spec.gpu_type.is_cpu else weighed(made, software, traces)).record())
    except MissingTraceError:
        return KeptPrediction(None, traces.why_missing(Composer(spec, implementation, software), NOT_TRACED))
    except (HarnessError, OSError) as error:  # for example, a calibration file that cannot be read
        return KeptPrediction(None, first_line(str(error)))


def tracing(host: Host, *, cached_only: bool = False) -> Tracing:
    """Return the tracing that a run waits for."""
    return Tracing(host, trace_cache(host.shell), timeout_s=_PATIENCE_S, cached_only=cached_only)


def predicted_first(understood: Understood, kept: KeptPrediction | None = None) -> KeptPrediction:
    """Return the prediction of a run before its ranks start, on the first node. ``kept``: of its plan, if any."""
    if kept is not None:
        return kept
    if understood.launch.nodes.node_rank > 0:
        return KeptPrediction(None, "only the first node predicts")
    if isinstance(understood.plan, ReplayPlan):
        return KeptPrediction(None, "replayed: there is no measurement to compare a prediction with")
    return predict_with(tracing(understood.host), understood.spec, understood.software)


def prediction_line(record: PredictionRecord | None, reason: str) -> str:
    """Predicted peak, reserved bytes and step time. Empty for a record without a prediction."""
    if record is None:
        return f"Not predicted: {reason}" if reason else ""
    whole = record.measurable_peak_bytes
    before = "" if whole == record.peak_bytes else f", {format_bytes(whole)} before CUDA graphs are replayed"
    line = (
        f"Predicted: peak {format_bytes(record.peak_bytes)}, {' to '.join(map(format_bytes, record.range_bytes))}, "
        f"stage {record.worst_stage.pp_rank}{before}"
    )
    if record.reserved_bytes is not None:
        line += f"; reserved {format_bytes(record.reserved_bytes)}"
    if record.step_time_s is None or record.step_time_range_s is None:
        return line
    fast, slow = record.step_time_range_s
    return f"{line}; step {format_seconds(record.step_time_s)}, {format_seconds(fast)} to {format_seconds(slow)}"


def limits_for(spec: ExperimentSpec, margin: float = SPARE) -> Limits:
    """Return the limits with the calibrated constants of the GPU type."""
    return Limits.of(spec, margin, constants_for(spec.gpu).outside_allocator_bytes)


def limits_of(specs: Iterable[ExperimentSpec | None], margin: float) -> list[Limits]:
    """Return the limits of the cells whose memory is known, each once, from the least on."""
    found = {each.budget_bytes: each for spec in specs if spec for each in [limits_for(spec, margin)]}
    return [found[size] for size in sorted(size for size in found if size is not None)]


def misfit_line(record: PredictionRecord | None, spec: ExperimentSpec) -> str:
    """Return a warning if the least that a rank needs exceeds what it may use, else empty."""
    limits = limits_for(spec) if spec.is_described else None
    if limits is None or limits.budget_bytes is None:
        return ""
    needs = (record.fits[0], record.fits[2]) if record else (least_bytes(spec),)
    if needs[0] <= limits.budget_bytes:
        return ""
    what = "the predicted need of" if record else "weights, gradients and optimizer states alone: at least"
    sizes = " to ".join(dict.fromkeys(map(format_bytes, needs)))
    usable = f"{format_bytes(limits.budget_bytes)}, which keeps {limits.margin * 100:g} % free"
    return f"Warning: {what} {sizes} does not fit into {usable}; the run starts anyway"


def constants_for(gpu: str, results: Path | None = None) -> Constants:
    """Return the calibrated constants of a GPU type, else the built-in ones. BadRequestError for a broken file."""
    path = calibration_path(gpu, results)
    if not path.exists():
        return BUILT_IN
    found = read_document(path, Calibration)
    if other := why_of_another_planner(found):
        return replace(BUILT_IN, origin=f"built-in constants: mbr-perf ignores {path}: {other}; calibrate again")
    probed, fitted = (
        ", ".join(each.name for each in found.constants if each.value is not None and (each.reason == PROBED) is wanted)
        for wanted in (True, False)
    )
    parts = [f"measured by mbr-perf probe: {probed}"] if probed else []
    parts += [f"calibrated on {counted(len(found.runs), 'run')} of {gpu}: {fitted}"] if fitted else []
    origin = f"{'; '.join(parts)}; {found.made_at[:10]} ({path}; --no_calibration ignores them)"
    return calibrated(found.constants, found.time_spread, origin)
