"""A night before it runs: its cases, their goldens, and how they went last time, for people and as JSON."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from harness.experiment.recompute import shown_setting
from harness.judge.gate import OptionalText
from harness.launch.cluster_job import ClusterJob
from harness.measure.values import Submission
from harness.records.night import Case, ExpectedFailureRecord, NightPlan
from harness.records.prediction import PredictionRecord
from harness.show.figures import ABSENT
from harness.show.json import Document, Refusing, Shown, Text, at
from harness.show.page import GAP, Column, Page, answer_line, listing, tabled
from harness.units import counted, format_bytes


class LastRun(Shown):
    """The newest run of a case in history."""

    run_id: str
    started_at: str
    outcome: str = at("end")
    suite_case: Text


class CaseOutlook(Shown):
    """A planned case before it runs. ``no_golden``: why there is none, or that its recipe point has changed."""

    case: Case = Field(exclude=True)
    is_golden_damaged: bool = Field(default=False, exclude=True)
    name: str = at("case", "name")
    slug: str | None = at("case", "spec", "slug")
    fingerprint: str | None = at("case", "spec", "fingerprint")
    gpu: str | None = at("case", "spec", "gpu")
    num_gpus: int | None = at("case", "spec", "num_gpus")
    recompute: str | None = at("case", "spec", "recompute", "text")
    repeats: int = at("case", "repeats")
    timeout_s: float | None = at("case", "timeout_s")
    refused: Text = at("case", "refused")
    rules: Refusing = at("case", "findings")
    owner: Text = at("case", "owner")
    expected: ExpectedFailureRecord | None = at("case", "expected")
    thresholds: dict[str, float] = at("case", "thresholds")
    is_golden_required: bool = at("case", "is_golden_required")
    golden_path: Path | None
    no_golden: OptionalText
    last: LastRun | None
    prediction: PredictionRecord | None = at("case", "prediction")
    no_prediction: Text = at("case", "no_prediction")


def outlook_page(plan: NightPlan, cases: tuple[CaseOutlook, ...]) -> Page:
    """Return the table of `nightly --dryrun`, and below it which cases do not run, or cannot be judged, and why."""
    able = [item for item in cases if not item.case.refused]
    refused = (f"{item.case.name}: refused: {item.case.refused}" for item in cases if item.case.refused)
    unusable = [item for item in able if _is_unusable(item)]
    own = [item for item in unusable if not item.no_golden.endswith("does not exist")]
    unjudged = [f"{item.case.name}: inconclusive: {item.no_golden}" for item in own]
    if absent := len(unusable) - len(own):
        unjudged.append(f"{counted(absent, 'golden')} absent: inconclusive until you promote a night's values")
    pairs = (plan.no_pairs, GAP) if plan.no_pairs else ()  # as in line 1 of the night itself
    blocks = (*pairs, tabled(able, _COLUMNS), GAP, listing((*refused, *unjudged)))
    notes = tuple(note for note in plan.notes if note != plan.no_pairs)
    return Page(title=plan.title, notes=notes, answer=answer_line(_total(plan)), blocks=blocks)


def _setting(item: CaseOutlook) -> str:
    spec = item.case.spec
    assert spec is not None  # not refused
    return f"{spec.recipe} {spec.task} {spec.compute_dtype} {shown_setting(spec.recompute.text)}"


def _golden(item: CaseOutlook) -> str:
    if item.is_golden_damaged:
        return "damaged"
    return "no" if item.golden_path is None else "changed" if item.no_golden else "yes"


def _is_unusable(item: CaseOutlook) -> bool:
    state = _golden(item)
    return state in ("damaged", "changed") or (state == "no" and item.case.is_golden_required)


def _would_run(case: Case) -> str:
    until = f", expected {case.expected.outcome} until {case.expected.until}" if case.expected else ""
    return counted(case.repeats, "run") + until


_COLUMNS: Sequence[tuple[Column, Callable[[CaseOutlook], str]]] = (
    (Column("Case", whole=True), lambda item: item.case.name),
    (Column("Setting"), _setting),
    (Column("GPUs", right=True, drop=1), lambda item: f"{item.num_gpus} {item.gpu}"),
    (
        Column("Predicted peak", right=True),
        lambda item: format_bytes(item.prediction.peak_bytes) if item.prediction else ABSENT,
    ),
    (Column("Golden", drop=2), _golden),
    (
        Column("Last run", drop=3),
        lambda item: f"{item.last.outcome} {item.last.started_at[:10]}" if item.last else ABSENT,
    ),
    (Column("Would run"), lambda item: _would_run(item.case)),
)


def _total(plan: NightPlan) -> str:
    cases, refused = counted(len(plan.cases), "case"), len(plan.cases) - len(plan.planned)
    runs = counted(sum(case.repeats for case in plan.planned), "run")
    old = plan.against and f"{plan.against.num_pairs} pairs with {plan.against.source}"
    more = f"{plan.retries} more after a fault and {old or plan.confirm} to confirm a regression"
    return f"{cases}{f', {refused} refused' * bool(refused)}; {runs}; for each case at most {more}"


class CaseJob(Submission):
    """The job of a case, and the folders of its runs."""

    name: str = at("record", "name")
    runs: tuple[str, ...]

    @classmethod
    def of_job(cls, job: ClusterJob) -> Self:
        """Return the job with its batch file."""
        return cls.of(job, script=job.render(), runs=[run.run_dir for run in job.record.runs])


class NightPlanDocument(Document):
    """``mbr-perf nightly --dryrun --json``."""

    dryrun: Literal[True] = True
    suite: str
    title: str
    only: tuple[str, ...]
    confirm: int
    retries: int
    notes: tuple[str, ...]
    cases: tuple[CaseOutlook, ...]


class NightJobPlanDocument(NightPlanDocument):
    """``mbr-perf nightly --launcher slurm|kubeflow --dryrun --json``: with the jobs that would be submitted first."""

    jobs: tuple[CaseJob, ...]


def night_plan_document(plan: NightPlan, cases: Sequence[CaseOutlook], jobs: Iterable[ClusterJob]) -> NightPlanDocument:
    """Return the cases that would run, and their goldens."""
    if plan.cluster is None:
        return NightPlanDocument.of(plan, cases=cases)
    return NightJobPlanDocument.of(plan, cases=cases, jobs=list(map(CaseJob.of_job, jobs)))
