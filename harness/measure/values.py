"""The plan of one run, its verdict and its prediction, as values that are their JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field

from harness.errors import ExitCode
from harness.experiment.effective import EffectiveRecompute
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.rules.rule import Finding as RuleFinding
from harness.failures.of_run import oom_of_run
from harness.failures.verdict import AllocatorFigures, Confidence, OomClass
from harness.judge.coverage import OwnThroughput, own_throughput
from harness.judge.gate import Comparison, Finding, Outcome
from harness.judge.plausible import doubts_of
from harness.launch.cluster_job import ClusterJob
from harness.launch.plan import LaunchPlan
from harness.launch.replay import Plan, ReplayPlan
from harness.measure.prediction import KeptPrediction
from harness.measure.understanding import Understood
from harness.records.golden import Difference
from harness.records.metrics import Metrics
from harness.records.prediction import PredictionRecord, Source, StagePrediction
from harness.records.rank import RankRecord
from harness.records.run import ImportedLog, LoggedThroughput, NodeSample, Provenance, RunRecord, Status
from harness.show.json import Document, Shown, Text, at


def whole_run(record: RunRecord, metrics: Metrics) -> Metrics | None:
    """The figures to compare a prediction with, only of a run that finished. Another run's peak is incomplete."""
    return metrics if record.status == "ok" else None


def error_of(predicted: float | None, measured: float | None) -> float | None:
    """Predicted / measured - 1; None without both."""
    return predicted / measured - 1 if predicted is not None and measured else None


class Predicted(Shown):
    """The keys of a `plan` row that a record holds."""

    peak_bytes: int
    peak_range_bytes: tuple[int, int] = at("range_bytes")
    whole_run_peak_bytes: int = at("measurable_peak_bytes")
    worst_stage: int = at("worst_stage", "pp_rank")
    peak: str = at("worst_stage", "peak")
    reserved_bytes: int | None
    reserved_range_bytes: tuple[int, int] | None
    fits_bytes: int | None
    fits_range_bytes: tuple[int, int] | None
    reserved_source: Source | None

    @property
    def figures(self) -> dict[str, float | None]:
        """Return what metrics of a whole run should be, by their names."""
        return {
            "step_time_s": self.step_time_s,
            "peak_allocated_bytes": self.whole_run_peak_bytes,
            "peak_reserved_bytes": self.reserved_bytes,
        }

    stages: tuple[StagePrediction, ...]
    step_time_s: float | None
    step_time_range_s: tuple[float, float] | None
    model_flops_per_step: int = at("model_flops")
    recompute_flops_per_step: int = at("recompute_flops")
    assumptions: tuple[str, ...]


class PredictedAndMeasured(Predicted):
    """The prediction and the measured figures. An error is predicted / measured - 1, of the peak of the whole run."""

    measured_peak_bytes: int | None
    peak_error: float | None
    measured_reserved_bytes: int | None
    reserved_error: float | None
    measured_step_time_s: float | None
    step_time_error: float | None

    @classmethod
    def beside(cls, record: PredictionRecord, metrics: Metrics | None, **more: object) -> Self:
        """Combine the prediction with ``metrics``. ``more``: fields that replace or extend those of ``metrics``."""
        peaks = (metrics.peak_allocated_bytes, metrics.peak_reserved_bytes) if metrics else (None, None)
        peak, reserved = (found.value if found else None for found in peaks)
        seconds = metrics.step_time_s.median if metrics and metrics.step_time_s else None
        measured = {
            "measured_peak_bytes": peak,
            "peak_error": error_of(record.measurable_peak_bytes, peak),
            "measured_reserved_bytes": reserved,
            "reserved_error": error_of(record.reserved_bytes, reserved),
            "measured_step_time_s": seconds,
            "step_time_error": error_of(record.step_time_s, seconds),
        }
        return cls.of(record, **measured | more)


class NotPredicted(Shown):
    """The reason why there is no prediction."""

    reason: str


Prediction = PredictedAndMeasured | Predicted | NotPredicted


def prediction_document(
    record: PredictionRecord | None, reason: str = "", metrics: Metrics | None = None
) -> Prediction | None:
    """Return the prediction, with ``metrics`` also the measured figures. None for a record without a prediction."""
    if record is None:
        return NotPredicted(reason=reason) if reason else None
    return PredictedAndMeasured.beside(record, metrics) if metrics else Predicted.of(record)


class Variable(Shown):
    """One variable of the ranks; secrets are masked."""

    name: str
    value: str = at("shown")
    source: str
    reason: str


class TorchrunLaunch(Shown):
    """The command that starts on one node."""

    launcher: Literal["torchrun"] = "torchrun"
    run_dir: Path
    argv: tuple[str, ...]
    sampler: tuple[str, ...] | None
    environment: tuple[Variable, ...] = at("env")
    nnodes: int = at("rendezvous", "nnodes")
    node_rank: int = at("rendezvous", "node_rank")
    num_local_ranks: int
    node_options: tuple[tuple[str, ...], ...]
    timeout_s: float | None = at("settings", "timeout_s")
    hang_timeout_s: float = at("settings", "hang_timeout_s")


class Replay(Shown):
    """The recorded run that is judged instead of a training run."""

    launcher: Literal["replay"] = "replay"
    run_dir: Path
    source: Path
    files: tuple[str, ...]


class Submission(Shown):
    """The file of a job, and the command that submits it."""

    launcher: Literal["slurm", "kubeflow"] = at("record", "options", "launcher")
    job_dir: str = at("record", "job_dir")
    nnodes: int = at("record", "nnodes")
    script: str
    submit_command: tuple[str, ...]
    left_out: tuple[str, ...]


Launch = TorchrunLaunch | Replay | Submission


