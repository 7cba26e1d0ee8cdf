"""Compares published peaks of Megatron-LM's functional tests with predictions of the same arguments."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from arguments import InexpressibleError, read
from rivals import formula_bytes

from harness.experiment.effective import Implementation, settled_implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout_text import LayoutError
from harness.experiment.software import Software
from harness.launch.environment import Host
from harness.measure.prediction import predict_with, tracing
from harness.predict.assumptions import imbalance_of
from harness.predict.ledger import StageMemory
from harness.predict.prediction import Prediction, predict
from harness.predict.search import Traces
from harness.predict.stages import Composer
from harness.predict.trace_book import MissingTraceError
from harness.predict.tracer import TraceKind, Tracing, trace_cache
from harness.records.prediction import PredictionRecord
from harness.records.trace import TraceCase

T = TypeVar("T")
Jobs = Mapping[str, tuple[ExperimentSpec, Implementation]]


@dataclass
class Case:
    """Runs of equal specs, on one of the two software stacks that upstream tests with."""

    name: str
    software: str
    spec: ExperimentSpec
    taken_as: tuple[str, ...]
    stage: int = -1
    paths: list[str] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    steady: list[int] = field(default_factory=list)
    treatments: dict[str, set[str]] = field(default_factory=dict)

    @property
    def implementation(self) -> Implementation:
        return settled_implementation(self.spec)

    @property
    def model(self) -> str:
        moe, mla = self.spec.model.moe, self.spec.model.mla
        return "MLA and MoE" if mla and moe else "MLA" if mla else "MoE" if moe else "dense"

    @property
    def architecture(self) -> str:
        """The model, whatever its layout: rows of one are left out together when ranges are checked."""
        model = self.spec.model
        experts = f", {model.moe.num_moe_experts} experts" if model.moe else ""
        return f"{model.num_layers} x {model.hidden_size}, {model.num_attention_heads} heads{experts}"

    @property
    def is_exact(self) -> bool:
        """Return whether the spec describes the whole run and the prediction models all of it."""
        return not self.taken_as and not self.is_bounded

    @property
    def is_bounded(self) -> bool:
        """Return whether CUDA graphs or FSDP hold memory that is modelled roughly."""
        return self.spec.cuda_graph.impl != "none" or self.spec.ddp.use_megatron_fsdp


@dataclass(frozen=True)
class Compared:
    """One case with the prediction for the recorded pipeline stage, in Megatron-LM's tests the last."""

    case: Case
    prediction: Prediction

    @property
    def memory(self) -> StageMemory:
        return self.prediction.stages[self.case.stage]

    @property
    def predicted(self) -> int:
        """Return the predicted peak of the stage in bytes, of the whole run as upstream's tests measure it."""
        return self.memory.whole_run

    @property
    def steady(self) -> int:
        """Return the bytes predicted to stay allocated between steps."""
        stage = self.memory
        return stage.weights + stage.gradients + stage.optimizer + stage.overhead

    @property
    def measured(self) -> float:
        """Return the median measured peak in bytes over the runs of the case."""
        return median(self.case.peaks)

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def rival(self) -> int | None:
        """Return the figure of Megatron-Bridge's closed formula for the most loaded GPU; None where the formula has none."""
        if self.case.spec.recompute.granularity == "full":
            return None
        return formula_bytes(self.case.spec, self.prediction.worst)

    @property
    def range_bytes(self) -> tuple[int, int]:
        """Return the predicted range: that of the worst stage, in proportion to the stage that was recorded."""
        low, high = (round(self.predicted * edge / self.prediction.peak_bytes) for edge in self.prediction.range_bytes)
        return low, high

    @property
    def is_in_range(self) -> bool:
        low, high = self.range_bytes
        return low <= self.measured <= high

    def document(self) -> dict[str, Any]:
        """Return the case for the JSON file."""
        stage, spec = self.memory, self.case.spec
        return {
            "case": self.case.name, "gpu": spec.gpu, "software": self.case.software, "model": self.case.model,
            "attention": spec.kernels.attention_backend, "layers": self.case.implementation,
            "compute_dtype": spec.compute_dtype, "taken_as": self.case.taken_as, "recompute": spec.recompute.text,
            "cuda_graphs": spec.cuda_graph.impl, "predicted_bytes": self.predicted, "measured_bytes": self.measured,
            "error": round(self.error, 5), "rival_bytes": self.rival, "in_range": self.is_in_range,
            "class": self.prediction.job_class, "architecture": self.case.architecture,
            "uneven_bytes": round(self.predicted * self.prediction.uneven_bytes / self.prediction.peak_bytes),
            "range_bytes": self.range_bytes, "bounded": self.case.is_bounded, "peak": stage.peak, "runs": sorted(self.case.paths),
            "measured_range_bytes": [min(self.case.peaks), max(self.case.peaks)],
            "steady_measured_bytes": median(self.case.steady) if self.case.steady else None,
            "steady_predicted_bytes": self.steady,
            "parts_bytes": {
                name: getattr(stage, name)
                for name in ("weights", "gradients", "optimizer", "activations", "logits", "transient", "overhead")
            },
        }  # fmt: skip


