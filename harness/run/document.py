"""JSON of one run: what would start, what a run came to, and the prediction beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field

from harness.errors import ExitCode
from harness.experiment.effective import EffectiveRecompute
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.rules.rule import Finding as RuleFinding
from harness.judging.coverage import OwnThroughput, own_throughput
from harness.judging.gate import Comparison, Finding, Outcome
from harness.judging.likeness import Difference
from harness.judging.metrics import Metrics
from harness.judging.oom.classify import RankOom, oom_of_run
from harness.judging.oom.verdict import AllocatorFigures, Confidence, OomClass
from harness.launch.plan import LaunchPlan
from harness.launch.replay import Plan, ReplayPlan
from harness.launch.slurm.job import SlurmJob
from harness.records.job import JobRecord, SubmittedRecord
from harness.records.rank import RankRecord
from harness.records.run import (
    ImportedLog,
    LoggedThroughput,
    NodeSample,
    PredictionRecord,
    Provenance,
    RunRecord,
    StagePrediction,
    Status,
)
from harness.run.predicting.prediction import RunPrediction, error_of, whole_run
from harness.run.understanding import Understood
from harness.showing.json import Document, Shown, Text, at


class Predicted(Shown):
    """The keys of a `plan` row that a record holds."""

    peak_bytes: int
    peak_range_bytes: tuple[int, int] = at("range_bytes")
    worst_stage: int = at("worst_stage", "pp_rank")
    peak: str = at("worst_stage", "peak")
    stages: tuple[StagePrediction, ...]
    step_time_s: float | None
    step_time_range_s: tuple[float, float] | None
    model_flops_per_step: int = at("model_flops")
    recompute_flops_per_step: int = at("recompute_flops")
    assumptions: tuple[str, ...]


class PredictedAndMeasured(Predicted):
    """With what was measured. Errors are predicted over measured, less one."""

    measured_peak_bytes: int | None
    peak_error: float | None
    measured_step_time_s: float | None
    step_time_error: float | None

    @classmethod
    def beside(cls, record: PredictionRecord, metrics: Metrics, **more: object) -> Self:
        """``more``: fields in place of those of ``metrics``, or beside them."""
        peak = metrics.peak_allocated_bytes.value if metrics.peak_allocated_bytes else None
        seconds = metrics.step_time_s.median if metrics.step_time_s else None
        measured = {
            "measured_peak_bytes": peak,
            "peak_error": error_of(record.peak_bytes, peak),
            "measured_step_time_s": seconds,
            "step_time_error": error_of(record.step_time_s, seconds),
        }
        return cls.of(record, **measured | more)


class NotPredicted(Shown):
    """Only why there is no prediction."""

    reason: str


Prediction = PredictedAndMeasured | Predicted | NotPredicted


def prediction_document(
    record: PredictionRecord | None, reason: str = "", metrics: Metrics | None = None
) -> Prediction | None:
    """With ``metrics`` also what was measured; None for a record from before predictions."""
    if record is None:
        return NotPredicted(reason=reason) if reason else None
    return PredictedAndMeasured.beside(record, metrics) if metrics else Predicted.of(record)


class UserBuffers(Shown):
    """The user buffers that a run makes. ``names`` are the known configurations with equal buffers.

    ``ub_cfgs`` is empty where all are transformer-engine's defaults.
    """

    shape: tuple[int, ...] = at("user_buffer_shape")
    names: tuple[str, ...] = at("kernels", "tp_comm_overlap_cfg", "names", default=())
    ub_cfgs: dict[str, object] = at("kernels", "tp_comm_overlap_cfg", "ub_cfgs", default={})


class Variable(Shown):
    """One variable of the ranks; secrets are masked."""

    name: str
    value: str = at("shown")
    source: str
    reason: str


class TorchrunLaunch(Shown):
    """What starts on one node."""

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
    """The recorded run that is judged in place of one that trains."""

    launcher: Literal["replay"] = "replay"
    run_dir: Path
    source: Path
    files: tuple[str, ...]


class SlurmSubmission(Shown):
    """The batch file, and the command that submits it."""

    launcher: Literal["slurm"] = "slurm"
    job_dir: str = at("record", "job_dir")
    nnodes: int = at("record", "nnodes")
    num_tasks: int = at("record", "num_tasks")
    script: str
    sbatch: tuple[str, ...]
    left_out: tuple[str, ...]


Launch = TorchrunLaunch | Replay | SlurmSubmission


def launch_document(plan: Plan | SlurmJob) -> Launch:
    """A plan for programs."""
    match plan:
        case LaunchPlan():
            nodes = range(plan.rendezvous.nnodes)
            return TorchrunLaunch.of(plan, node_options=[plan.node_options(node) for node in nodes])
        case ReplayPlan():
            return Replay.of(plan)
        case SlurmJob():
            return SlurmSubmission.of(plan, script=plan.render())


class RunPlanDocument(Document):
    """``mbr-perf run --dryrun --json``."""

    dryrun: Literal[True] = True
    spec: ExperimentSpec
    sources: dict[str, str]
    fingerprint: str = at("spec", "fingerprint")
    effective: EffectiveRecompute
    user_buffers: Annotated[
        UserBuffers | None, BeforeValidator(lambda spec: spec if spec.makes_user_buffers else None)
    ] = at("spec")
    findings: tuple[RuleFinding, ...]
    notes: tuple[str, ...]
    prediction: Prediction | None
    plan: Launch


def run_plan_document(understood: Understood, foretold: RunPrediction, plan: Plan | SlurmJob) -> RunPlanDocument:
    """``plan``: of this node, or of the job that is submitted."""
    record = foretold.prediction.record() if foretold.prediction else None
    prediction = prediction_document(record, foretold.reason)
    return RunPlanDocument.of(understood, prediction=prediction, plan=launch_document(plan))


class UsedGolden(Shown):
    """What a run was compared with."""

    path: str | None = at("golden_path")
    kind: str = at("golden", "kind")
    num_runs: int = at("golden", "num_runs")
    promoted_at: str | None = at("golden", "promoted_at")


class Compared(Document):
    """A comparison with golden values: the keys that `run` and `compare` share."""

    outcome: Outcome
    exit_code: int
    fingerprint: str
    metrics: Metrics
    comparison: tuple[Finding, ...] = at("compared", "findings")
    golden: Annotated[UsedGolden | None, BeforeValidator(lambda told: told if told.golden else None)] = at("compared")
    differences: tuple[Difference, ...] = at("compared", "likeness", "differences")
    caveats: tuple[str, ...] = at("compared", "likeness", "caveats")
    note: Text = at("compared", "note")


class OutOfMemory(Shown):
    """Why memory ran out on one rank, as far as its message tells."""

    rank: int
    oom_class: OomClass = at("verdict", "oom_class", serialization_alias="class")
    confidence: Confidence = at("verdict", "confidence")
    reason: str = at("verdict", "reason")
    next_experiment: str = at("verdict", "next_experiment")
    figures: AllocatorFigures | None = at("verdict", "figures")


class Imported(ImportedLog):
    """The log that a run was read from, with its own throughput in one figure."""

    throughput: tuple[LoggedThroughput, ...] = Field((), exclude=True)
    own_throughput: OwnThroughput | None


class RunDocument(Compared):
    """``mbr-perf run --json``. ``ranks``: of the last of ``run_ids``; an ``imported`` run was read from a log."""

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
    prediction: Prediction | None
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
    """Figures and verdict of all runs in ``run_ids``, of which ``record`` is the last."""
    oom: RankOom | None = oom_of_run(record) if record.status == "oom" else None
    own = own_throughput(record, metrics)
    return RunDocument.of(
        record, metrics=metrics, compared=comparison, outcome=verdict[0], exit_code=verdict[1], run_dir=run_dir,
        prediction=prediction_document(record.prediction, record.no_prediction, whole_run(record, metrics)),
        out_of_memory=oom, imported=Imported(**dict(record.imported), own_throughput=own) if record.imported else None,
        num_runs=len(run_ids), run_ids=run_ids,
    )  # fmt: skip


class CheckDocument(Document):
    """``mbr-perf check --json``."""

    findings: tuple[RuleFinding, ...]
    effective: EffectiveRecompute | None
    exit_code: int
    spec: ExperimentSpec
    sources: dict[str, str]
    notes: tuple[str, ...]

    def rows(self) -> list[Mapping[str, object]]:
        """One for each finding."""
        return [finding.model_dump() for finding in self.findings]


class CompareDocument(Compared):
    """``mbr-perf compare RUN --json``."""

    run_ids: tuple[str, ...]

    def rows(self) -> list[Mapping[str, object]]:
        """One for each metric."""
        return [vars(finding) for finding in self.comparison]


def compare_document(
    records: Sequence[RunRecord], metrics: Metrics, comparison: Comparison, verdict: tuple[Outcome, ExitCode]
) -> CompareDocument:
    """The runs of one setting against one golden."""
    return CompareDocument.of(
        records[0], metrics=metrics, compared=comparison, outcome=verdict[0], exit_code=verdict[1],
        run_ids=[record.run_id for record in records],
    )  # fmt: skip


class RecordedRun(Document):
    """A run as its folder holds it, with the figures that are derived from it (``harness.api.load_run``)."""

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

    def rows(self) -> list[Mapping[str, object]]:
        """One for each step of each rank."""
        return [{"rank": rank.rank, **step.model_dump()} for rank in self.ranks for step in rank.steps]


class SubmittedDocument(Document):
    """``run`` and ``sweep`` with ``--detach --json``, and ``mbr-perf jobs submit --json``."""

    job_dir: str
    job_id: str | None
    run_ids: tuple[str, ...]
    run_dirs: tuple[str, ...]

    @classmethod
    def of_job(cls, job: JobRecord, submitted: SubmittedRecord | None = None, **more: object) -> Self:
        """``more``: the fields of a kind of answer."""
        runs = {"run_ids": [run.run_id for run in job.runs], "run_dirs": [run.run_dir for run in job.runs]}
        return cls.of(job, job_id=submitted.job_id if submitted else None, **runs, **more)


class PreparedDocument(SubmittedDocument):
    """``--no_submit --json``: the batch file that was written, and the command that submits it."""

    script: Path
    sbatch: tuple[str, ...]


class WaitingDocument(SubmittedDocument):
    """Waiting has ended and the job has not."""

    is_done: Literal[False] = False


class CaseJobDocument(SubmittedDocument):
    """``mbr-perf jobs wait --json`` for a case of a night."""

    statuses: tuple[Status, ...]
