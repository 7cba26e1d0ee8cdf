"""From what is asked to the plan of a sweep: cells, each with its prediction and what is to become of it."""

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import harness
from harness.errors import BadRequestError, raise_all
from harness.launch.devices import one_look
from harness.launch.environment import Host, secrets_in
from harness.launch.execute import LAUNCHERS
from harness.planning.settings import candidates
from harness.recipes.axes import RECOMPUTE_OPTIONS
from harness.recipes.problems import Problems
from harness.recipes.request import Request
from harness.records.redact import redact
from harness.records.sweep import Axis, Cell, RefusedCell, SweepPlan
from harness.runner.batch.drafts import ask_megatron
from harness.runner.prediction import RunPrediction
from harness.runner.sweep.axes import AUTO, RECOMPUTE, Expansion, SweptAxis, control_values
from harness.runner.sweep.drafts import draft, require_one, with_twins
from harness.runner.sweep.fates import foretell, planned_cells
from harness.runner.sweep.over import read_axes, read_control
from harness.runner.sweep.request import SweepRequest
from harness.runner.understanding import given_env, launcher_problems, settle
from harness.spec.effective import settled_implementation
from harness.spec.layout import LayoutError
from harness.units import counted

_REPLAYED = "replayed: nothing is measured that a prediction could stand beside"


@one_look()
def plan_sweep(
    request: SweepRequest, host: Host, *, asks_megatron: bool, tell: Callable[[str], None] = lambda _: None
) -> SweepPlan:
    """Everything that is decided before the first run; ``sweep_id`` is empty as long as there is no folder.

    ``asks_megatron``: also of the installed megatron-core, for GPUs. ``tell`` hears what is being waited for. Starts
    tracers only. BadRequestError with every problem of the request, or of the cells when none of them may run.
    """
    axes = _axes(request)
    control = control_values(axes, read_control(request.control, axes))
    expansion = Expansion(request.asked, axes, control, lambda asked: every_setting(request, asked, host))
    drafts = draft(request, axes, expansion.cells(grid=request.grid), host)
    first = next(one.checked for one in drafts if one.may_run and one.checked)
    unasked = tuple[str, ...]()
    if asks_megatron and not first.spec.gpu_type.is_cpu and request.launch.launcher != "replay":
        tell(f"Asking the installed megatron-core about {counted(len(drafts), 'cell')}")
        judged, unasked = ask_megatron(drafts, host)
        drafts = tuple(with_twins(judged))
        require_one(drafts)
    running = [one.spec for one in drafts if one.may_run and one.spec]
    if request.launch.launcher == "replay":
        answers: Sequence[RunPrediction] = [RunPrediction(None, _REPLAYED)] * len(running)
    else:
        tell(f"Predicting {counted(len(running), 'cell')}")
        answers = foretell(running, first.software, host)
    cells = planned_cells(axes, drafts, iter(answers), prunes=request.prune)
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
        max_minutes=request.max_minutes,
        launch=request.launch,
        gate=request.gate,
        software=first.software,
        notes=_notes(cells, (*first.notes, *unasked)),
        command=tuple(redact(argument) for argument in sys.argv),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        mbr_perf=harness.__version__,
    )


def _axes(request: SweepRequest) -> tuple[SweptAxis, ...]:
    problems, axes = Problems(), tuple[SweptAxis, ...]()
    if not request.over:
        problems.add("a sweep varies something", "e.g. --over recompute=auto, or --over tp=4,8")
    if request.repeats < 1:
        problems.add(f"--repeats {request.repeats} must be at least 1")
    if not 0 <= request.margin < 1:
        problems.add(f"--margin {request.margin:g} is no share of the memory", "e.g. 0.06")
    if request.max_minutes is not None and not request.max_minutes > 0:
        problems.add(f"--max_minutes {request.max_minutes:g} must be above 0")
    if request.launch.launcher in LAUNCHERS:  # of another one every cell tells
        problems.found += launcher_problems(request.launch.launcher, request.launch.replay_from)
    with problems.collecting():
        axes = read_axes(request.over)
    given = [name for name in RECOMPUTE_OPTIONS if getattr(request.asked, name) is not None]
    if given and any(axis.target == RECOMPUTE for axis in axes):
        problems.add(f"--{given[0]} and --over recompute are two answers", "give all settings to --over recompute")
    if problems.found:  # else every cell tells them, with all else that is wrong with it
        with problems.collecting():
            raise_all(secrets_in(given_env(request.asked)))
    problems.raise_if_any()
    return axes


def every_setting(request: SweepRequest, asked: Request, host: Host) -> tuple[str, ...]:
    """What ``auto`` stands for: every legal setting that differs in effect, in the planner's order; () where none."""
    try:
        settled = settle(request.run_request(asked), host)
        found = candidates(settled.spec, settled.software, settled_implementation(settled.spec))
    except (BadRequestError, LayoutError):
        return ()  # the cell of the control, or of the layout, says why
    return tuple(row.text for row in found.rows if row.is_legal)


def _with_values(axis: SweptAxis, cells: Sequence[Cell]) -> Axis:
    """The axis with what `auto` stood for."""
    if AUTO not in axis.values or axis.target != RECOMPUTE:
        return Axis(name=axis.name, values=axis.values)
    return Axis(name=axis.name, values=tuple(dict.fromkeys(cell.changes[axis.name] for cell in cells)))


def _notes(cells: Sequence[Cell], notes: Sequence[str]) -> tuple[str, ...]:
    control = cells[0]
    if not isinstance(control, RefusedCell):
        return tuple(notes)
    lost = f"the control {control.name} does not run, so the others are compared with the fastest of them: {control.reason}"
    return (*notes, lost)
