"""From a request to the plan of a sweep: cells, predictions and fates."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat

from harness.batch.batch import Draft, ask_megatron, drafted, stamp
from harness.errors import BadRequestError, Problems, raise_all, with_cure
from harness.experiment.effective import computation, settled_implementation
from harness.experiment.layout_text import LayoutError
from harness.experiment.model import repeats_problem
from harness.launch.build import find_build
from harness.launch.detection import one_look
from harness.launch.environment import Host, secrets_in
from harness.launch.replay import LAUNCHERS
from harness.measure.checking import Checked
from harness.measure.prediction import KeptPrediction, limits_for, predictions
from harness.measure.understanding import given_env, launcher_problems, settle
from harness.predict.search import candidates, judged
from harness.predict.tracer import Tracing, trace_cache
from harness.records.batches import Build
from harness.records.sweep import Axis, Cell, PlannedCell, RefusedCell, SweepPlan
from harness.resolve.recipe import Request
from harness.resolve.sweep_file import RECOMPUTE_OPTIONS
from harness.sweep.axes import (
    AUTO,
    OWN,
    PYTHON,
    RECOMPUTE,
    AskedCell,
    Expansion,
    SweptAxis,
    control_values,
    name_of,
    values_of,
)
from harness.sweep.request import SweepRequest, read_axes, read_control
from harness.units import counted, format_bytes

CellDraft = Draft[AskedCell]


def draft(request: SweepRequest, axes: tuple[SweptAxis, ...], host: Host) -> tuple[CellDraft, ...]:
    """Check every cell. Leaves out cells whose values of ``axes`` equal another's; errors as :func:`with_twins`."""
    control = control_values(axes, read_control(request.control, axes))
    expansion = Expansion(request.asked, axes, control, lambda asked: every_setting(request, asked, host))
    drafts = dict[tuple[tuple[str, str], ...], CellDraft]()
    for cell in expansion.cells(grid=request.grid):
        drafted_cell = drafted(
            cell, request.run_request(cell.asked), host, lambda finding: f"{finding.id}: {finding.message}"
        )
        drafts.setdefault(tuple(values_of(axes, cell, drafted_cell.spec).items()), drafted_cell)
    return with_twins(drafts.values())


def with_twins(drafts: Iterable[CellDraft]) -> tuple[CellDraft, ...]:
    """Name the twin of each legal cell that computes the same as an earlier one. BadRequestError if no cell may run."""
    settled: list[CellDraft] = []
    first = dict[tuple[object, ...], int]()
    for place, cell in enumerate(drafts):
        twin, own = place, cell.checked
        if own is not None and own.effective is not None and not cell.problem:
            others = own.spec.model_dump_json(exclude={"recompute"})
            key = (cell.asked.values.get(PYTHON), others, computation(own.spec, own.software))
            twin = first.setdefault(key, place)
        settled.append(replace(cell, twin=None if twin == place else twin))
    require_one(settled)
    return tuple(settled)


def require_one(drafts: Sequence[CellDraft]) -> None:
    """Raise BadRequestError with all problems if no cell may run."""
    if any(cell.may_run for cell in drafts):
        return
    problems = Problems()
    is_shared = len({cell.problem for cell in drafts}) == 1  # then the request itself is wrong
    for cell in drafts:
        values = " ".join(f"{name}={value}" for name, value in cell.asked.values.items()) or "the request as it is"
        problem = cell.problem if is_shared else f"{values}: {cell.problem}"
        problems.add(problem, "`mbr-perf check` explains each rule" if cell.blocking else "")
    # Only options that mend every cell alike: others would undo what --over asks.
    cures = {cell.checked.cure if cell.checked else () for cell in drafts}
    raise_all(with_cure(problems.found, cures.pop() if len(cures) == 1 else ()))


def planned_cells(
    request: SweepRequest, axes: tuple[SweptAxis, ...], drafts: Sequence[CellDraft], answers: Iterator[KeptPrediction]
) -> tuple[Cell, ...]:
    """Turn drafts into named cells, to run or refused; ``answers``: predictions of those that may run, in order."""
    changes = [values_of(axes, cell.asked, cell.spec) for cell in drafts]
    usual = {name: value for name, value in changes[0].items() if not (request.grid and name.startswith("env."))}
    names = [name_of(own, None if place == 0 else usual) for place, own in enumerate(changes)]
    cells = []
    for index, cell in enumerate(drafts):
        answer = next(answers) if cell.may_run else KeptPrediction(None)
        fate, reason = _fate(cell, names, answer, request)
        words = cell.words | {
            "index": index,
            "name": names[index],
            "changes": changes[index],
            "recompute": cell.spec.recompute.text if cell.spec else changes[index].get(RECOMPUTE, ""),
            "prediction": answer.prediction,
            "no_prediction": answer.reason,
        }
        twin = names[cell.twin] if cell.twin is not None else None
        cells.append(
            PlannedCell.model_validate(words)
            if fate == "run"
            else RefusedCell.model_validate(words | {"fate": fate, "reason": reason, "same_as": twin})
        )
    return tuple(cells)


