"""What a finished night adds to history: one record for every run that it committed."""

from pathlib import Path

from harness.analysis.derive import derive
from harness.analysis.history.record import Occasion, history_record
from harness.analysis.night.values import CaseRun, CaseVerdict, NightVerdict
from harness.errors import HarnessError
from harness.records.histories import write_history


def keep_history(verdict: NightVerdict, results: Path) -> tuple[str, ...]:
    """Write the records; what could not be written, in words: that changes no verdict."""
    problems = []
    for case in verdict.cases:
        for run in case.runs:
            if run.record is not None and run.record.status != "interrupted":
                try:
                    write_history(
                        results, history_record(run.record, derive(run.record), _occasion(verdict, case, run))
                    )
                except HarnessError as error:
                    problems.append(f"history: {error.message}")
    return tuple(problems)


def _occasion(verdict: NightVerdict, case: CaseVerdict, run: CaseRun) -> Occasion:
    return Occasion(
        suite=verdict.plan.suite,
        suite_case=case.planned.name,
        night_id=verdict.plan.night_id,
        purpose=run.purpose,
        outcome=case.outcome,
        doubts=verdict.aa.doubts if verdict.aa else {},
    )
