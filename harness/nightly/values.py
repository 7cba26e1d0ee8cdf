"""The verdicts on a night and its cases, which are its JSON, and the judge's input."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, field_serializer

from harness.history.record import HistoryRecord
from harness.judge.gate import Code, Finding, OptionalText, Outcome
from harness.records.batches import Purpose
from harness.records.golden import Difference
from harness.records.goldens import GoldenSearch
from harness.records.metrics import Metrics
from harness.records.night import Case, ExpectedFailureRecord, NightPlan, NightRun
from harness.records.run import RunRecord, Status
from harness.show.json import Document, Shown, Text, at
from harness.units import format_percent

SPEED = "tflops_per_gpu"


@dataclass(frozen=True)
class Evidence:
    """What a time is compared with: ``level``, the median of ``num_nights``, or the golden if that is 0.

    ``spread``: what nights, or runs, differ by, relative. ``limit``: a relative change beyond it is suspicious;
    ``is_suspicious``: tonight's is, or that of three nights together.
    """

    level: float
    spread: float
    limit: float
    num_nights: int
    num_runs: int
    num_golden_runs: int
    is_suspicious: bool


AllowedBy = Literal["default", "the suite", "3 spreads"]


@dataclass(frozen=True)
class CaseFinding(Finding):
    """One metric of a case, over all its runs, with the evidence.

    ``threshold``: the one that decides; of a time, the limit of its evidence; None where pairs decide.
    ``allowed_by``: what sets it: the GPU type's default, the suite, or the noise.
    """

    allowed_by: AllowedBy = "default"
    evidence: Evidence | None = None

    @property
    def judged_change(self) -> float | None:
        """Return the change that the threshold is for: of a time from its level, else from the golden."""
        if self.evidence is None or self.current is None:
            return self.change
        return self.current / self.evidence.level - 1

    @property
    def is_beyond(self) -> bool:
        return self.threshold is not None and abs(self.judged_change or 0.0) > self.threshold + 1e-9


@dataclass(frozen=True)
class Accident:
    """A single night of a case that the next night did not repeat: ``change`` from its level."""

    case: str
    change: float

    @property
    def text(self) -> str:
        return f"{self.case} lately had a single night of {format_percent(self.change)}"


@dataclass(frozen=True)
class CaseRun(NightRun):
    """A run as the judge takes it. ``infrastructure``: the named fault that ended it, if one did."""

    infrastructure: str = ""


@dataclass(frozen=True)
class PairFinding(CaseFinding):
    """One metric of the new build, ``current``, against the old build, ``golden``.

    ``p_value``: one-sided, of the mean difference of the pairs; ``margin``: half of its 99 % interval, relative. Both
    None for a metric that does not differ from run to run.
    """

    current: Annotated[float | None, Field(serialization_alias="new")]
    golden: Annotated[float | None, Field(serialization_alias="old")]
    evidence: Annotated[Evidence | None, Field(exclude=True)] = None
    p_value: float | None = None
    margin: float | None = None


class PairRunRow(Shown):
    """A run of a pair in JSON, labelled with its build."""

    number: int
    label: str = at("reason")
    run_dir: Path
    status: Status | None = at("record", "status")
    failure: str | None = at("record", "failure")


@dataclass(frozen=True)
class PairsVerdict:
    """Old and new build in turn tonight. ``fault``: why the runs decide nothing; then there are no findings."""

    against: str
    num_pairs: int
    fault: OptionalText = ""
    findings: Annotated[tuple[PairFinding, ...], Field(serialization_alias="comparison")] = ()
    runs: Annotated[
        tuple[CaseRun, ...], PlainSerializer(lambda runs: [*map(PairRunRow.of, runs)], list[PairRunRow])
    ] = ()

    def of(self, metric: str) -> PairFinding | None:
        """Return the finding about that metric."""
        return next((finding for finding in self.findings if finding.metric == metric), None)

    def text_of(self, found: PairFinding) -> str:
        """Return ``-7.9 % against the old build in 5 pairs (p 2e-05, allowed 2 %)``."""
        change = "no figures" if found.change is None else format_percent(found.change)
        p_value = "" if found.p_value is None else f"p {found.p_value:.1g}, "
        allowed = f"{p_value}allowed {(found.threshold or 0.0) * 100:g} %"
        return f"{change} against the old build in {self.num_pairs} pairs ({allowed})"


class RunRow(Shown):
    """A run of a case in JSON. ``is_counted``: whether the figures include it."""

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


class CaseVerdict(Shown):
    """How a case ended, which is its JSON. ``is_expected``: the suite expected the outcome, so the case is not red.

    ``remark``: about an expected failure that did not happen, or whose date has passed. ``drift``: what differs from
    the golden's environment, even if it blocked no comparison. ``metrics``: the median
    of the runs that count, as every report shows it. ``is_infrastructure``: a named infrastructure fault that retries
    did not cure. ``is_golden_damaged``: there is a golden that cannot be read, so that ``golden_path`` is None.
    ``pairs``: the comparison with the old build that decided a suspicion; None where none ran.
    """

    planned: Case = Field(exclude=True)
    counted: tuple[RunRecord, ...] = Field(exclude=True)
    is_golden_damaged: bool = Field(default=False, exclude=True)
    name: str = at("planned", "name")
    outcome: Outcome
    exit_code: Code
    reason: OptionalText
    is_expected: bool = False
    is_infrastructure: bool = False
    expected: ExpectedFailureRecord | None = at("planned", "expected")
    remark: OptionalText = ""
    owner: Text = at("planned", "owner")
    refused: Text = at("planned", "refused")
    recipe: str | None = at("planned", "spec", "recipe")
    gpu: str | None = at("planned", "spec", "gpu")
    recompute: str | None = at("planned", "spec", "recompute", "text")
    fingerprint: str | None = at("planned", "spec", "fingerprint")
    findings: tuple[CaseFinding, ...] = Field(serialization_alias="comparison")
    pairs: PairsVerdict | None = None
    golden_path: str | None = None
    drift: tuple[Difference, ...] = ()
    caveats: tuple[str, ...] = ()
    metrics: Metrics | None
    runs: tuple[CaseRun, ...]

    @field_serializer("runs")
    def _rows(self, runs: Iterable[CaseRun]) -> tuple[RunRow, ...]:
        counted = {record.run_id for record in self.counted}
        return tuple(RunRow.of(run, is_counted=bool(run.record and run.record.run_id in counted)) for run in runs)

    @property
    def all_runs(self) -> tuple[CaseRun, ...]:
        return *self.runs, *(self.pairs.runs if self.pairs else ())


@dataclass(frozen=True)
class SharedChange:
    """Most cases are slower: their median ``change``, relative. ``is_doubt``: nothing repeats or explains it yet."""

    change: float
    num_cases: int
    num_judged: int
    is_doubt: bool


class NightVerdict(Document):
    """``mbr-perf nightly --json``. ``shared``: null unless most cases changed alike. ``report``: written files."""

    plan: NightPlan = Field(exclude=True)
    night_id: str = at("plan", "night_id")
    night_dir: Path
    suite: str = at("plan", "suite")
    title: str = at("plan", "title")
    only: tuple[str, ...] = at("plan", "only")
    outcome: Outcome
    exit_code: Code
    started_at: str = at("plan", "started_at")
    finished_at: str
    num_due: int = Field(default=0, serialization_alias="num_runs_missing")
    mbr_perf: str = at("plan", "mbr_perf")
    command: tuple[str, ...] = at("plan", "command")
    notes: tuple[str, ...] = at("plan", "notes")
    shared: SharedChange | None = None
    cases: tuple[CaseVerdict, ...]
    report: tuple[Path, ...] = ()


@dataclass(frozen=True)
class CaseMaterial:
    """What the judge needs of one case. ``history``: at least the runs since the golden."""

    planned: Case
    runs: Sequence[CaseRun]
    golden: GoldenSearch
    history: Sequence[HistoryRecord] = ()
    pair_runs: Sequence[CaseRun] = ()