def _fate(cell: CellDraft, names: Sequence[str], answer: KeptPrediction, request: SweepRequest) -> tuple[str, str]:
    if cell.twin is not None:
        inert = cell.checked.effective.inert_modules if cell.checked and cell.checked.effective else {}
        idle = "".join(f"; {module} does nothing: {why}" for module, why in inert.items())
        return "skipped_inert", f"equal in effect to {names[cell.twin]}{idle}"
    if cell.problem:
        return "illegal", cell.problem
    found, limits = answer.prediction, limits_for(cell.spec, request.margin) if cell.spec else None
    if request.prune and found and limits and judged(found, limits) == ("OOM", True):
        low, usable = format_bytes(found.fits[0]), format_bytes(limits.budget_bytes or 0)
        return "pruned", f"needs at least {low} of {usable} usable, {limits.margin * 100:g} % kept free"
    return "run", ""


_REPLAYED = "replayed: a recorded run needs no prediction"


@one_look()
def plan_sweep(
    request: SweepRequest, host: Host, *, asks_megatron: bool, waits: Callable[[str], None] = lambda _: None
) -> SweepPlan:
    """Decide everything before the first run; ``sweep_id`` is empty until the sweep has a folder.

    ``asks_megatron``: also of the installed megatron-core, for GPUs. ``waits`` gets a line before each wait.
    Starts tracers only. BadRequestError with every problem of the request, or of the cells when none of them may run.
    """
    axes = _axes(request)
    builds = _builds(axes, host)
    drafts = draft(request, axes, host)
    first = _to_run(drafts)[0]
    unasked = tuple[str, ...]()
    if asks_megatron and not first.spec.gpu_type.is_cpu and request.launch.launcher != "replay":
        waits(f"Asking the installed megatron-core about {counted(len(drafts), 'cell')}")
        judged, unasked = ask_megatron(drafts, host)
        drafts = with_twins(judged)
    running = [checked.spec for checked in _to_run(drafts)]
    few_steps = [few for spec in running if (few := spec.measure.too_few_steps())]
    if request.launch.launcher == "replay":
        answers: Iterator[KeptPrediction] = repeat(KeptPrediction(None, _REPLAYED))
    else:
        waits(f"Predicting {counted(len(running), 'cell')}")
        answers = iter(predictions(running, first.software, Tracing(host, trace_cache(host.shell))))
    cells = planned_cells(request, axes, drafts, answers)
    notes = dict.fromkeys((*first.notes, *few_steps, *unasked))
    if isinstance(control := cells[0], RefusedCell):
        notes |= {f"the control {control.name} does not run, so no cell is compared with it": None}
    return SweepPlan(
        sweep_id="",
        title=request.title or f"{first.spec.recipe} over {', '.join(axis.name for axis in axes)}",
        recipe=first.spec.recipe,
        gpu=first.spec.gpu,
        control=cells[0].name,
        axes=tuple(_with_values(axis, cells) for axis in axes),
        grid=request.grid,
        repeats=request.repeats,
        cells=cells,
        capacity_bytes=(cells[0].spec or first.spec).capacity_bytes,
        margin=request.margin,
        prune=request.prune,
        launch=request.launch,
        gate=request.gate,
        software=first.software,
        builds=builds,
        notes=tuple(notes),
        **stamp(),
    )


def _to_run(drafts: Iterable[CellDraft]) -> list[Checked]:
    return [cell.checked for cell in drafts if cell.may_run and cell.checked]


def _axes(request: SweepRequest) -> tuple[SweptAxis, ...]:
    problems, axes = Problems(), tuple[SweptAxis, ...]()
    if not request.over:
        problems.add("a sweep needs a setting to vary", "e.g. --over recompute=auto, or --over tp=4,8")
    if problem := repeats_problem(request.repeats):
        problems.add(problem)
    if not 0 <= request.margin < 1:
        problems.add(f"--margin {request.margin:g} must be a share of the memory, from 0 to below 1", "e.g. 0.02")
    if request.launch.launcher in LAUNCHERS:  # for other launchers, the checks of every cell report it
        problems.found += launcher_problems(request.launch)
    with problems.collecting():
        axes = read_axes(request.over)
    given = [name for name in RECOMPUTE_OPTIONS if getattr(request.asked, name) is not None]
    if given and any(axis.target == RECOMPUTE for axis in axes):
        problems.add(f"--{given[0]} and --over recompute exclude each other", "give all settings to --over recompute")
    if problems.found:  # else the checks of every cell report them with all other problems
        problems.tried(lambda: raise_all(secrets_in(given_env(request.asked))))
    problems.raise_if_any()
    return axes


def _builds(axes: tuple[SweptAxis, ...], host: Host) -> dict[str, Build]:
    """Return the environments that are compared, by their value. BadRequestError with all that is wrong with them."""
    problems, builds = Problems(), dict[str, Build]()
    for value in (value for axis in axes if axis.target == PYTHON for value in axis.values if value != OWN):
        with problems.collecting():
            builds[value] = find_build("python", value, host)
    problems.raise_if_any()
    return builds


def every_setting(request: SweepRequest, asked: Request, host: Host) -> tuple[str, ...]:
    """Return the settings of ``auto``: legal and different in effect, in the planner's order; () if there are none."""
    try:
        settled = settle(request.run_request(asked), host)
        found = candidates(settled.spec, settled.software, settled_implementation(settled.spec))
    except (BadRequestError, LayoutError):
        return ()  # the cell of the control, or of the layout, has the reason
    return tuple(row.text for row in found.rows if row.is_legal)


def _with_values(axis: SweptAxis, cells: Sequence[Cell]) -> Axis:
    if AUTO not in axis.values or axis.target != RECOMPUTE:
        return Axis(name=axis.name, values=axis.values)
    return Axis(name=axis.name, values=tuple(dict.fromkeys(cell.changes[axis.name] for cell in cells)))