def launch_document(plan: Plan | ClusterJob) -> Launch:
    """Return a launch plan as a document."""
    match plan:
        case LaunchPlan():
            nodes = range(plan.rendezvous.nnodes)
            return TorchrunLaunch.of(plan, node_options=[plan.node_options(node) for node in nodes])
        case ReplayPlan():
            return Replay.of(plan)
        case ClusterJob():
            return Submission.of(plan, script=plan.render())


class RunPlanDocument(Document):
    """``mbr-perf run --dryrun --json``."""

    dryrun: Literal[True] = True
    spec: ExperimentSpec
    sources: dict[str, str]
    fingerprint: str = at("spec", "fingerprint")
    effective: EffectiveRecompute
    findings: tuple[RuleFinding, ...]
    notes: tuple[str, ...]
    prediction: Prediction | None
    plan: Launch


def run_plan_document(understood: Understood, prediction: KeptPrediction, plan: Plan | ClusterJob) -> RunPlanDocument:
    """Document of a dry run. ``plan``: the launch on this node, or the submitted job."""
    shown = prediction_document(prediction.prediction, prediction.reason)
    return RunPlanDocument.of(understood, prediction=shown, plan=launch_document(plan))


class UsedGolden(Shown):
    """The golden that a run was compared with."""

    path: str | None = at("golden_path")
    kind: str = at("golden", "kind")
    num_runs: int = at("golden", "num_runs")
    promoted_at: str | None = at("golden", "promoted_at")


class Compared(Document):
    """A comparison with golden values: the keys that `run` and `compare` share. Excluded fields are for its page."""

    compared: Comparison = Field(exclude=True)
    outcome: Outcome
    exit_code: int
    fingerprint: str
    metrics: Metrics
    comparison: tuple[Finding, ...] = at("compared", "findings")
    golden: Annotated[UsedGolden | None, BeforeValidator(lambda used: used if used.golden else None)] = at("compared")
    differences: tuple[Difference, ...] = at("compared", "likeness", "differences")
    caveats: tuple[str, ...] = at("compared", "likeness", "caveats")
    note: Text = at("compared", "note")
    prediction: Prediction | None

    @property
    def predicted(self) -> Mapping[str, float | None]:
        return self.prediction.figures if isinstance(self.prediction, Predicted) else {}


class OutOfMemory(Shown):
    """Why memory ran out on one rank, as far as its message shows."""

    rank: int
    oom_class: OomClass = at("oom_class", serialization_alias="class")
    confidence: Confidence
    reason: str
    next_experiment: str
    figures: AllocatorFigures | None


class Imported(ImportedLog):
    """The log that a run was read from, with the throughput that the log reports."""

    throughput: tuple[LoggedThroughput, ...] = Field((), exclude=True)
    own_throughput: OwnThroughput | None


class RunDocument(Compared):
    """``mbr-perf run --json``. ``record``: the last run in ``run_ids``. An ``imported`` run was read from a log."""

    record: RunRecord = Field(exclude=True)
    run_id: str
    status: Status
    failure: str | None
    out_of_memory: OutOfMemory | None
    findings: tuple[RuleFinding, ...]
    suspect: tuple[str, ...]
    notes: tuple[str, ...]
    run_dir: Path
    spec: ExperimentSpec
    sources: dict[str, str]
    effective: EffectiveRecompute
    ranks: tuple[RankRecord, ...]
    imported: Imported | None
    provenance: Provenance
    num_runs: int
    run_ids: tuple[str, ...]


def run_document(
    record: RunRecord,
    metrics: Metrics,
    comparison: Comparison,
    verdict: tuple[Outcome, ExitCode],
    run_dir: Path,
    run_ids: Sequence[str],
) -> RunDocument:
    """Figures and verdict of all runs in ``run_ids``. ``record`` is the last run."""
    own, log, oom = own_throughput(record, metrics), record.imported, record.first_oom
    verdict_on_oom = oom_of_run(record) if record.status == "oom" else None
    return RunDocument.of(
        record,
        record=record,
        metrics=metrics,
        compared=comparison,
        outcome=verdict[0],
        exit_code=verdict[1],
        run_dir=run_dir,
        prediction=prediction_document(record.prediction, record.no_prediction, whole_run(record, metrics)),
        out_of_memory=OutOfMemory.of(verdict_on_oom, rank=oom.rank) if oom and verdict_on_oom else None,
        imported=Imported(**dict(log), own_throughput=own) if log else None,
        suspect=doubts_of(record, metrics),
        num_runs=len(run_ids),
        run_ids=run_ids,
    )


class CompareDocument(Compared):
    """``mbr-perf compare RUN --json``."""

    run_ids: tuple[str, ...]
    run_dirs: tuple[Path, ...]


def compare_document(
    runs: Mapping[Path, RunRecord], metrics: Metrics, comparison: Comparison, verdict: tuple[Outcome, ExitCode]
) -> CompareDocument:
    """Compare the runs of one setting, by folder, with a golden."""
    first, ids = next(iter(runs.values())), [record.run_id for record in runs.values()]
    return CompareDocument.of(
        first,
        metrics=metrics,
        compared=comparison,
        outcome=verdict[0],
        exit_code=verdict[1],
        run_ids=ids,
        run_dirs=tuple(runs),
        prediction=prediction_document(first.prediction, first.no_prediction, whole_run(first, metrics)),
    )


class RecordedRun(Document):
    """A run from its folder, with derived figures (``harness.api.load_run``)."""

    run_id: str
    status: str
    fingerprint: str
    spec: ExperimentSpec
    metrics: Metrics
    ranks: tuple[RankRecord, ...]
    nodes: tuple[NodeSample, ...]
    failure: str | None
    suspect: tuple[str, ...]
    notes: tuple[str, ...]
    provenance: Provenance
