"""Promotes runs and nights to golden values."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from pydantic import Field, InstanceOf, computed_field

from harness.errors import BadRequestError, ManyProblemsError, raise_all
from harness.experiment.experiment import ExperimentSpec
from harness.explain.contrast import contrast
from harness.explain.facts import golden_side
from harness.golden.show import GoldenDocument, values_table
from harness.judge.promotion import PromotionOptions, promote
from harness.launch.processes import life_of
from harness.nightly.outcome import bad_end, case_runs, effective_runs, expectation
from harness.nightly.values import CaseRun
from harness.records.golden import GoldenRecord
from harness.records.goldens import batch_path, earlier_golden, promotion_path
from harness.records.night import NightCase, NightData, night_of, read_night
from harness.records.run import RunRecord
from harness.records.store import record_path
from harness.show.json import Document, Shown
from harness.show.page import GAP, Block, Page, Section, answer_line, listing
from harness.units import counted, grouped


@dataclass(frozen=True)
class Candidate:
    """Runs to promote to one golden. ``name``: the case's, or empty. ``problems``: what the runs do not show."""

    name: str
    records: tuple[RunRecord, ...]
    options: PromotionOptions
    problems: tuple[str, ...] = ()


class Prepared(GoldenDocument):
    """A golden of ``case`` that is ready to be written, and the golden that it replaces; ``case`` is empty for runs."""

    case: str
    spec: ExperimentSpec = Field(exclude=True)
    before: GoldenRecord | None = Field(exclude=True)


class Refused(Shown):
    """A case that cannot be promoted, with every reason."""

    case: str
    errors: tuple[InstanceOf[BadRequestError], ...] = Field(exclude=True)

    @computed_field
    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(error.message for error in self.errors)


class LeftOut(Shown):
    """A case that was skipped, and why."""

    case: str
    reason: str


class PromotionsDocument(Document):
    """The goldens to write, and the other cases: ``mbr-perf golden promote NIGHT --json``."""

    is_written: bool
    promoted: tuple[Prepared, ...]
    refused: tuple[Refused, ...]
    left_out: tuple[LeftOut, ...] = ()
    exit_code: int = 0

    def require(self, *, keep_going: bool) -> None:
        """Raise BadRequestError with all refusals; with ``keep_going`` only if there is nothing to write."""
        if keep_going and self.promoted:
            return
        cases = grouped(((each.message, each.remedy), case.case) for case in self.refused for each in case.errors)
        problems = [
            BadRequestError(f"{', '.join(names)}{': ' * any(names)}{message}", remedy=remedy)
            for (message, remedy), names in cases.items()
        ]
        if not self.refused and not self.promoted:
            problems.append(BadRequestError("no case to promote", remedy="mbr-perf results show NIGHT lists them"))
        if problems and self.promoted:
            remedy = "--keep_going writes the rest without these"
            problems.append(BadRequestError("nothing was written", remedy=remedy))
        raise_all(problems)


def prepare(
    candidates: Sequence[Candidate], folder: Path, left_out: Sequence[LeftOut] = (), *, is_written: bool = True
) -> PromotionsDocument:
    """Make a golden or a refusal of every candidate; writes nothing. Refuses candidates that share a golden."""
    prepared, refused = list[Prepared](), dict[str, Sequence[BadRequestError]]()
    together = [candidate.records[0].spec for candidate in candidates if candidate.records]
    for candidate in candidates:
        try:
            prepared.append(_prepared(candidate, folder, together))
        except BadRequestError as error:
            refused[candidate.name] = error.problems
    by_path = grouped((golden.path, golden) for golden in prepared)
    doubled = {path: [golden.case for golden in alike] for path, alike in by_path.items() if len(alike) > 1}
    for path, names in doubled.items():
        problem = f"have one golden, {path}"
        refused |= {name: [BadRequestError(problem, remedy="promote one of them with --case")] for name in names}
    return PromotionsDocument(
        is_written=is_written,
        promoted=tuple(golden for golden in prepared if golden.path not in doubled),
        refused=tuple(Refused(case=case, errors=tuple(errors)) for case, errors in refused.items()),
        left_out=tuple(left_out),
    )


