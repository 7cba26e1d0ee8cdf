"""The request of an import: the logs of one job, or of several jobs with different settings."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from harness.errors import BadRequestError, ManyProblemsError, Problems, SeveralMatchError, raise_all
from harness.foreign.logs.lines import log_lines
from harness.foreign.logs.sources import is_stream
from harness.measure.logged import logged_arguments
from harness.measure.understanding import Settled
from harness.records.goldens import GateOptions
from harness.resolve.find import all_recipe_files, recipes_dir
from harness.resolve.listing import full_model
from harness.resolve.recipe import Request
from harness.resolve.recipe_file import load_recipe
from harness.resolve.sweep_file import SweepFile, read_sweep_file
from harness.sweep.axes import RECOMPUTE, SweptAxis
from harness.sweep.request import read_axes
from harness.units import utc_time


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """The logs of one job, its settings, its start ``started_at`` if given, and how to judge it."""

    logs: tuple[str, ...]
    asked: Request
    gate: GateOptions
    started_at: datetime | None = None
    results_dir: Path | None = None


@dataclass(frozen=True)
class LabelledLogs:
    """The logs of one of several jobs; ``label`` is its setting: ``mlp,core_attn pp=8``."""

    label: str
    logs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ImportSweepRequest:
    """Jobs with different settings, and their common settings. ``control``: a label; empty for the default."""

    jobs: tuple[LabelledLogs, ...]
    asked: Request
    gate: GateOptions
    title: str = ""
    control: str = ""
    started_at: datetime | None = None
    results_dir: Path | None = None


def sweep_file_named(name: str | None, recipes_dir: Path | None) -> SweepFile | None:
    """Return the file of `--sweep`; None without the option."""
    try:
        return None if name is None else read_sweep_file(name, recipes_dir)
    except BadRequestError as error:
        raise BadRequestError(error.message.replace("--file", "--sweep", 1), remedy=error.remedy) from error


def require_logs(jobs: tuple[LabelledLogs, ...]) -> None:
    """BadRequestError: a setting without a log, or a log named twice, which would count as a repeat."""
    found, seen = list[BadRequestError](), set[Path]()
    for label, log in ((job.label, log) for job in jobs for log in job.logs):
        path = Path(log).absolute()
        if not log:
            found.append(BadRequestError(f"--log {label}=: no file", remedy=f"name a file: --log '{label}=a.log'"))
        elif path in seen:
            found.append(BadRequestError(f"--log {log}: is named twice", remedy="name every log once"))
        seen.add(path)
    raise_all(found)


_SIZE = re.compile(r"^\s*(num_layers|hidden_size) \.{2,80} (\d{1,7})$")
_HEAD_LINES = 50_000  # trainers print their arguments before the first iteration
_MOST_RECIPES = 3


def without_recipe(jobs: Sequence[LabelledLogs], gpu: str | None, recipes: Path | None) -> SeveralMatchError:
    """Return the error of an import without a recipe, or without a GPU type where the log prints its arguments, with commands to copy.

    They name the recipes with the layers and the hidden size that the first log prints, else placeholders.
    """
    log = jobs[0].logs[0]
    if not (gpu or jobs[0].label) and logged_arguments(jobs[0].logs) is not None:
        wanted = f"a log does not contain its GPU type; name it with -g ({log} prints all other settings)"
        return SeveralMatchError(wanted, choices=(("-g", "GPU"),))
    layers, hidden = _size_of(log)
    alike = []
    if layers and hidden:
        for file in all_recipe_files(recipes_dir(recipes)):
            model = full_model(load_recipe(file.path, file.label))
            if file.name and (model.num_layers, model.hidden_size) == (layers, hidden):
                alike.append(file.name)
    size = f": {log} has {layers} layers and hidden size {hidden}" if alike else ""
    where = () if gpu else ("-g", "GPU")
    choices = tuple(("-mr", name, *where) for name in alike[:_MOST_RECIPES] or ["RECIPE"])
    return SeveralMatchError(
        f"a log does not contain its recipe{size}; name one with -mr or --sweep, or your file, e.g. with --bridge_config",
        choices=choices,
    )


def _size_of(log: str) -> tuple[int | None, int | None]:
    """Return layers and hidden size, None where the log does not print them, cannot be read, or is standard input or a pipe."""
    found: dict[str, int] = {}
    if not is_stream(log):
        with suppress(BadRequestError):
            for line in islice(log_lines([log]), _HEAD_LINES):
                if match := _SIZE.match(line.text):
                    found[match[1]] = int(match[2])
                if len(found) == 2:
                    break
    return found.get("num_layers"), found.get("hidden_size")


def start_of(written: str | None) -> datetime | None:
    """Read a start time. BadRequestError: it is no valid time, or it is in the future."""
    if written is None:
        return None
    try:
        when = utc_time(written)
    except ValueError as error:
        raise BadRequestError(f"--started_at {written!r}: not a time", remedy="e.g. 2025-01-31T22:15:00Z") from error
    if when > datetime.now(UTC):
        raise BadRequestError(
            f"--started_at {written}: is in the future",
            remedy="the time is in UTC unless it names a zone: 2025-01-31T22:15:00-08:00",
        )
    return when


def labelled(values: Iterable[str]) -> tuple[LabelledLogs, ...]:
    """Group the values of `--log` by job. A file without a setting belongs to the job before it."""
    jobs: list[LabelledLogs] = []
    for value in values:
        label, path = _split(value)
        if label or not jobs:
            jobs.append(LabelledLogs(label, (path,)))
        else:
            jobs[-1] = LabelledLogs(jobs[-1].label, (*jobs[-1].logs, path))
    return tuple(jobs)


def _split(value: str) -> tuple[str, str]:
    """Split ``core_attn pp=8=runs/c.log`` at the first ``=`` before an existing file, else at the last."""
    if "=" not in value or Path(value).exists():
        return "", value
    parts = value.split("=")
    cuts = [("=".join(parts[:at]), "=".join(parts[at:])) for at in range(1, len(parts))]
    return next((cut for cut in cuts if Path(cut[1]).exists()), cuts[-1])


Values = Mapping[str, str]


def setting_of(label: str) -> dict[str, str]:
    """Return ``mlp,core_attn pp=8`` as values by axis; a word without ``=`` is the recompute setting."""
    try:
        words = shlex.split(label)
    except ValueError as error:
        raise BadRequestError(f"--log {label}: {error}", remedy="quote values that contain blanks") from error
    pairs = [word.partition("=") if "=" in word else (RECOMPUTE, "=", word) for word in words]
    names = [name for name, _, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise BadRequestError(
            f"--log {label}: {twice} is given twice", remedy="join modules with commas: mlp,core_attn"
        )
    return {name: value for name, _, value in pairs}


def axes_of(labels: Sequence[Values]) -> tuple[SweptAxis, ...]:
    """Return every axis in the labels, with its values in order. BadRequestError: a setting cannot be varied."""
    names = dict.fromkeys(name for values in labels for name in values)
    given = [(name, tuple(dict.fromkeys(v[name] for v in labels if name in v))) for name in names]
    try:
        return read_axes(given)
    except BadRequestError as error:
        raise ManyProblemsError(
            [BadRequestError(each.message.replace("--over", "--log", 1), remedy=each.remedy) for each in error.problems]
        ) from error


def canonical(labels: Sequence[Values], axes: tuple[SweptAxis, ...]) -> list[Values]:
    """Return the labels with the axes' spelling of every name and value."""
    names = dict.fromkeys(name for values in labels for name in values)
    spelled = dict[tuple[str, str], tuple[str, str]]()
    for name, axis in zip(names, axes, strict=True):
        written = dict.fromkeys(values[name] for values in labels if name in values)
        spelled |= {(name, value): (axis.name, spelling) for value, spelling in zip(written, axis.values, strict=True)}
    return [dict(spelled[pair] for pair in values.items()) for values in labels]


