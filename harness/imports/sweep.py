"""Makes a sweep from training logs of jobs with different settings; it is judged and reported like any sweep."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import harness
from harness.errors import BadRequestError, ExitCode, Problems
from harness.experiment.gpu import MARGIN
from harness.imports.request import (
    ImportSweepRequest,
    Labelled,
    LabelledLogs,
    Values,
    axes_of,
    canonical,
    require_distinct,
    setting_of,
)
from harness.imports.run import REFUSED, Draft, committed, drafted, read, recorded
from harness.launch.environment import Host, this_host
from harness.measure.logged import with_logged
from harness.records.batches import SWEEP_FOLDERS, BatchLaunch
from harness.records.folders import results_dir
from harness.records.redact import own_command
from harness.records.run import IMPORTED, LAUNCHER, RunRecord
from harness.records.sweep import Axis, PlannedCell, SweepPlan, run_dir_of, run_id_of
from harness.show.progress import counted_off
from harness.show.terminal import narration
from harness.sweep.axes import RECOMPUTE, SweptAxis, name_of
from harness.sweep.batch import SweepBatch
from harness.sweep.reports import SweepDisplay, answer
from harness.sweep.request import read_axes
from harness.units import utc_now


@dataclass(frozen=True)
class _Cell:
    """One setting: its value of every axis, and a draft of a job for each repeat."""

    changes: dict[str, str]
    drafts: tuple[Draft, ...]


def import_sweep(request: ImportSweepRequest, display: SweepDisplay) -> ExitCode:
    """Make a sweep's folder with a run of every job, judge it, write its reports, print the answer.

    BadRequestError names all problems of the logs and settings, before anything is written.
    """
    host = this_host()
    axes, cells = _cells(request, host)
    records = [[recorded(draft, "") for draft in cell.drafts] for cell in cells]
    plan = _plan(request, axes, cells, records)
    sweep_dir = SWEEP_FOLDERS.new_dir(results_dir(request.results_dir), f"{plan.recipe}-imported")
    plan = plan.model_copy(update={"sweep_id": sweep_dir.name})
    SWEEP_FOLDERS.write_plan(sweep_dir, plan)
    for index, repeats in enumerate(records):
        for repeat, record in enumerate(repeats):
            run_dir = run_dir_of(sweep_dir, index, repeat)
            run_dir.mkdir(parents=True)
            committed(record.model_copy(update={"run_id": run_id_of(plan.sweep_id, index, repeat)}), run_dir)
    return answer(SweepBatch(sweep_dir, host, plan), display)


def _cells(request: ImportSweepRequest, host: Host) -> tuple[tuple[SweptAxis, ...], list[_Cell]]:
    """Return the axes of the labels, and the cells in the order of their first logs, the control first."""
    labels = [setting_of(job.label) for job in request.jobs]
    axes = axes_of(labels)
    problems, found, jobs = Problems(), dict[tuple[tuple[str, str], ...], _Cell](), list[Labelled]()
    pairs = list(zip(request.jobs, canonical(labels, axes), strict=True))
    for job, values in counted_off(narration(), "Reading logs", pairs):
        with problems.collecting():
            changes, draft = _drafted(request, job, values, axes, host)
            key = tuple(changes.items())
            before = found.get(key, _Cell(changes, ()))
            found[key] = replace(before, drafts=(*before.drafts, draft))
            jobs.append(Labelled(job.label, dict(values), draft.settled))
    with problems.collecting():
        require_distinct(jobs, axes)
    problems.raise_if_any()
    cells = list(found.values())
    control = _control(request, cells)
    return axes, [cells[control], *cells[:control], *cells[control + 1 :]]


def _drafted(
    request: ImportSweepRequest, job: LabelledLogs, values: Values, axes: tuple[SweptAxis, ...], host: Host
) -> tuple[dict[str, str], Draft]:
    chosen = [axis for axis in axes if axis.name in values]
    asked = reduce(lambda asked, axis: axis.ask(asked, values[axis.name]), chosen, request.asked)
    try:
        draft = drafted(read(job.logs), *with_logged(asked, job.logs, host), host, request.started_at)
    except BadRequestError as error:
        raise BadRequestError(f"{job.label}: {error.message}", remedy=error.remedy) from error
    return {axis.name: values.get(axis.name) or axis.read(draft.settled.spec) for axis in axes}, draft


def _control(request: ImportSweepRequest, cells: Sequence[_Cell]) -> int:
    """Return the index of the requested cell, else of the first without recompute, else 0."""
    if not request.control:
        plain = [place for place, cell in enumerate(cells) if cell.changes.get(RECOMPUTE) == "none"]
        return plain[0] if plain else 0
    asked = setting_of(request.control)
    wanted = dict(canonical([asked], read_axes([(name, (value,)) for name, value in asked.items()]))[0])
    matching = [place for place, cell in enumerate(cells) if wanted.items() <= cell.changes.items()]
    if not matching:
        known = "; ".join(" ".join(cell.changes.values()) for cell in cells)
        raise BadRequestError(f"--control {request.control}: no log has this setting", remedy=f"name one of: {known}")
    return matching[0]


def _plan(
    request: ImportSweepRequest,
    axes: tuple[SweptAxis, ...],
    cells: Sequence[_Cell],
    records: Sequence[Sequence[RunRecord]],
) -> SweepPlan:
    planned = tuple(
        PlannedCell(
            index=index,
            name=name_of(cell.changes, None if index == 0 else cells[0].changes),
            changes=cell.changes,
            recompute=run.spec.recompute.text,
            fate="run",
            spec=run.spec,
            sources=run.sources,
            notes=run.notes,
            prediction=run.prediction,
            no_prediction=run.no_prediction,
        )
        for index, (cell, (run, *_)) in enumerate(zip(cells, records, strict=True))
    )
    spec = records[0][0].spec
    return SweepPlan(
        sweep_id="",
        title=request.title or f"{spec.recipe} over {', '.join(axis.name for axis in axes)}",
        recipe=spec.recipe,
        gpu=spec.gpu,
        control=planned[0].name,
        axes=tuple(
            Axis(name=axis.name, values=tuple(dict.fromkeys(cell.changes[axis.name] for cell in cells)))
            for axis in axes
        ),
        grid=False,
        repeats=max(len(runs) for runs in records),
        cells=planned,
        capacity_bytes=spec.capacity_bytes,
        margin=MARGIN,
        prune=False,
        launch=BatchLaunch(launcher=LAUNCHER),
        gate=request.gate.from_root,
        notes=_notes([record for runs in records for record in runs]),
        command=own_command(),
        started_at=_started([draft for cell in cells for draft in cell.drafts]),
        mbr_perf=harness.__version__,
    )


def _started(drafts: Sequence[Draft]) -> str:
    """Return the start of the first job; the time of the import if any start is unknown."""
    known = [draft.times.started_at for draft in drafts if draft.times.source != "unknown"]
    return min(known) if len(known) == len(drafts) else utc_now()


def _notes(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return notes on the whole sweep."""
    missing = dict.fromkeys(text for record in records if record.imported for text in record.imported.unsaid)
    noted = [note for record in records for note in record.notes if note.startswith(REFUSED)]
    refused = [f"{note} ({noted.count(note)} of {len(records)} logs)" for note in dict.fromkeys(noted)]
    return (
        f"{IMPORTED}training logs: mbr-perf measured nothing",
        *refused,
        *(f"the logs do not contain {text}" for text in missing),
    )
