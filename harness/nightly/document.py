"""JSON of a night: before it runs, and judged."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator

from harness.history.record import CaseOutcome
from harness.judge.differences import Difference
from harness.judge.metrics import GateKind, Metrics, Speed
from harness.launch.slurm_job import SlurmJob
from harness.measure.values import SlurmSubmission
from harness.nightly.aa import AA_ALPHA
from harness.nightly.outlook import CaseOutlook
from harness.nightly.values import AaFinding, CaseFinding, CaseVerdict, NightVerdict, SharedChange
from harness.records.batches import Purpose
from harness.records.night import AaPlan, ExpectedFailureRecord, NightPlan
from harness.records.run import PredictionRecord, Status
from harness.show.json import Document, Shown, Text, at


class AaRunRow(Shown):
    """A run of the A/A under its label."""

    number: int
    label: str = at("reason")
    run_dir: Path
    status: Status | None = at("record", "status")
    failure: str | None = at("record", "failure")


class AaRow(Shown):
    """Two sets of runs with one setting. ``doubts``: by kind of metric, why tonight allows no conclusion about it."""

    case: str
    holds: bool
    is_replayed: bool
    num_pairs: int
    alpha: float = AA_ALPHA
    doubts: dict[GateKind, str]
    comparison: tuple[AaFinding, ...] = at("findings")
    runs: tuple[AaRunRow, ...]


class RunRow(Shown):
    """One run of a case. ``is_counted``: whether the figures include it."""

    run_id: str | None = at("record", "run_id")
    number: int
    purpose: Purpose
    why: Text = at("reason")
    run_dir: Path
    status: Status | None = at("record", "status")
    failure: str | None = at("record", "failure")
    infrastructure: Text
    is_counted: bool
    duration_s: float | None = at("record", "provenance", "duration_s")


class CaseRow(Shown):
    """One case; a figure that is no finite number is null.

    ``speed`` is what the reports show and the gate compares: the mean step time over the runs, and the rates at it.
    ``metrics`` summarises the same runs by the median, which is what `golden promote` stores.
    """

    name: str = at("planned", "name")
    outcome: CaseOutcome
    exit_code: int
    reason: Text
    is_expected: bool
    is_infrastructure: bool
    expected: ExpectedFailureRecord | None = at("planned", "expected")
    remark: Text
    owner: Text = at("planned", "owner")
    refused: Text = at("planned", "refused")
    recipe: str | None = at("planned", "spec", "recipe")
    gpu: str | None = at("planned", "spec", "gpu")
    recompute: str | None = at("planned", "spec", "recompute", "text")
    fingerprint: str | None = at("planned", "spec", "fingerprint")
    comparison: tuple[CaseFinding, ...] = at("findings")
    golden_path: str | None
    drift: tuple[Difference, ...]
    caveats: tuple[str, ...]
    metrics: Metrics | None
    speed: Speed | None
    runs: tuple[RunRow, ...]

    @classmethod
    def of_case(cls, case: CaseVerdict) -> Self:
        """Return a case; each run has ``is_counted``."""
        counted = {record.run_id for record in case.counted}
        runs = [RunRow.of(run, is_counted=run.record is not None and run.record.run_id in counted) for run in case.runs]
        return cls.of(case, runs=runs)


class NightDocument(Document):
    """``mbr-perf nightly --json``. ``report``: the files that were written."""

    night_id: str = at("plan", "night_id")
    night_dir: Path
    suite: str = at("plan", "suite")
    title: str = at("plan", "title")
    shard: Text = at("plan", "shard")
    only: tuple[str, ...] = at("plan", "only")
    outcome: CaseOutcome
    exit_code: int
    started_at: str = at("plan", "started_at")
    finished_at: str
    num_runs_missing: int = at("num_due")
    mbr_perf: str = at("plan", "mbr_perf")
    command: tuple[str, ...] = at("plan", "command")
    notes: tuple[str, ...] = at("plan", "notes")
    aa: AaRow | None
    shared: SharedChange | None
    cases: tuple[CaseRow, ...]
    report: tuple[Path, ...]

    @classmethod
    def of_night(cls, verdict: NightVerdict, reports: Iterable[Path] = ()) -> Self:
        """Return a night, finished or not."""
        return cls.of(verdict, cases=list(map(CaseRow.of_case, verdict.cases)), report=list(reports))


class LastRun(Shown):
    """The newest run of a case in history."""

    run_id: str
    started_at: str
    outcome: str
    suite_case: Text


class PlannedCaseRow(Shown):
    """A case before it runs. ``rules``: those that refuse it."""

    name: str = at("case", "name")
    slug: str | None = at("case", "spec", "slug")
    fingerprint: str | None = at("case", "spec", "fingerprint")
    gpu: str | None = at("case", "spec", "gpu")
    num_gpus: int | None = at("case", "spec", "num_gpus")
    recompute: str | None = at("case", "spec", "recompute", "text")
    repeats: int = at("case", "repeats")
    timeout_s: float | None = at("case", "timeout_s")
    refused: Text = at("case", "refused")
    rules: Annotated[
        tuple[str, ...], BeforeValidator(lambda found: tuple(finding.id for finding in found if finding.blocks))
    ] = at("case", "findings")
    owner: Text = at("case", "owner")
    expected: ExpectedFailureRecord | None = at("case", "expected")
    thresholds: dict[str, float] = at("case", "thresholds")
    is_golden_required: bool = at("case", "is_golden_required")
    golden_path: Path | None
    no_golden: Text
    last: LastRun | None
    prediction: PredictionRecord | None = at("case", "prediction")
    no_prediction: Text = at("case", "no_prediction")


class CaseJob(SlurmSubmission):
    """The Slurm job of a case, and the folders of its runs."""

    name: str = at("record", "name")
    runs: tuple[str, ...]

    @classmethod
    def of_job(cls, job: SlurmJob) -> Self:
        """Return the job with its batch file."""
        return cls.of(job, script=job.render(), runs=[run.run_dir for run in job.record.runs])


class NightPlanDocument(Document):
    """``mbr-perf nightly --dryrun --json``."""

    dryrun: Literal[True] = True
    suite: str
    title: str
    shard: Text
    only: tuple[str, ...]
    confirm: int
    retries: int
    aa: AaPlan | None
    notes: tuple[str, ...]
    cases: tuple[PlannedCaseRow, ...]


class NightJobPlanDocument(NightPlanDocument):
    """``mbr-perf nightly --launcher slurm --dryrun --json``: with the jobs that would be submitted first."""

    jobs: tuple[CaseJob, ...]


def night_plan_document(plan: NightPlan, cases: Sequence[CaseOutlook], jobs: Iterable[SlurmJob]) -> NightPlanDocument:
    """Return the cases that would run, and their goldens."""
    if plan.slurm is None:
        return NightPlanDocument.of(plan, cases=cases)
    return NightJobPlanDocument.of(plan, cases=cases, jobs=list(map(CaseJob.of_job, jobs)))
