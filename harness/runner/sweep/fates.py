"""What is to become of each cell: run, or the reason why not."""

from collections.abc import Iterator, Sequence

from harness.records.sweep import Fate, PlannedCell
from harness.runner.prediction import RunPrediction
from harness.runner.sweep.axes import RECOMPUTE, SweptAxis
from harness.runner.sweep.cells import name_of, told
from harness.runner.sweep.drafts import Draft
from harness.units import format_bytes


def planned_cells(
    axes: tuple[SweptAxis, ...], drafts: Sequence[Draft], answers: Iterator[RunPrediction], *, prunes: bool
) -> tuple[PlannedCell, ...]:
    """Drafts as cells with names and fates; ``answers`` are for those that may run, in their order."""
    changes = [told(axes, one.cell, one.spec) for one in drafts]
    names = [name_of(own, None if place == 0 else changes[0]) for place, own in enumerate(changes)]
    cells = []
    for index, one in enumerate(drafts):
        answer = next(answers) if one.may_run else RunPrediction(None)
        fate, reason = _fate(one, names, answer, prunes=prunes)
        cells.append(
            PlannedCell(
                index=index,
                name=names[index],
                changes=changes[index],
                recompute=one.spec.recompute.text if one.spec else changes[index].get(RECOMPUTE, ""),
                fate=fate,
                spec=one.spec,
                reason=reason,
                same_as=names[one.twin] if one.twin is not None else None,
                sources=one.checked.sources if one.checked else {},
                notes=one.checked.notes if one.checked else (),
                findings=one.checked.findings if one.checked else (),
                prediction=answer.prediction.record() if answer.prediction else None,
                no_prediction=answer.reason,
            )
        )
    return tuple(cells)


def _fate(one: Draft, names: Sequence[str], answer: RunPrediction, *, prunes: bool) -> tuple[Fate, str]:
    if one.twin is not None:
        return "skipped_inert", f"equal in effect to {names[one.twin]}{_inert(one)}"
    if one.problem:
        return "illegal", one.problem
    capacity = one.spec.capacity_bytes if one.spec else None
    if prunes and answer.prediction and capacity is not None and answer.prediction.range_bytes[0] > capacity:
        low, stage = answer.prediction.range_bytes[0], answer.prediction.worst.pp_rank
        return "pruned", f"stage {stage} needs at least {format_bytes(low)} of {format_bytes(capacity)}"
    return "run", ""


def _inert(one: Draft) -> str:
    inert = one.checked.effective.inert_modules if one.checked and one.checked.effective else {}
    return "".join(f"; {module} does nothing: {why}" for module, why in inert.items())
