"""The values of a diagnosis: verdict, evidence, fixes, refusals."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.rules.rule import Finding
from harness.judging.oom.verdict import Confidence, OomVerdict
from harness.records.run import PredictionRecord

Status = Literal["ok", "oom", "failed", "interrupted", "unknown"]


@dataclass(frozen=True, slots=True)
class Saying:
    """A line of a log or of a failure, and where it stands."""

    text: str
    where: str


@dataclass(frozen=True, slots=True)
class RankFigures:
    """Peaks of one rank in bytes; None where nobody recorded them. ``has_oom``: it ran out of memory itself."""

    rank: int
    pp_rank: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    has_oom: bool = False

    @property
    def held_bytes(self) -> int | None:
        """All that the allocator held, as far as that is known."""
        return self.reserved_bytes if self.reserved_bytes is not None else self.allocated_bytes


@dataclass(frozen=True, slots=True)
class FailedRank:
    """The rank that really failed. ``rank`` is None where nothing tells; ``when`` such as ``in step of step 2``.

    ``place``: its GPU or local rank and its node, as far as they are known.
    """

    rank: int | None
    kind: str
    message: str
    when: str = ""
    where: str = ""
    place: str = ""


@dataclass(frozen=True)
class Case:
    """One job. ``expandable_segments``: None where nobody knows; ``is_complete``: what ran is known to its end.

    ``sayings``: lines that a symptom may be known by. ``sources``: where each setting comes from. ``paths``: what it was
    read from; ``asked_with``: the other words of the request that a line to diagnose it again needs. ``is_told``: its settings are what somebody says of it, not what it said itself. ``forced``: ids of the
    rules that it was made to go past.
    """

    name: str
    origin: Literal["run", "log", "snapshot"]
    status: Status
    verdict: OomVerdict
    failed: FailedRank | None = None
    spec: ExperimentSpec | None = None
    ranks: tuple[RankFigures, ...] = ()
    prediction: PredictionRecord | None = None
    no_prediction: str = ""
    tflops_per_gpu: float | None = None
    step_time_s: float | None = None
    has_nan: bool = False
    expandable_segments: bool | None = None
    sayings: tuple[Saying, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    retried: bool = False
    paths: tuple[str, ...] = ()
    asked_with: tuple[str, ...] = ()
    is_told: bool = False
    forced: tuple[str, ...] = ()

    @property
    def modules(self) -> frozenset[str]:
        """Modules of selective recompute; none without a spec."""
        return frozenset(getattr(self.spec.recompute, "modules", ())) if self.spec else frozenset()

    @property
    def is_on_cpu(self) -> bool:
        """Whether its ranks are known to have run on the host processor."""
        return self.spec is not None and self.spec.gpu_type.is_cpu

    @property
    def has_oom(self) -> bool:
        """Whether memory ran out on it."""
        return self.verdict.is_oom

    @property
    def peak_bytes(self) -> int | None:
        """The highest allocated peak of any rank."""
        return max((rank.allocated_bytes for rank in self.ranks if rank.allocated_bytes is not None), default=None)


@dataclass(frozen=True, slots=True)
class Recognised:
    """A known symptom that was seen: its row, and ``evidence``, what was seen where. ``is_said``: in the job's own words."""

    id: str
    symptom: str
    cause: str
    confirm: str
    fix: str
    evidence: str
    is_said: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that is predicted to fit. ``overhead``: of ``cost``, against no recompute; None: not predicted."""

    text: str
    changes: tuple[tuple[str, str], ...]
    peak_bytes: int
    overhead: float | None
    cost: str = "step time"


@dataclass(frozen=True, slots=True)
class Fix:
    """What to do next. ``command``: to paste; empty where there is none."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """The answer. ``confirmed``: what an A/B of the allocator showed; None where there was none.

    ``is_conclusive``: something can be said of the failure. ``evidence`` and ``fixes``: the most important first.
    """

    case: Case
    oom_class: str
    confidence: Confidence
    reason: str
    evidence: tuple[str, ...]
    symptoms: tuple[Recognised, ...]
    fixes: tuple[Fix, ...]
    reference: Case | None = None
    confirmed: bool | None = None
    is_conclusive: bool = True


Judge = Callable[[ExperimentSpec], tuple[Finding, ...]]


@dataclass(frozen=True, slots=True)
class Rulings:
    """``job``: the rules that refuse the job's own settings. ``start``: those that would refuse others, started here."""

    job: tuple[Finding, ...] = ()
    start: Judge = lambda _: ()

    def refusal(self, *specs: ExperimentSpec) -> str:
        """Why not all of ``specs`` could be started: rule, message and fix of each; empty where they could."""
        return told({finding.id: finding for spec in specs for finding in self.start(spec)}.values())


NO_RULINGS = Rulings()


def told(findings: Iterable[Finding]) -> str:
    """Rules with what they say and their fix, in one line."""
    return "; ".join(f"{finding.id}: {finding.message} (fix: {finding.fix})" for finding in findings)


def is_doubted(case: Case, rulings: Rulings) -> bool:
    """Whether the settings were told by somebody, are refused by the rules, and the job trained all the same."""
    has_trained = case.has_oom or case.step_time_s is not None or case.status == "ok"
    return case.is_told and bool(rulings.job) and has_trained
