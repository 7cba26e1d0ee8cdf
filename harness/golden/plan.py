"""Promotes runs and nights to golden values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path

from harness.errors import BadRequestError, ManyProblemsError, raise_all
from harness.experiment.experiment import ExperimentSpec
from harness.judge.promotion import PromotionOptions, promote
from harness.launch.processes import life_of
from harness.nightly.aa import judge_aa
from harness.nightly.outcome import aa_runs, bad_end, case_runs, effective_runs, expectation
from harness.nightly.values import CaseRun
from harness.records.golden import GoldenRecord
from harness.records.goldens import GoldenChange, golden_path, read_golden, write_golden
from harness.records.night import CASES, NIGHT, NightCase, NightData, read_night
from harness.records.run import RunRecord
from harness.records.store import record_path
from harness.units import grouped


@dataclass(frozen=True)
class Candidate:
    """Runs to promote to one golden. ``name``: that of the case; empty for runs named by the user.

    ``problems``: reasons against the promotion that the runs themselves do not show.
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
    """A golden that is ready to be written, and the golden that it replaces."""

    name: str
    path: Path
    spec: ExperimentSpec
    golden: GoldenRecord
    before: GoldenRecord | None
    changes: tuple[GoldenChange, ...]


@dataclass(frozen=True)
class Refused:
    """A case that cannot be promoted, with every reason."""

    name: str
    problems: tuple[BadRequestError, ...]


@dataclass(frozen=True)
class Promotions:
    """The goldens to write, the refused cases, and the skipped cases with the reason."""

    prepared: tuple[Prepared, ...]
    refused: tuple[Refused, ...]
    left_out: tuple[tuple[str, str], ...] = ()

    def require(self, *, keep_going: bool) -> None:
        """Raise BadRequestError with all refusals; with ``keep_going`` only if there is nothing to write."""
        if keep_going and self.prepared:
            return
        cases = grouped(((each.message, each.remedy), case.name) for case in self.refused for each in case.problems)
        problems = [
            BadRequestError(f"{f'{self._named(names)}: ' * any(names)}{message}", remedy=remedy)
            for (message, remedy), names in cases.items()
        ]
        if not self.refused and not self.prepared:
            problems.append(BadRequestError("no case to promote", remedy="mbr-perf results show NIGHT lists them"))
        if problems and self.prepared:
            remedy = f"--keep_going writes the other {len(self.prepared)} without these"
            problems.append(BadRequestError("nothing was written", remedy=remedy))
        raise_all(problems)

    def _named(self, names: Sequence[str]) -> str:
        """Name the cases that share a reason, each once; ``every case`` if these are all and several."""
        each = tuple(dict.fromkeys(names))
        is_all = not self.prepared and 1 < len(each) == len({case.name for case in self.refused})
        return "every case" if is_all else ", ".join(each)


def prepare(candidates: Sequence[Candidate], folder: Path, signature: Signature) -> Promotions:
    """Make a golden or a refusal of every candidate; writes nothing. Refuses candidates that share a golden."""
    prepared, refused = list[Prepared](), list[Refused]()
    for candidate in candidates:
        try:
            prepared.append(_prepared(candidate, folder, signature))
        except BadRequestError as error:
            refused.append(Refused(candidate.name, tuple(error.problems)))
    paths = [golden.path for golden in prepared]
    doubled = [golden for golden in prepared if paths.count(golden.path) > 1]
    refused += [Refused(golden.name, (_doubled(golden, doubled),)) for golden in doubled]
    return Promotions(tuple(golden for golden in prepared if golden not in doubled), tuple(refused))


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
        raise ManyProblemsError([*problems, *error.problems]) from error
    raise_all(problems)
    return Prepared(candidate.name, path, spec, promoted.golden, before, promoted.changes)


def _doubled(golden: Prepared, doubled: Sequence[Prepared]) -> BadRequestError:
    others = ", ".join(other.name for other in doubled if other.path == golden.path and other is not golden)
    return BadRequestError(f"has the same golden as {others}: {golden.path}", remedy="promote one of them with --case")


def write(promotions: Promotions, folder: Path) -> None:
    """Write every prepared golden. BadRequestError: a file cannot be written; the files before it are written."""
    for prepared in promotions.prepared:
        write_golden(folder, prepared.spec, prepared.golden)


def night_candidates(
    night: NightData, names: Sequence[str], options: PromotionOptions, today: date
) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """Return the named cases, or all but those whose failure the suite expects; and these, with the reason.

    Repeats and confirmations count; a run that a retry replaced does not. BadRequestError: a name is unknown, or the
    night is still running.
    """
    _require_ended(night)
    known = {case.planned.name: case for case in night.cases}
    doubts = _doubts(night)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadRequestError(
            f"--case {', '.join(unknown)}: not in {night.plan.night_id}", remedy=f"name one of {', '.join(known)}"
        )
    expected = {name: reason for name, case in known.items() if not names and (reason := _expected(case, today))}
    chosen = [known[name] for name in names or known if name not in expected]
    return [_candidate(night, case, options, doubts) for case in chosen], list(expected.items())


def doubts_of_nights(references: Sequence[str], results: Path | None) -> tuple[str, ...]:
    """Return the doubts of the nights that contain the named runs: an A/A that does not agree.

    BadRequestError: a night is still running.
    """
    records = [record_path(reference, results).resolve() for reference in references]
    nights = [read_night(path) for path in dict.fromkeys(r.parents[3] for r in records if _is_in_night(r))]
    for night in nights:
        _require_ended(night)
    return tuple(f"{night.night_dir}: {doubt}" for night in nights for doubt in _doubts(night))


def _require_ended(night: NightData) -> None:
    """Raise BadRequestError if the night is still running: it would be compared with its own values, and pass."""
    life = life_of(night.night_dir)
    if not night.is_finished and life.state == "alive":
        raise BadRequestError(f"{night.plan.night_id}: {life.reason}", remedy="promote from it after it has ended")


def _is_in_night(record: Path) -> bool:
    """Return whether the path is ``NIGHT/cases/<case>/<number>/record.json``."""
    above = record.parents
    return len(above) > 3 and above[2].name == CASES and (above[3] / NIGHT).is_file()


def _candidate(night: NightData, case: NightCase, options: PromotionOptions, doubts: Sequence[str]) -> Candidate:
    counted = effective_runs(case_runs(case))
    records = tuple(run.record for run in counted if run.record is not None)
    own = replace(options, thresholds=case.planned.thresholds, night_id=night.plan.night_id)
    return Candidate(case.planned.name, records, own, (*_problems(case, counted), *doubts))


def _doubts(night: NightData) -> tuple[str, ...]:
    """Return why no run of the night can become a golden: its A/A does not agree."""
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
    """Return why the case is skipped: it failed as the suite expects; else empty."""
    ended = bad_end(effective_runs(case_runs(case)))
    if ended is None:
        return ""
    is_expected, remark = expectation(case.planned.expected, ended[0], today, ended_well=False)
    return f"{ended[0]}, {remark}" if is_expected else ""
