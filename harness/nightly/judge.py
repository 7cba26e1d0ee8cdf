"""Judges a night against goldens and history."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.history.record import HistoryRecord, case_of
from harness.history.store import read_history
from harness.judge.gate import WORST_FIRST, Outcome, Verdict, exit_code_of
from harness.nightly.case import judge_case, suspected, worst_accident
from harness.nightly.outcome import case_runs
from harness.nightly.outlook import CaseOutlook
from harness.nightly.rule import UNCONFIRMED
from harness.nightly.values import SPEED, CaseMaterial, CaseVerdict, NightVerdict, SharedChange
from harness.nightly.words import finding_of
from harness.records.goldens import GoldenSearch, find_golden
from harness.records.night import Case, NightCase, NightData, NightPlan
from harness.units import utc_now

# So many cases that change alike on one night have one cause.
_MANY_CASES, _MOST_OF_CASES = 3, 2 / 3


def judge_night(
    night_dir: Path,
    plan: NightPlan,
    cases: Sequence[CaseMaterial],
    *,
    finished_at: str = "",
    num_due: int = 0,
) -> NightVerdict:
    """Return the verdict on a night, with the worst case's exit code. ``num_due``: runs still to be done."""
    accident = worst_accident(cases, plan.started_at)
    verdicts = tuple(judge_case(case, plan, accident) for case in cases)
    outcomes: set[Outcome] = {"pass", *(verdict.outcome for verdict in verdicts if not verdict.is_expected)}
    if num_due:
        outcomes.add("inconclusive")
    outcome = min(outcomes, key=WORST_FIRST.index)
    return NightVerdict.of(
        night_dir=night_dir,
        plan=plan,
        cases=verdicts,
        outcome=outcome,
        exit_code=exit_code_of(outcome, fail_on_improvement=plan.fail_on_improvement),
        finished_at=finished_at,
        num_due=num_due,
        shared=_shared(verdicts),
    )


def _shared(cases: Sequence[CaseVerdict]) -> SharedChange | None:
    """Return what most cases lost: one finding. In doubt while no case is red."""
    judged = [found for case in cases if (found := finding_of(case, SPEED)) and found.evidence]
    bad = (Verdict.REGRESSION, Verdict.INCONCLUSIVE)
    slower = [found for found in judged if found.verdict in bad and found.evidence and found.evidence.is_suspicious]
    changes = [found.change for found in slower if found.change is not None and found.change < 0]
    if len(changes) < _MANY_CASES or len(changes) < _MOST_OF_CASES * len(judged):
        return None
    is_doubt = not any(found.verdict is Verdict.REGRESSION for found in slower)
    return SharedChange(median(changes), len(changes), len(judged), is_doubt)


@dataclass
class NightJudge:
    """Judges the cases of one night against the goldens and the history of ``results``, which are read once."""

    plan: NightPlan
    results: Path
    _history: dict[str, Sequence[HistoryRecord]] = field(default_factory=dict)
    _goldens: dict[str, GoldenSearch] = field(default_factory=dict)

    def suspicion(self, case: NightCase) -> str:
        """Say why the case looks like a regression. Its pairs do not count: they may still be running."""
        verdict = judge_case(replace(self.material(case), pair_runs=()), self.plan)
        if not suspected(verdict, self.plan.against):
            return ""
        return verdict.reason.replace(f": {UNCONFIRMED}", "") or "worse than its golden, perhaps by chance"

    def verdict(self, data: NightData, num_due: int) -> NightVerdict:
        """Judge what is on disk, finished or not."""
        return judge_night(
            data.night_dir,
            data.plan,
            [self.material(case) for case in data.cases],
            finished_at=next((event.time for event in reversed(data.events) if event.kind == "finished"), utc_now()),
            num_due=num_due,
        )

    def material(self, case: NightCase) -> CaseMaterial:
        """Collect what the judge needs. Leave out runs without a record: they will run again."""
        planned, runs = case.planned, case_runs(run for run in case.runs if run.record is not None)
        if planned.spec is None:
            return CaseMaterial(planned, runs, GoldenSearch(None, None, planned.refused))
        if planned.name not in self._goldens:
            self._goldens[planned.name] = golden_of(planned.spec, planned.sources, self.plan.golden_dir)
            history = read_history(self.results, case=case_of(planned.spec), fingerprint=planned.spec.fingerprint)
            self._history[planned.name] = [record for record in history if record.night_id != self.plan.night_id]
        pairs = case_runs(run for run in case.pair_runs if run.record)
        return CaseMaterial(planned, runs, self._goldens[planned.name], self._history[planned.name], pairs)


def golden_of(spec: ExperimentSpec, sources: dict[str, str], golden_dir: str | None) -> GoldenSearch:
    """Return the golden of a case's settings. If it cannot be read, it is marked as damaged, with the reason."""
    try:
        return find_golden(spec, Path(golden_dir) if golden_dir else None, sources)
    except BadRequestError as error:
        return GoldenSearch(None, None, error.message, is_damaged=True)


def outlook(plan: NightPlan, results: Path) -> tuple[CaseOutlook, ...]:
    """Return one outlook per case, in the plan's order."""
    return tuple(_outlook(plan, case, results) for case in plan.cases)


def _outlook(plan: NightPlan, case: Case, results: Path) -> CaseOutlook:
    golden, runs = GoldenSearch(None, None), tuple[HistoryRecord, ...]()
    if case.spec is not None:
        golden = golden_of(case.spec, case.sources, plan.golden_dir)
        runs = read_history(results, case=case_of(case.spec), fingerprint=case.spec.fingerprint)
    return CaseOutlook.of(
        case=case,
        golden_path=golden.path if golden.golden else None,
        no_golden=golden.note,
        is_golden_damaged=golden.is_damaged,
        last=next(reversed(runs), None),
    )
