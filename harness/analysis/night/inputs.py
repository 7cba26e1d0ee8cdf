"""What the judge of a night is given: a case with its runs, and how strictly to judge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from harness.analysis.metrics import GateKind
from harness.analysis.night.values import CaseRun
from harness.records.goldens import GoldenSearch
from harness.records.history import HistoryRecord
from harness.records.night import Case, NightPlan

FALSE_ALARMS_PER_NIGHT = 0.01
"""The chance that a night in which nothing changed calls any of its cases slower: shared out evenly among the cases."""


@dataclass(frozen=True)
class CaseMaterial:
    """One case: its runs so far in the order of their numbers, its golden or why there is none, and its history.

    ``history``: of this case, at least the runs since the golden; `analysis.noise_history` picks those that count.
    ``aa_runs``: runs of the night's A/A, which are none of the case.
    """

    planned: Case
    runs: Sequence[CaseRun]
    golden: GoldenSearch
    history: Sequence[HistoryRecord] = ()
    aa_runs: Sequence[CaseRun] = ()


@dataclass(frozen=True)
class NightRules:
    """How strictly. ``today``: the day (UTC) on which expected failures are still expected or not.

    ``num_cases``: cases that share :data:`FALSE_ALARMS_PER_NIGHT`. ``before``: UTC ISO-8601; history counts up to there,
    so that a night that is judged again later says the same. ``doubts``: by kind of metric, why nothing may be
    concluded of it tonight.
    """

    today: date
    num_cases: int = 1
    before: str | None = None
    accept_differences: tuple[str, ...] = ()
    fail_on_improvement: bool = False
    doubts: Mapping[GateKind, str] = field(default_factory=dict)

    @property
    def alpha(self) -> float:
        """The largest p-value that is evidence in one case."""
        return FALSE_ALARMS_PER_NIGHT / self.num_cases


def rules_of(plan: NightPlan, today: date) -> NightRules:
    """The rules of a planned night. Shards of one suite share the false alarms of the whole suite."""
    runnable = sum(not case.refused for case in plan.cases)
    shards = int(plan.shard.partition("/")[2] or 1)
    return NightRules(
        today=today,
        num_cases=max(1, runnable) * shards,
        before=plan.started_at,
        accept_differences=plan.accept_differences,
        fail_on_improvement=plan.fail_on_improvement,
    )
