"""Writes every report of a night where it was asked for."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

from harness.errors import BadRequestError, raise_all
from harness.night.document import night_document
from harness.night.index import INDEX, write_index
from harness.night.junit import night_junit
from harness.night.page import append_summary, night_html, night_markdown
from harness.night.values import CaseRun, NightVerdict
from harness.records.folders import why_unwritable
from harness.records.nights import JUDGED, REPORT
from harness.records.redact import redact_shapes
from harness.records.store import write_atomically
from harness.showing import json


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Copies that were asked for; None: not. ``html`` is a folder, ``step_summary`` is appended to."""

    junit: Path | None = None
    step_summary: Path | None = None
    html: Path | None = None


def require_outputs(outputs: Outputs) -> None:
    """BadRequestError, all at once, for what could not be written after hours of running."""
    raise_all([problem for field in fields(outputs) for problem in _problems(field.name, getattr(outputs, field.name))])


def _problems(name: str, path: Path | None) -> list[BadRequestError]:
    if path is None:
        return []
    option = f"--{name} {path}"
    if name == "html" and path.exists() and not path.is_dir():
        return [BadRequestError(f"{option}: not a folder")]
    return _unwritable(option, path) if name == "html" else _of_a_file(option, path)


def _of_a_file(option: str, path: Path) -> list[BadRequestError]:
    if path.is_dir():
        return [BadRequestError(f"{option}: a folder", remedy="name a file")]
    if not path.parent.is_dir():
        return [BadRequestError(f"{option}: no folder {path.parent}", remedy="make it first")]
    return _unwritable(option, path)


def _unwritable(option: str, path: Path) -> list[BadRequestError]:
    why = why_unwritable(path)
    return [BadRequestError(f"{option}: cannot be written: {why}", remedy="name another place")] if why else []


@dataclass(frozen=True)
class Written:
    """The files that are there now, and what could not be written and why: that changes no verdict."""

    paths: tuple[Path, ...]
    problems: tuple[str, ...] = ()


def write_night_reports(verdict: NightVerdict, outputs: Outputs | None = None) -> Written:
    """Write every format of :data:`FORMATS` into ``report/`` of the night, then what ``outputs`` asks for.

    Files in the night's folder are replaced. One that cannot be written keeps no other from being written.
    """
    folder, shown = verdict.night_dir / REPORT, _shown(verdict)
    jobs = [_Job(folder / name, partial(_write, shown, text)) for name, text in FORMATS.items()]
    return _written([*jobs, *_asked_for(shown, verdict.night_dir.parent, outputs or Outputs())])


def _shown(verdict: NightVerdict) -> NightVerdict:
    """With folders that look like secrets masked, as files are given away."""
    cases = (replace(case, runs=_runs(case.runs), golden_path=case.golden_path and redact_shapes(case.golden_path))
             for case in verdict.cases)  # fmt: skip
    aa = verdict.aa and replace(verdict.aa, runs=_runs(verdict.aa.runs))
    return replace(verdict, night_dir=_masked(verdict.night_dir), cases=tuple(cases), aa=aa)


def _runs(runs: Iterable[CaseRun]) -> tuple[CaseRun, ...]:
    return tuple(replace(run, run_dir=_masked(run.run_dir)) for run in runs)


def _masked(path: Path) -> Path:
    return Path(redact_shapes(str(path)))


@dataclass(frozen=True)
class _Job:
    path: Path
    write: Callable[[Path], None]


def _asked_for(verdict: NightVerdict, nights: Path, outputs: Outputs) -> Iterable[_Job]:
    if outputs.junit:
        yield _Job(outputs.junit, partial(_write, verdict, night_junit))
    if outputs.step_summary:
        yield _Job(outputs.step_summary, lambda path: append_summary(path, verdict))
    if outputs.html:
        folder = outputs.html
        yield _Job(folder / INDEX, lambda _: write_index(nights, folder))


def _write(verdict: NightVerdict, text: Callable[[NightVerdict], str], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text(verdict))


def _written(jobs: Iterable[_Job]) -> Written:
    paths, problems = [], []
    for job in jobs:
        try:
            job.write(job.path)
        except OSError as error:
            problems.append(f"{job.path}: cannot be written: {error.strerror or error}")
        else:
            paths.append(job.path)
    return Written(tuple(paths), tuple(problems))


FORMATS: dict[str, Callable[[NightVerdict], str]] = {
    JUDGED: lambda verdict: json.text(night_document(verdict)) + "\n",
    "night.md": night_markdown,
    "night.html": night_html,
    "junit.xml": night_junit,
}
