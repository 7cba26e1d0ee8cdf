"""The request of `diagnose`, with its paths sorted into a run and training logs."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from harness.errors import BadRequestError, Problems
from harness.foreign.logs.sources import STDIN, Passage
from harness.records.folders import results_dir
from harness.records.references import Kind, folder_named, folders, named, refuse_other_kinds
from harness.records.run import RunRecord
from harness.records.store import RECORD, is_committed, read_run
from harness.records.sweep import SWEEP, read_sweep, run_dir_of
from harness.resolve.recipe import Request

_TAKEN: tuple[Kind, ...] = ("run", "sweep")
_SPEC, _PICKLE = "spec.json", ".pickle"


@dataclass(frozen=True)
class DiagnoseRequest:
    """``asked``: the settings of a job that left only logs, and ``env`` its variables (NAME=VALUE) even without others.

    ``given``: the options of the job, as typed. ``plans``: whether to ask the planner. ``passage``: how far logs have
    been read, and whether to stop.
    """

    paths: tuple[str, ...]
    asked: Request | None = None
    env: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    results_dir: Path | None = None
    plans: bool = True
    passage: Passage = field(default_factory=Passage, compare=False)


@dataclass(frozen=True)
class Inputs:
    """One job: a run's ``folder`` with its ``record``, None if it has none, or all ``logs``."""

    folder: Path | None = None
    record: RunRecord | None = None
    logs: tuple[str, ...] = ()


def sorted_inputs(references: Iterable[str], results: Path | None = None) -> Inputs:
    """Sort paths, ids of runs, and ``-`` for standard input.

    BadRequestError names all unknown ones, and refuses sweeps and more than one job.
    """
    found, problems = list[Inputs](), Problems()
    for reference in dict.fromkeys(references):
        with problems.collecting():
            found.append(_sorted(reference, results))
    problems.raise_if_any()
    logs = tuple(log for each in found for log in each.logs)
    jobs = [*(each for each in found if each.folder), *([Inputs(logs=logs)] if logs else [])]
    if len(jobs) > 1:
        remedy = "name one run, or all logs of one job; mbr-perf explain RUN OTHER_RUN compares two runs"
        raise BadRequestError(f"{len(jobs)} jobs: diagnose takes one job", remedy=remedy)
    return jobs[0] if jobs else Inputs()


def _sorted(reference: str, results: Path | None) -> Inputs:
    """Say what a reference names. BadRequestError for a sweep and for other kinds of results."""
    if reference == STDIN:
        return Inputs(logs=(reference,))
    path = _located(reference, results)
    if path.is_dir() and (path / SWEEP).is_file():
        _refuse_sweep(path)
    if path.name == RECORD or (path.is_dir() and is_committed(path)):
        return Inputs(path if path.is_dir() else path.parent, read_run(path))
    if path.is_dir() and (path / _SPEC).is_file():
        return Inputs(path)
    if path.suffix == _PICKLE:
        raise BadRequestError(f"{path}: a memory snapshot, not a log", remedy=f"mbr-perf snapshot {path} explains it")
    refuse_other_kinds(path.absolute(), _TAKEN)
    return Inputs(logs=(reference,))


def _located(reference: str, results: Path | None) -> Path:
    if Path(reference).exists():
        return Path(reference)
    parents = [results_dir(results) / kind for kind in ("runs", "sweeps")]
    if not any(named(reference, folders(parent)) for parent in parents):
        refuse_other_kinds(reference, _TAKEN, results)
    remedy = "name a run, a log, a folder of logs, or - for standard input"
    return folder_named(reference, "run or log", *parents, remedy=remedy)


def _refuse_sweep(folder: Path) -> NoReturn:
    """Refuse a sweep, and name its runs that did not end well."""
    data = read_sweep(folder)
    begun = [run_dir_of(folder, cell.planned.index, n) for cell in data.cells for n in range(data.plan.repeats)]
    begun = [run_dir for run_dir in begun if run_dir.is_dir()]
    bad = [run for run in begun if not (run / RECORD).is_file() or read_run(run).status != "ok"]
    remedy = f"mbr-perf diagnose {bad[0]}" if bad else f"mbr-perf report {folder} shows its cells"
    raise BadRequestError(
        f"{folder}: a sweep; diagnose takes one run. {len(bad)} of the {len(begun)} runs that began did not end well",
        remedy=remedy,
    )
