"""What an import is asked for: the logs of one job, or of several that differ in their settings."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import BadRequestError, ManyProblemsError, Problems, raise_all
from harness.recipes.recipe import Request
from harness.recipes.sweep_file import SweepFile, read_sweep_file
from harness.records.goldens import GateOptions
from harness.run.understanding import Settled
from harness.sweep.axes import RECOMPUTE, SweptAxis
from harness.sweep.request import read_axes
from harness.units import utc_time


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """The logs of one job, what it trained, when it ``started_at`` if that is told, and how to judge it."""

    logs: tuple[str, ...]
    asked: Request
    gate: GateOptions
    started_at: datetime | None = None
    results_dir: Path | None = None


@dataclass(frozen=True)
class LabelledLogs:
    """The logs of one job of several, under the setting that it ran with: ``mlp,core_attn pp=8``."""

    label: str
    logs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ImportSweepRequest:
    """Jobs that differ in their settings, and what they have in common. ``control``: a label; empty for the default."""

    jobs: tuple[LabelledLogs, ...]
    asked: Request
    gate: GateOptions
    title: str = ""
    control: str = ""
    started_at: datetime | None = None
    results_dir: Path | None = None


def sweep_file_named(name: str | None, recipes_dir: Path | None) -> SweepFile | None:
    """The file of `--sweep`; None without one."""
    try:
        return None if name is None else read_sweep_file(name, recipes_dir)
    except BadRequestError as error:
        raise BadRequestError(error.message.replace("--file", "--sweep", 1), remedy=error.remedy) from error


def require_logs(jobs: tuple[LabelledLogs, ...]) -> None:
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


def start_of(written: str | None) -> datetime | None:
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


Values = Mapping[str, str]


def setting_of(label: str) -> dict[str, str]:
    """``mlp,core_attn pp=8`` as values by axis; a word without ``=`` is the recompute setting."""
    try:
        words = shlex.split(label)
    except ValueError as error:
        raise BadRequestError(f"--log {label}: {error}", remedy="quote values that hold blanks") from error
    pairs = [word.partition("=") if "=" in word else (RECOMPUTE, "=", word) for word in words]
    names = [name for name, _, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise BadRequestError(f"--log {label}: {twice} is given twice", remedy="commas join modules: mlp,core_attn")
    return {name: value for name, _, value in pairs}


def axes_of(labels: Sequence[Values]) -> tuple[SweptAxis, ...]:
    """Every axis that a label names, with its values in their order. BadRequestError for what cannot be varied."""
    names = dict.fromkeys(name for values in labels for name in values)
    given = [(name, tuple(dict.fromkeys(v[name] for v in labels if name in v))) for name in names]
    try:
        return read_axes(given)
    except BadRequestError as error:
        found = error.problems if isinstance(error, ManyProblemsError) else [error]
        told = [BadRequestError(one.message.replace("--over", "--log", 1), remedy=one.remedy) for one in found]
        raise ManyProblemsError(told) from error


def canonical(labels: Sequence[Values], axes: tuple[SweptAxis, ...]) -> list[Values]:
    """The labels with every name and value in its one spelling, as the axes have them."""
    names = dict.fromkeys(name for values in labels for name in values)
    spelled = dict[tuple[str, str], tuple[str, str]]()
    for name, axis in zip(names, axes, strict=True):
        written = dict.fromkeys(values[name] for values in labels if name in values)
        spelled |= {(name, value): (axis.name, one) for value, one in zip(written, axis.values, strict=True)}
    return [dict(spelled[pair] for pair in values.items()) for values in labels]


_ENV = "env."


@dataclass(frozen=True)
class Labelled:
    """A job. ``values``: what was typed of it, by axis; ``settled``: all that it means."""

    label: str
    values: dict[str, str]
    settled: Settled


def require_told_apart(jobs: Sequence[Labelled], axes: Sequence[SweptAxis]) -> None:
    """BadRequestError with every two jobs that differ in what was typed and not in what it means, each pair once.

    Jobs of which the same was typed are repeats, and no problem.
    """
    problems, known = Problems(), dict[tuple[str, ...], Labelled]()
    for job in jobs:
        spec = job.settled.spec
        before = known.setdefault((spec.fingerprint, *(axis.read(spec) for axis in axes)), job)
        if before.values != job.values:
            problems.found.append(_problem(before, job, axes))
    problems.raise_if_any()


def _problem(one: Labelled, other: Labelled, axes: Sequence[SweptAxis]) -> BadRequestError:
    differing = [axis for axis in axes if one.values.get(axis.name) != other.values.get(axis.name)]
    silent = [(axis, job) for axis in differing for job in (one, other) if axis.name not in job.values]
    why = [f"{job.settled.sources.get(axis.leaf, 'the recipe')} sets {_written(axis, job)}" for axis, job in silent]
    ways = [f"if the job of {shlex.quote(job.label)} ran otherwise: {_otherwise(axis, job)}" for axis, job in silent]
    told = f", for {'; '.join(why)}" if why else ""
    return BadRequestError(
        f"--log {shlex.quote(one.label)} and --log {shlex.quote(other.label)} are the same settings{told}",
        remedy="; ".join([*ways, "if they are repeats, write their settings alike"]),
    )


def _written(axis: SweptAxis, job: Labelled) -> str:
    value = axis.read(job.settled.spec)
    return value if axis.name == RECOMPUTE else f"{axis.name}={value}"


def _otherwise(axis: SweptAxis, job: Labelled) -> str:
    if axis.target.startswith(_ENV):
        return f"-E {axis.target.removeprefix(_ENV)}= (without it) or -E {axis.target.removeprefix(_ENV)}=VALUE"
    name = "SETTING" if axis.name == RECOMPUTE else f"{axis.name}=VALUE"
    return f"--log {shlex.quote(f'{job.label} {name}')}=PATH"
