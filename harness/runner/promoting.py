"""Promotions of one golden or of a night's: all of them prepared first, then all of them written."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.analysis.promotion import PromotionOptions, promote
from harness.errors import BadRequestError, ManyProblemsError, raise_all
from harness.records.golden import GoldenRecord
from harness.records.goldens import GoldenChange, golden_path, read_golden, write_golden
from harness.records.run import RunRecord
from harness.spec.experiment import ExperimentSpec


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
