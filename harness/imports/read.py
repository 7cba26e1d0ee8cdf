"""From the options of `mbr-perf import` to the one value that the logic takes."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.asking.options import JudgeOptions
from harness.asking.requests import experiment_request, gate_options
from harness.errors import BadRequestError, raise_all
from harness.imports.options import ImportOptions, JobOptions
from harness.imports.request import ImportRequest, ImportSweepRequest, LabelledLogs
from harness.recipes.file_request import laid_over, request_of
from harness.recipes.sweep_file import SweepFile, read_sweep_file
from harness.units import utc_time


@dataclass(frozen=True)
class Asked:
    """Exactly one of the two: one job, or several."""

    run: ImportRequest | None = None
    sweep: ImportSweepRequest | None = None


def import_request(what: ImportOptions, asked: JobOptions, judge: JudgeOptions) -> Asked:
    """BadRequestError for logs of which only some have a setting, and without a recipe."""
    file = _sweep_file(what.sweep, asked)
    request = experiment_request(asked, judge)
    request = laid_over(request_of(file.request), request) if file else request
    if not request.model_recipe_name:
        raise BadRequestError("a log does not say what was trained", remedy="-mr RECIPE, or --sweep SWEEP_FILE")
    gate, jobs, started_at = gate_options(judge), labelled(what.log), _started_at(what.started_at)
    _require_logs(jobs)
    if any(not job.label for job in jobs):
        _require_one_job(what, jobs)
        logs = tuple(path for job in jobs for path in job.logs)
        one = ImportRequest(logs=logs, asked=request, gate=gate, started_at=started_at, results_dir=what.results_dir)
        return Asked(run=one)
    return Asked(
        sweep=ImportSweepRequest(
            jobs=jobs,
            asked=request,
            gate=gate,
            title=file.title if file else "",
            control=what.control or (file.control or "" if file else ""),
            started_at=started_at,
            results_dir=what.results_dir,
        )
    )


def _sweep_file(name: str | None, asked: JobOptions) -> SweepFile | None:
    try:
        return None if name is None else read_sweep_file(name, asked.recipes_dir)
    except BadRequestError as error:
        raise BadRequestError(error.message.replace("--file", "--sweep", 1), remedy=error.remedy) from error


def _require_logs(jobs: tuple[LabelledLogs, ...]) -> None:
    """BadRequestError for a setting without a log, and for a log of two jobs, which would pass for a repeat."""
    found, seen = list[BadRequestError](), set[Path]()
    for label, log in ((job.label, log) for job in jobs for log in job.logs):
        path = Path(log).absolute()
        if not log:
            found.append(BadRequestError(f"--log {label}=: no file", remedy=f"--log '{label}=a.log'"))
        elif path in seen:
            found.append(BadRequestError(f"--log {log}: is named twice", remedy="name every log once"))
        seen.add(path)
    raise_all(found)


def _started_at(written: str | None) -> datetime | None:
    """BadRequestError for what is no time, or one that is yet to come."""
    if written is None:
        return None
    try:
        when = utc_time(written)
    except ValueError as error:
        raise BadRequestError(f"--started_at {written!r}: no time", remedy="e.g. 2025-01-31T22:15:00Z") from error
    if when > datetime.now(UTC):
        raise BadRequestError(
            f"--started_at {written}: yet to come", remedy="UTC is meant, or a zone: 2025-01-31T22:15:00-08:00"
        )
    return when


def _require_one_job(what: ImportOptions, jobs: tuple[LabelledLogs, ...]) -> None:
    if len(jobs) > 1:
        raise BadRequestError(
            f"--log {jobs[0].logs[0]} has no setting, and others have",
            remedy="give every job its own: --log none=a.log",
        )
    given = [name for name, value in (("--sweep", what.sweep), ("--control", what.control)) if value]
    if given:
        raise BadRequestError(
            f"{', '.join(given)}: of several jobs, and the logs are of one",
            remedy="name the job's setting: --log none=a.log",
        )


def labelled(values: Iterable[str]) -> tuple[LabelledLogs, ...]:
    """``mlp=a.log``, ``b.log``: one job of two files; what has no setting belongs to the job before it."""
    jobs: list[LabelledLogs] = []
    for value in values:
        label, path = _split(value)
        if label or not jobs:
            jobs.append(LabelledLogs(label, (path,)))
        else:
            jobs[-1] = LabelledLogs(jobs[-1].label, (*jobs[-1].logs, path))
    return tuple(jobs)


def _split(value: str) -> tuple[str, str]:
    """``core_attn pp=8=runs/c.log``: at the first ``=`` before a file that is there, else at the last."""
    if "=" not in value or Path(value).exists():
        return "", value
    parts = value.split("=")
    cuts = [("=".join(parts[:at]), "=".join(parts[at:])) for at in range(1, len(parts))]
    return next((cut for cut in cuts if Path(cut[1]).exists()), cuts[-1])
