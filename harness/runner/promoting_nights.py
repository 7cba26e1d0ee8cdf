"""Which runs of a night become which goldens."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from harness.analysis.night.aa import judge_aa
from harness.analysis.night.case_outcome import bad_end, effective_runs, expectation
from harness.analysis.night.values import CaseRun
from harness.analysis.promotion import PromotionOptions
from harness.errors import BadRequestError
from harness.records.nights import CASES, NIGHT, NightCase, NightData, read_night
from harness.records.store import record_path
from harness.runner.night.due import aa_runs, case_runs
from harness.runner.promoting import Candidate


def night_candidates(
    night: NightData, names: Sequence[str], options: PromotionOptions, today: date
) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """The named cases, or all of them without names; and with the reason those whose bad end the suite expects.

    Repeats and confirmations count alike; a run whose fault of the machine a retry cured does not. BadRequestError for
    names that are none.
    """
    known = {case.planned.name: case for case in night.cases}
    doubts = _doubts(night)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadRequestError(
            f"--case {', '.join(unknown)}: not in {night.plan.night_id}", remedy=f"one of {', '.join(known)}"
        )
    expected = {name: told for name, case in known.items() if not names and (told := _expected(case, today))}
    chosen = [known[name] for name in names or known if name not in expected]
    return [_candidate(night, case, options, doubts) for case in chosen], list(expected.items())


def doubts_of_nights(references: Sequence[str], results: Path | None) -> tuple[str, ...]:
    """What stands against runs that are named by themselves and lie in a night: its A/A, as for its cases."""
    records = [record_path(reference, results).resolve() for reference in references]
    folders = dict.fromkeys(record.parents[3] for record in records if _is_in_night(record))
    return tuple(f"{folder}: {doubt}" for folder in folders for doubt in _doubts(read_night(folder)))


def _is_in_night(record: Path) -> bool:
    """Whether it is ``NIGHT/cases/<case>/<number>/record.json``."""
    above = record.parents
    return len(above) > 3 and above[2].name == CASES and (above[3] / NIGHT).is_file()


def _candidate(night: NightData, case: NightCase, options: PromotionOptions, doubts: Sequence[str]) -> Candidate:
    counted = effective_runs(case_runs(case))
    records = tuple(run.record for run in counted if run.record is not None)
    own = replace(options, thresholds=case.planned.thresholds, night_id=night.plan.night_id)
    return Candidate(case.planned.name, records, own, (*_problems(case, counted), *doubts))


def _doubts(night: NightData) -> tuple[str, ...]:
    """Why nothing of a night whose A/A does not hold is a value to hold others against."""
    for case in night.cases:
        if numbers := night.plan.aa_numbers(case.planned):
            return tuple(judge_aa(case.planned, aa_runs(case), numbers).doubts.values())
    return ()


def _problems(case: NightCase, counted: Sequence[CaseRun]) -> list[str]:
    if case.planned.refused:
        return [f"was refused: {case.planned.refused}"]
    lost = [str(run.number) for run in counted if run.record is None]
    problems = [f"run {', '.join(lost)} was never committed"] if lost else []
    if len(counted) < case.planned.repeats:
        problems.append(f"has {len(counted)} of {case.planned.repeats} repeats")
    return problems


def _expected(case: NightCase, today: date) -> str:
    """Why the case is not looked at: it failed as the suite says; empty where it did not."""
    ended = bad_end(effective_runs(case_runs(case)))
    if ended is None:
        return ""
    is_expected, remark = expectation(case.planned.expected, ended[0], today, ended_well=False)
    return f"{ended[0]}, {remark}" if is_expected else ""