_ENV = "env."


@dataclass(frozen=True)
class Labelled:
    """A job. ``values``: its label's values by axis; ``settled``: all its settings."""

    label: str
    values: dict[str, str]
    settled: Settled


def require_distinct(jobs: Sequence[Labelled], axes: Sequence[SweptAxis]) -> None:
    """BadRequestError: two jobs have different labels but the same settings.

    Jobs with the same label are repeats.
    """
    problems, known = Problems(), dict[tuple[str, ...], Labelled]()
    for job in jobs:
        spec = job.settled.spec
        before = known.setdefault((spec.fingerprint, *(axis.read(spec) for axis in axes)), job)
        if before.values != job.values:
            problems.found.append(_problem(before, job, axes))
    problems.raise_if_any()


def _problem(first: Labelled, second: Labelled, axes: Sequence[SweptAxis]) -> BadRequestError:
    differing = [axis for axis in axes if first.values.get(axis.name) != second.values.get(axis.name)]
    silent = [(axis, job) for axis in differing for job in (first, second) if axis.name not in job.values]
    why = [f"{job.settled.sources.get(axis.leaf, 'the recipe')} sets {_written(axis, job)}" for axis, job in silent]
    ways = [
        f"if the job {shlex.quote(job.label)} ran with another value: {_otherwise(axis, job)}" for axis, job in silent
    ]
    reason = f": {'; '.join(why)}" if why else ""
    return BadRequestError(
        f"--log {shlex.quote(first.label)} and --log {shlex.quote(second.label)} are the same settings{reason}",
        remedy="; ".join([*ways, "if they are repeats, give both the same label"]),
    )


def _written(axis: SweptAxis, job: Labelled) -> str:
    value = axis.read(job.settled.spec)
    return value if axis.name == RECOMPUTE else f"{axis.name}={value}"


def _otherwise(axis: SweptAxis, job: Labelled) -> str:
    if axis.target.startswith(_ENV):
        return f"-E {axis.target.removeprefix(_ENV)}= (without it) or -E {axis.target.removeprefix(_ENV)}=VALUE"
    name = "SETTING" if axis.name == RECOMPUTE else f"{axis.name}=VALUE"
    return f"--log {shlex.quote(f'{job.label} {name}')}=PATH"
