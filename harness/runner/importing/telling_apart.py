"""Jobs whose settings are written differently and mean the same, so that their logs would pass for repeats of one job."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import BadRequestError
from harness.recipes.problems import Problems
from harness.runner.sweep.axes import RECOMPUTE, SweptAxis
from harness.runner.understanding import Settled

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
    why = [f"{_source(axis, job)} sets {_written(axis, job)}" for axis, job in silent]
    ways = [f"if the job of {shlex.quote(job.label)} ran otherwise: {_otherwise(axis, job)}" for axis, job in silent]
    told = f", for {'; '.join(why)}" if why else ""
    return BadRequestError(
        f"--log {shlex.quote(one.label)} and --log {shlex.quote(other.label)} are the same settings{told}",
        remedy="; ".join([*ways, "if they are repeats, write their settings alike"]),
    )


def _source(axis: SweptAxis, job: Labelled) -> str:
    return job.settled.sources.get(axis.leaf, "the recipe")


def _written(axis: SweptAxis, job: Labelled) -> str:
    value = axis.read(job.settled.spec)
    return value if axis.name == RECOMPUTE else f"{axis.name}={value}"


def _otherwise(axis: SweptAxis, job: Labelled) -> str:
    if axis.target.startswith(_ENV):
        return f"-E {axis.target.removeprefix(_ENV)}= (without it) or -E {axis.target.removeprefix(_ENV)}=VALUE"
    name = "SETTING" if axis.name == RECOMPUTE else f"{axis.name}=VALUE"
    return f"--log {shlex.quote(f'{job.label} {name}')}=PATH"
