"""Cells before anything is predicted: checked, and compared for what they would compute."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from harness.batch.drafts import Draft, drafted
from harness.experiment.effective import computation
from harness.launch.environment import Host
from harness.recipes.problems import Problems
from harness.run.checking import Checked
from harness.sweep.axes import AskedCell, SweptAxis, told
from harness.sweep.request import SweepRequest

CellDraft = Draft[AskedCell]


def draft(
    request: SweepRequest, axes: tuple[SweptAxis, ...], cells: Iterable[AskedCell], host: Host
) -> tuple[CellDraft, ...]:
    """Check every cell. Leaves out a cell with the same values of ``axes`` as another; cells equal in effect name a twin.

    BadRequestError with all problems when no cell may run.
    """
    drafts: list[CellDraft] = []
    values: list[Mapping[str, str]] = []
    for cell in cells:
        drafted_cell = drafted(cell, request.run_request(cell.asked), host, lambda one: f"{one.id}: {one.message}")
        own = told(axes, cell, drafted_cell.spec)
        if own not in values:
            drafts.append(drafted_cell)
            values.append(own)
    drafts = with_twins(drafts)
    require_one(drafts)
    return tuple(drafts)


def with_twins(drafts: Iterable[CellDraft]) -> list[CellDraft]:
    """The drafts, where a legal cell that computes the same as an earlier one names it."""
    settled: list[CellDraft] = []
    for one in drafts:
        settled.append(replace(one, twin=_twin(one, settled)))
    return settled


def require_one(drafts: Sequence[CellDraft]) -> None:
    """BadRequestError with all that is wrong unless some cell may run."""
    if any(one.may_run for one in drafts):
        return
    problems = Problems()
    is_shared = len({one.problem for one in drafts}) == 1  # then it is the request that is wrong
    for one in drafts:
        values = " ".join(f"{name}={value}" for name, value in one.asked.values.items()) or "the request as it is"
        told = one.problem if is_shared else f"{values}: {one.problem}"
        problems.add(told, "`mbr-perf check` explains each rule" if one.blocking else "")
    problems.raise_if_any()


def _twin(drafted: CellDraft, earlier: Sequence[CellDraft]) -> int | None:
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
