"""Compares published peaks of Megatron-LM's functional tests with predictions of the same arguments."""

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from arguments import InexpressibleError, read
from rivals import formula_bytes

from harness.experiment.effective import Implementation, settled_implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout import LayoutError
from harness.launch.environment import Host
from harness.predict.assumptions import imbalance_of
from harness.predict.ledger import StageMemory
from harness.predict.prediction import Prediction, predict
from harness.predict.stages import Composer, MissingTraceError
from harness.predict.tracer import Tracing, trace_cache
from harness.records.trace import TraceCase


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
        """Return whose layers ran."""
        return settled_implementation(self.spec)

    @property
    def model(self) -> str:
        """Return the kind of model: dense, with experts, with latent attention."""
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
        """Return the predicted ledger of the stage."""
        return self.prediction.stages[self.case.stage]

    @property
    def predicted(self) -> int:
        """Return the predicted peak of the stage in bytes."""
        return self.memory.total

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
        """Return predicted / measured - 1."""
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
        """Return whether the measurement is inside the predicted range."""
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


def inputs(path: Path) -> dict[str, Any]:
    """``source`` and ``rows`` of a file of inputs, or of a CSV with the columns of `reference/moe_open.csv`.

    Such a CSV has JSON in its columns ``arguments`` (with ``--``) and ``measured``, and nothing on the environment: it is taken
    for empty, the last rank for the recorded one.
    """
    if path.suffix != ".csv":
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    with path.open(newline="") as lines:
        rows = [_of_csv(row) for row in csv.DictReader(lines)]
    return {"source": ", ".join(dict.fromkeys(row["source"] for row in rows)), "rows": rows}


def _of_csv(row: dict[str, str]) -> dict[str, Any]:
    measured, path = json.loads(row["measured"]), row["golden_path"]
    arguments = {name.lstrip("-"): value for name, value in json.loads(row["arguments"]).items()}
    layout = arguments.get("pipeline-model-parallel-layout")
    if layout:  # quoted for a shell, and once more by YAML
        arguments["pipeline-model-parallel-layout"] = layout.replace("\\", "")
    most, steady, seconds = (
        next((float(measured[name]) for name in names if measured.get(name)), None)
        for names in (("mem_max_alloc_last", "mem_max_last"), ("mem_alloc_steady",), ("iter_time_median_s",))
    )
    return {
        "path": f"{path}@{row['commit_date'][:10]}" if row["commit_date"] else path, "source": row["source"], "group": row["group"],
        "arguments": arguments, "date": row["commit_date"][:10] or "2026-01-01", "environment": {}, "hardware": row["hardware"],
        "software": "lts" if "_lts" in path else "dev", "stage": -1, "world_size": int(row["world_size"] or 0),
        "peak_bytes": int(most) if most else None, "steady_bytes": int(steady) if steady else None, "step_time_s": seconds,
    }  # fmt: skip


def read_cases(path: Path, *, needs_peaks: bool = True) -> tuple[list[Case], dict[str, str]]:
    """Return the cases of a file, as :func:`cases_of`."""
    return cases_of(inputs(path)["rows"], needs_peaks=needs_peaks)


def cases_of(rows: Iterable[dict[str, Any]], *, needs_peaks: bool) -> tuple[list[Case], dict[str, str]]:
    """Return cases of equal specs, and omitted rows with the reason; without ``needs_peaks`` it reads no measurements."""
    cases: dict[tuple[object, ...], Case] = {}
    left_out: dict[str, str] = {}
    for row in rows:
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
    done: list[Compared] = []
    left_out: dict[str, str] = {}
    tracing = Tracing(host, trace_cache(host.shell))
    cases = list(cases)
    kinds = dict.fromkeys((case.implementation, imbalance_of(case.spec)) for case in cases)
    for implementation, imbalance in kinds:
        group = [
            case for case in cases if (case.implementation, imbalance_of(case.spec)) == (implementation, imbalance)
        ]
        required: dict[str, TraceCase] = {}
        for case in list(group):
            try:
                required |= {c.key: c for c in Composer(case.spec, implementation).cases()}
            except LayoutError as error:
                left_out |= dict.fromkeys(case.paths, error.message)
                group.remove(case)
        traces = tracing.traces(tuple(required.values()), implementation, imbalance=imbalance)
        for case in group:
            try:
                done.append(Compared(case, predict(case.spec, implementation, traces.even, traces.uneven)))
            except MissingTraceError as error:
                left_out |= dict.fromkeys(case.paths, traces.refused.get(str(error), "not traced"))
    return done, left_out


def predictions(rows: Path, host: Host) -> dict[str, Any]:
    """Predict rows without known measurements, before anyone compares.

    By path: the predicted peak of the recorded stage, its range, or the reason why it is missing.

    A row needs ``path``, ``arguments``, ``hardware``, ``world_size``, ``environment``, ``software``, ``date`` and ``stage``,
    as in the inputs; ``peak_bytes`` and ``steady_bytes`` are not read.
    """
    cases, left_out = read_cases(rows, needs_peaks=False)
    compared, unpredicted = compare(cases, host)
    found: dict[str, Any] = {path: {"left_out": reason} for path, reason in (left_out | unpredicted).items()}
    for row in compared:
        low, high = (edge / row.prediction.peak_bytes for edge in row.prediction.range_bytes)
        time = row.prediction.time
        row_prediction = {
            "predicted_bytes": row.predicted, "range_bytes": [round(row.predicted * low), round(row.predicted * high)],
            "steady_bytes": row.steady, "taken_as": row.case.taken_as,
            "step_s": time.likely_s if time else None, "step_range_s": [time.low_s, time.high_s] if time else None,
        }  # fmt: skip
        found |= dict.fromkeys(row.case.paths, row_prediction)
    return {"rows": inputs(rows)["source"], "predictions": found}
