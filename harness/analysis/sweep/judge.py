"""A sweep judged as a whole: every cell, the Pareto set, the recommendation."""

from collections.abc import Sequence

from harness.analysis.compare import GateOptions
from harness.analysis.machine import first_run
from harness.analysis.sweep.cell import Frame, MeasuredCell, control_ended, judged, measured
from harness.analysis.sweep.pareto import pareto
from harness.analysis.sweep.recommendation import recommend, unfinished
from harness.analysis.sweep.reference import stand_in
from harness.analysis.sweep.values import CellVerdict, SweepVerdict
from harness.records.sweeps import SweepData

_DEFAULT_GATE = GateOptions()


def judge_sweep(data: SweepData, gate: GateOptions = _DEFAULT_GATE) -> SweepVerdict:
    """Every cell against the control, its prediction and its stored golden. Also of a sweep that is not finished.

    BadRequestError where ``gate`` names a golden that cannot be read.
    """
    plan = data.plan
    planned = (data.control.planned, *plan.cells)
    reference = next((cell.spec for cell in planned if cell.spec), None)
    first = first_run(data)
    found = [measured(cell, reference, first) for cell in data.cells]
    control = next(cell for cell in found if cell.name == plan.control)
    instead = stand_in(found, control)
    frame = Frame(control, instead, plan.margin, gate)
    cells = tuple(judged(cell, frame) for cell in found)
    points = {
        cell.name: (cell.cost_s, float(cell.peak_bytes))
        for cell in cells
        if cell.is_comparable and cell.cost_s is not None and cell.peak_bytes is not None
    }
    costs = {cell.name: cell.costs_s for cell in found}
    num_due = data.num_due
    return SweepVerdict(
        sweep_id=plan.sweep_id,
        title=plan.title,
        recipe=plan.recipe,
        gpu=plan.gpu,
        control=plan.control,
        reference=_reference(control, instead),
        reference_why=control_ended(control) if instead else "",
        axes=plan.axes,
        repeats=plan.repeats,
        capacity_bytes=plan.capacity_bytes,
        margin=plan.margin,
        cells=cells,
        pareto=pareto(points),
        recommendation=unfinished(num_due, data.sweep_dir) if num_due else recommend(cells, costs, plan.margin),
        num_due=num_due,
        notes=(*plan.notes, *_unused_golden(cells, gate)),
        started_at=plan.started_at,
        command=plan.command,
    )


def _reference(control: MeasuredCell, instead: MeasuredCell | None) -> str | None:
    if instead:
        return instead.name
    return control.name if control.status == "ok" and not control.doubts else None


def _unused_golden(cells: Sequence[CellVerdict], gate: GateOptions) -> tuple[str, ...]:
    if not gate.names_one_golden or any(cell.golden for cell in cells):
        return ()
    return (f"golden values {gate.golden_values_path}: for none of the cells that ended well, so nothing is judged",)
