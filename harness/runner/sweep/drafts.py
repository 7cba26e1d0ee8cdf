"""Cells before anything is predicted: resolved, judged by the rules, and compared for what they would compute."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.errors import BadRequestError
from harness.launch.environment import Host
from harness.recipes.problems import Problems
from harness.runner.checking import Checked, check_request
from harness.runner.megatron_says import Question, megatron_findings, refusal, unasked_notes
from harness.runner.one_sentence import in_one_sentence
from harness.runner.sweep.axes import AskedCell, SweptAxis, told
from harness.runner.sweep.request import SweepRequest
from harness.spec.effective import computation
from harness.spec.experiment import ExperimentSpec
from harness.spec.rules.finding import Finding


@dataclass(frozen=True)
class Draft:
    """A cell, what the checks say, and why it may not run. ``checked`` is None where it could not be resolved."""

    cell: AskedCell
    checked: Checked | None
    problem: str = ""
    twin: int | None = None

    @property
    def spec(self) -> ExperimentSpec | None:
        """What it would run."""
        return self.checked.spec if self.checked else None

    @property
    def may_run(self) -> bool:
        """Legal, and not the same as another."""
        return not self.problem and self.twin is None

    @property
    def blocking(self) -> tuple[Finding, ...]:
        """The rules that forbid it."""
        return tuple(finding for finding in self.checked.findings if finding.blocks) if self.checked else ()


def draft(
    request: SweepRequest, axes: tuple[SweptAxis, ...], cells: Iterable[AskedCell], host: Host
) -> tuple[Draft, ...]:
    """Every cell checked; one whose values of ``axes`` another has already is left out, those equal in effect name a twin.

    BadRequestError with all problems when no cell may run.
    """
    drafts: list[Draft] = []
    values: list[Mapping[str, str]] = []
    for cell in cells:
        drafted = _checked(request, cell, host)
        own = told(axes, cell, drafted.spec)
        if own not in values:
            drafts.append(drafted)
            values.append(own)
    drafts = _with_twins(drafts)
    require_one(drafts)
    return tuple(drafts)


def _with_twins(drafts: Iterable[Draft]) -> list[Draft]:
    settled: list[Draft] = []
    for one in drafts:
        settled.append(replace(one, twin=_twin(one, settled)))
    return settled


def require_one(drafts: Sequence[Draft]) -> None:
    """BadRequestError with all that is wrong unless some cell may run."""
    if any(one.may_run for one in drafts):
        return
    problems = Problems()
    is_shared = len({one.problem for one in drafts}) == 1  # then it is the request that is wrong
    for one in drafts:
        values = " ".join(f"{name}={value}" for name, value in one.cell.values.items()) or "the request as it is"
        told = one.problem if is_shared else f"{values}: {one.problem}"
        problems.add(told, "`mbr-perf check` explains each rule" if one.blocking else "")
    problems.raise_if_any()


def _checked(request: SweepRequest, cell: AskedCell, host: Host) -> Draft:
    try:
        checked = check_request(request.run_request(cell.asked), host, assume=None, ask_megatron=False)
    except BadRequestError as problem:
        return Draft(cell, None, in_one_sentence(problem))
    blocking = [finding for finding in checked.findings if finding.blocks]
    return Draft(cell, checked, "; ".join(f"{f.id}: {f.message}" for f in blocking))


def _twin(drafted: Draft, earlier: Sequence[Draft]) -> int | None:
    """The place of a legal cell that runs the same computation; everything but recompute must be equal to the letter."""
    if drafted.problem or drafted.checked is None or drafted.checked.effective is None:
        return None
    for place, other in enumerate(earlier):
        if other.may_run and other.checked and _is_same(drafted.checked, other.checked):
            return place
    return None


def _is_same(one: Checked, other: Checked) -> bool:
    if one.spec.model_copy(update={"recompute": other.spec.recompute}) != other.spec:
        return False
    return computation(one.spec, one.software) == computation(other.spec, other.software)


def ask_megatron(drafts: Sequence[Draft], host: Host) -> tuple[tuple[Draft, ...], tuple[str, ...]]:
    """The drafts with what the installed megatron-core refuses marked illegal, and notes on what it did not answer.

    Twins are asked too: when the one that they equal is refused, one of them may still run.
    """
    asked = {
        place: Question(one.checked.spec, one.checked.software, one.checked.env)
        for place, one in enumerate(drafts)
        if one.checked and not one.problem
    }
    said = megatron_findings(asked, host)
    judged = _with_twins(_with(said.get(place), one) for place, one in enumerate(drafts))
    return tuple(judged), unasked_notes(said.values())


def _with(said: Finding | None, one: Draft) -> Draft:
    if said is None or one.checked is None or not said.blocks:
        return one
    checked = replace(one.checked, findings=(*one.checked.findings, said))
    return replace(one, checked=checked, problem=refusal(said))
