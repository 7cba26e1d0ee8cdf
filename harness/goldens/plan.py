"""Promotes runs and nights to golden values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path

from harness.errors import BadRequestError, ManyProblemsError, raise_all
from harness.experiment.experiment import ExperimentSpec
from harness.judging.promotion import PromotionOptions, promote
from harness.night.aa import judge_aa
from harness.night.outcome import aa_runs, bad_end, case_runs, effective_runs, expectation
from harness.night.values import CaseRun
from harness.records.golden import GoldenRecord
from harness.records.goldens import GoldenChange, golden_path, read_golden, write_golden
from harness.records.night import CASES, NIGHT, NightCase, NightData, read_night
from harness.records.run import RunRecord
from harness.records.store import record_path


@dataclass(frozen=True)
class Candidate:
    """Runs that are to become one golden. ``name``: of the case, empty for runs that somebody named.

    ``problems``: reasons against it that the runs themselves do not show.
    """

    name: str
    records: tuple[RunRecord, ...]
    options: PromotionOptions
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Signature:
    """Who promotes, why, and when."""

    reason: str
    author: str
    now: datetime


@dataclass(frozen=True)
class Prepared:
    """A golden that only has to be written, and what it replaces."""

    name: str
    path: Path
    spec: ExperimentSpec
    golden: GoldenRecord
    before: GoldenRecord | None
    changes: tuple[GoldenChange, ...]


@dataclass(frozen=True)
class Refused:
    """A case that becomes no golden, with every reason."""

    name: str
    problems: tuple[BadRequestError, ...]


@dataclass(frozen=True)
class Promotions:
    """What is to be written, what is refused, and which cases were left out by name with the reason."""

    prepared: tuple[Prepared, ...]
    refused: tuple[Refused, ...]
    left_out: tuple[tuple[str, str], ...] = ()

    def require(self, *, keep_going: bool) -> None:
        """BadRequestError with all refusals, unless the others are to be promoted without them, and there are any."""
        if keep_going and self.prepared:
            return
        problems = [
            BadRequestError(f"{f'{one.name}: ' * bool(one.name)}{problem.message}", remedy=problem.remedy)
            for one in self.refused
            for problem in one.problems
        ]
        if not self.refused and not self.prepared:
            problems.append(BadRequestError("no case to promote", remedy="mbr-perf results show NIGHT lists them"))
        if problems and self.prepared:
            remedy = f"--keep_going writes the other {len(self.prepared)} without these"
            problems.append(BadRequestError("nothing was written", remedy=remedy))
        raise_all(problems)


def prepare(candidates: Sequence[Candidate], folder: Path, signature: Signature) -> Promotions:
    """Every candidate as a golden or as a refusal; nothing is written. Two of one place are refused, both."""
    prepared, refused = list[Prepared](), list[Refused]()
    for candidate in candidates:
        try:
            prepared.append(_prepared(candidate, folder, signature))
        except BadRequestError as error:
            refused.append(Refused(candidate.name, tuple(_each(error))))
    places = [one.path for one in prepared]
    doubled = [one for one in prepared if places.count(one.path) > 1]
    refused += [Refused(one.name, (_doubled(one, doubled),)) for one in doubled]
    return Promotions(tuple(one for one in prepared if one not in doubled), tuple(refused))


def _prepared(candidate: Candidate, folder: Path, signature: Signature) -> Prepared:
    problems = [BadRequestError(problem) for problem in candidate.problems]
    if not candidate.records:
        raise ManyProblemsError(problems or [BadRequestError("no run to promote")])
    spec = candidate.records[0].spec
    path = golden_path(folder, spec)
    before = read_golden(path) if path.is_file() else None
    try:
        promoted = promote(
            candidate.records,
            reason=signature.reason,
            author=signature.author,
            now=signature.now,
            before=before,
            options=candidate.options,
        )
    except BadRequestError as error:
        raise ManyProblemsError([*problems, *_each(error)]) from error
    raise_all(problems)
    return Prepared(candidate.name, path, spec, promoted.golden, before, promoted.changes)


def _each(error: BadRequestError) -> list[BadRequestError]:
    return error.problems if isinstance(error, ManyProblemsError) else [error]


def _doubled(one: Prepared, doubled: Sequence[Prepared]) -> BadRequestError:
    others = ", ".join(other.name for other in doubled if other.path == one.path and other is not one)
    return BadRequestError(f"has the same golden as {others}: {one.path}", remedy="promote one of them with --case")


def write(promotions: Promotions, folder: Path) -> None:
    """Every prepared golden at its place. BadRequestError says at which file it ended; those before are written."""
    for one in promotions.prepared:
        write_golden(folder, one.spec, one.golden)


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