def _prepared(candidate: Candidate, folder: Path, together: Sequence[ExperimentSpec]) -> Prepared:
    problems = [BadRequestError(problem) for problem in candidate.problems]
    if not candidate.records:
        raise ManyProblemsError(problems or [BadRequestError("no run to promote")])
    spec = candidate.records[0].spec
    name, batch = (spec.gpu, spec.slug), spec.batch
    is_shared = any((other.gpu, other.slug) == name and other.batch != batch for other in together)
    path = batch_path(folder, spec) if is_shared else promotion_path(folder, spec)
    before = earlier_golden(path)
    try:
        golden = promote(candidate.records, candidate.options, before)
    except BadRequestError as error:
        raise ManyProblemsError([*problems, *error.problems]) from error
    raise_all(problems)
    return Prepared(case=candidate.name, path=path, spec=spec, golden=golden, before=before)


def promotions_page(found: PromotionsDocument) -> Page:
    """Return every promoted golden, before and after; then what was not promoted, with the reason."""
    sections = (Section(f"{new.path.parent.name}/{new.path.stem}", tuple(_promotion(new))) for new in found.promoted)
    done, where = ("Promoted", "Written") if found.is_written else ("Would promote", "Not written")
    refused = [(case.case, problem) for case in found.refused for problem in case.problems]
    left = [f"Not promoted: {name}: {why}" for name, why in (*refused, *((e.case, e.reason) for e in found.left_out))]
    caveats = (f"Caveat of {new.path.stem}: {each}" for new in found.promoted for each in new.golden.caveats)
    first = found.promoted[0].path.stem
    what = first if len(found.promoted) == 1 else f"{counted(len(found.promoted), 'golden')}, the first {first}"
    written = listing(f"{where}: {new.path}" for new in found.promoted)
    said = f"; {len(left)} not promoted" * bool(left)
    return Page(
        (*sections, GAP, written, listing((*caveats, *left), style="doubt")),
        answer=answer_line(f"{done} {what}{said}."),
    )


def _promotion(new: Prepared) -> Iterator[Block]:
    golden, after = new.golden, golden_side("after", new.golden)
    before = golden_side("before", new.before, new.spec) if new.before else None
    night = f", night {golden.night_id}" if golden.night_id else ""
    yield f"Reason: {golden.reason}"
    yield f"Promoted by {golden.promoted_by}, {golden.promoted_at}, from {', '.join(golden.run_ids)}{night}."
    yield GAP
    yield values_table(after, before)
    found = contrast(after, before)[0] if before else ()
    yield listing(f"Differs: {each.name}: {each.before} -> {each.after}" for each in found)
    yield listing(f"Accepted: {why}" for why in golden.overridden)


def night_candidates(
    night: NightData, names: Sequence[str], options: PromotionOptions
) -> tuple[list[Candidate], list[LeftOut]]:
    """Return the named cases, or all but expected failures, which come with the reason. BadRequestError."""
    _require_ended(night)
    known = {case.planned.name: case for case in night.cases}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadRequestError(
            f"--case {', '.join(unknown)}: not in {night.plan.night_id}", remedy=f"name one of {', '.join(known)}"
        )
    expected = {
        name: reason for name, case in known.items() if not names and (reason := _expected(case, options.now.date()))
    }
    chosen = [known[name] for name in names or known if name not in expected]
    return [_candidate(night, case, options) for case in chosen], [
        LeftOut(case=name, reason=reason) for name, reason in expected.items()
    ]


def require_ended_nights(references: Sequence[str], results: Path | None) -> None:
    """Raise BadRequestError if a night that contains one of the named runs is still running."""
    nights = (night_of(record_path(reference, results).resolve().parent) for reference in references)
    for path in dict.fromkeys(filter(None, nights)):
        _require_ended(read_night(path))


def _require_ended(night: NightData) -> None:
    """Raise BadRequestError if the night is still running: it would be compared with its own values, and pass."""
    life = life_of(night.night_dir)
    if not night.is_finished and life.state == "alive":
        raise BadRequestError(f"{night.plan.night_id}: {life.reason}", remedy="promote from it after it has ended")


def _candidate(night: NightData, case: NightCase, options: PromotionOptions) -> Candidate:
    counted = effective_runs(case_runs(case.runs))
    records = tuple(run.record for run in counted if run.record is not None)
    own = replace(options, thresholds=case.planned.thresholds, night_id=night.plan.night_id)
    return Candidate(case.planned.name, records, own, tuple(_problems(case, counted)))


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
    ended = bad_end(effective_runs(case_runs(case.runs)))
    if ended is None:
        return ""
    is_expected, remark = expectation(case.planned.expected, ended[0], today, ended_well=False)
    return f"{ended[0]}, {remark}" if is_expected else ""
