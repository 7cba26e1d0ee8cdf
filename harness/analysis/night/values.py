"""What a judged night says: values that the judge makes and every report reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.analysis.gate import Finding
from harness.analysis.likeness import Difference
from harness.analysis.metrics import GateKind, Metrics
from harness.analysis.speed import Speed
from harness.errors import ExitCode
from harness.records.batch import Purpose
from harness.records.history import CaseOutcome
from harness.records.night import Case, NightEvent, NightPlan
from harness.records.run import REPLAYED, RunRecord


@dataclass(frozen=True)
class Evidence:
    """How sure a change of one metric is. Relative figures; None where they cannot be known.

    ``p_value``: one-sided, of a worsening (or improvement) at least this large where nothing changed. ``noise``: the
    relative standard deviation of one run that was reckoned with, ``basis`` in words where it comes from (these repeats,
    the golden's, history). ``num_runs`` ours, ``num_golden_runs`` the golden's. ``smallest_change``: the relative change
    beyond which evidence makes a verdict.
    """

    p_value: float | None
    noise: float | None
    basis: str
    num_runs: int
    num_golden_runs: int
    smallest_change: float | None = None


@dataclass(frozen=True)
class CaseFinding(Finding):
    """One metric of a case, over all its runs, with the evidence."""

    evidence: Evidence | None = None


@dataclass(frozen=True)
class CaseRun:
    """One run of a case: ``record`` None where it was never committed. ``infrastructure``: the named fault, if one.

    ``cancelled``: why it failed where somebody ended its job by hand.
    """

    number: int
    purpose: Purpose
    reason: str
    run_dir: Path
    record: RunRecord | None
    infrastructure: str = ""
    cancelled: str = ""


@dataclass(frozen=True)
class CaseVerdict:
    """What became of a case. ``outcome`` is the measured one; ``is_expected``: the suite knew, so that it is not red.

    ``remark``: about an expected failure that did not come, or is past its date. ``drift``: what differs from the
    golden's environment, also where it did not stand in the way. ``counted``: runs behind the figures.
    ``speed``: of the runs behind the figures, as every report shows it; ``metrics`` holds the median over them.
    ``is_infrastructure``: the bad outcome is a named infrastructure fault that retries did not cure.
    ``is_golden_damaged``: there is a golden that cannot be read, so that ``golden_path`` is None.
    """

    planned: Case
    outcome: CaseOutcome
    exit_code: ExitCode
    reason: str
    findings: tuple[CaseFinding, ...]
    runs: tuple[CaseRun, ...]
    counted: tuple[RunRecord, ...]
    metrics: Metrics | None
    golden_path: str | None = None
    is_golden_damaged: bool = False
    drift: tuple[Difference, ...] = ()
    caveats: tuple[str, ...] = ()
    speed: Speed | None = None
    is_expected: bool = False
    is_infrastructure: bool = False
    remark: str = ""


@dataclass(frozen=True)
class AaFinding:
    """One metric of the A/A. ``first`` of the runs A, ``second`` of the runs A'; ``change`` is (second - first) / first.

    ``p_value`` is two-sided, ``noise`` the relative standard deviation of one run; both None for a metric that does not
    differ from run to run. ``limit``: the relative change that is too large, for a time only where noise hardly explains it:
    of at least ``visible``. ``threshold``: that of the case's times; ``is_blind``: a change as large would not be visible.
    """

    metric: str
    first: float | None
    second: float | None
    change: float | None
    p_value: float | None
    noise: float | None
    limit: float
    holds: bool
    visible: float | None = None
    threshold: float | None = None
    is_blind: bool = False


@dataclass(frozen=True)
class AaVerdict:
    """Whether two sets of runs of one setting are found equal tonight, as far as they could be found unequal.

    ``doubts``: by kind of metric, why nothing may be concluded of it tonight; empty where the A/A holds.
    """

    case: str
    num_pairs: int
    runs: tuple[CaseRun, ...]
    findings: tuple[AaFinding, ...] = ()
    doubts: Mapping[GateKind, str] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether nothing is in doubt."""
        return not self.doubts

    @property
    def is_replayed(self) -> bool:
        """Whether recorded runs stand for its own."""
        return any(note.startswith(REPLAYED) for run in self.runs if run.record for note in run.record.notes)


@dataclass(frozen=True)
class NightVerdict:
    """All cases in the plan's order, and the one answer. ``num_due``: runs that are still to be done; ``aa``: None: no A/A."""

    night_dir: Path
    plan: NightPlan
    cases: tuple[CaseVerdict, ...]
    events: tuple[NightEvent, ...]
    outcome: CaseOutcome
    exit_code: ExitCode
    finished_at: str
    num_due: int = 0
    aa: AaVerdict | None = None