def predicted(spec: ExperimentSpec, software: Software, host: Host) -> PredictionRecord:
    """Return the prediction of one request. RuntimeError with the reason where it has none."""
    made = predict_with(tracing(host), spec, software)
    if made.prediction is None:
        raise RuntimeError(f"{spec.recipe} {spec.recompute.text}: {made.reason}")
    return made.prediction


def on_te(spec: ExperimentSpec) -> ExperimentSpec:
    """Return the spec with transformer-engine's layers."""
    kernels = spec.kernels.model_copy(update={"transformer_impl": "transformer_engine"})
    return spec.model_copy(update={"kernels": kernels})


def read_cases(path: Path) -> tuple[list[Case], dict[str, str]]:
    """Return the cases of a file of inputs, as :func:`cases_of`."""
    return cases_of(json.loads(path.read_text())["rows"], needs_peaks=True)


def cases_of(rows: Iterable[dict[str, Any]], *, needs_peaks: bool) -> tuple[list[Case], dict[str, str]]:
    """Return cases of equal specs, and omitted rows with the reason; without ``needs_peaks`` it reads no measurements."""
    cases: dict[tuple[object, ...], Case] = {}
    left_out: dict[str, str] = {}
    for row in rows:
        if origin := row.get("copied_from"):
            left_out[row["path"]] = (
                f"not measured: its peak, steady bytes and time are those of {origin}, to the last digit"
            )
            continue
        try:
            reading = read(row)
        except InexpressibleError as reason:
            left_out[row["path"]] = str(reason)
            continue
        if needs_peaks and not row["peak_bytes"]:
            left_out[row["path"]] = "no peak recorded"
            continue
        case = Case(
            Path(row["path"]).parent.name or row["path"], row["software"], reading.spec, reading.taken_as, row["stage"]
        )
        case = cases.setdefault((reading.spec.fingerprint, reading.taken_as, row["software"], row["stage"]), case)
        case.paths.append(row["path"])
        for name, treatment in reading.treatments.items():
            case.treatments.setdefault(treatment, set()).add(name)
        if needs_peaks:
            case.peaks.append(row["peak_bytes"])
            case.steady += [row["steady_bytes"]] if row["steady_bytes"] else []
    return list(cases.values()), left_out


def compare(cases: Iterable[Case], host: Host) -> tuple[list[Compared], dict[str, str]]:
    """Predict all cases; also return the cases without a prediction, each with the reason."""
    by_name = {case.paths[0]: case for case in cases}
    jobs = {name: (case.spec, case.implementation) for name, case in by_name.items()}
    found, lost = composed(jobs, host, lambda each, traces: predict(
        each.spec, each.implementation, traces.even, traces.uneven
    ))  # fmt: skip
    done = [Compared(by_name[name], prediction) for name, prediction in found.items()]
    return done, {path: why for name, why in lost.items() for path in by_name[name].paths}


def composed(jobs: Jobs, host: Host, make: Callable[[Composer, Traces], T]) -> tuple[dict[str, T], dict[str, str]]:
    """Return what ``make`` makes of each job's composer and traces, kind by kind; and why some have none."""
    composers = {name: Composer(*job) for name, job in jobs.items()}
    kinds = {name: (implementation, imbalance_of(spec)) for name, (spec, implementation) in jobs.items()}
    needed: list[tuple[TraceKind, Sequence[TraceCase]]] = []
    left_out: dict[str, str] = {}
    for name, composer in composers.items():
        try:
            needed.append((kinds[name], composer.cases()))
        except LayoutError as error:
            left_out[name] = error.message
    found = Tracing(host, trace_cache(host.shell)).by_kind(needed)
    done: dict[str, T] = {}
    for name, traces in ((name, traces) for kind, traces in found.items() for name in jobs if kinds[name] == kind):
        if name not in left_out:
            try:
                done[name] = make(composers[name], traces)
            except MissingTraceError as error:
                left_out[name] = traces.refused.get(str(error), "not traced")
    return done, left_out
