"""Options of `--launcher slurm`, and their way into the one value that the logic takes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from harness.errors import BadRequestError, raise_all

if TYPE_CHECKING:
    from harness.records.job import SlurmRequest

_SLURM = "Slurm (with --launcher slurm)"
_TIME = re.compile(r"(?:(?P<days>\d{1,3})-)?(?P<hours>\d{1,4}):(?P<minutes>[0-5]?\d):(?P<seconds>[0-5]?\d)")
_MINUTES = re.compile(r"\d{1,7}")
_Gpus = Literal["gpus-per-node", "gres", "none"]


def _option(*names: str, help: str, metavar: str | None = None) -> typer.models.OptionInfo:
    return typer.Option(*names, help=help, rich_help_panel=_SLURM, metavar=metavar)  # type: ignore[no-any-return]


# fmt: off
@dataclass(frozen=True, kw_only=True)
class SlurmLaunchOptions:
    """What Slurm is asked for. None and False: not said."""

    time_limit: Annotated[str | None, _option("--time_limit", metavar="MINUTES|HH:MM:SS",
        help="After this Slurm ends the job. Mandatory; whole minutes, rounded up.")] = None
    partition: Annotated[str | None, _option("--partition", metavar="NAME", help="Slurm's --partition.")] = None
    account: Annotated[str | None, _option("--account", metavar="NAME", help="Slurm's --account.")] = None
    qos: Annotated[str | None, _option("--qos", metavar="NAME", help="Slurm's --qos.")] = None
    reservation: Annotated[str | None, _option("--reservation", metavar="NAME", help="Slurm's --reservation.")] = None
    constraint: Annotated[str | None, _option("--constraint", metavar="FEATURES", help="Slurm's --constraint.")] = None
    slurm_gpus: Annotated[str | None, _option("--slurm_gpus", metavar="HOW",
        help="How GPUs are asked for: gpus-per-node (default), gres, or none where Slurm knows no GPUs.")] = None
    no_exclusive: Annotated[bool, _option("--no_exclusive",
        help="Share the nodes with other jobs: what is measured is then theirs too.")] = False
    segment: Annotated[int | None, _option("--segment", metavar="N", help="Slurm's --segment: nodes per NVLink domain.")] = None
    container_image: Annotated[str | None, _option("--container_image", metavar="IMAGE",
        help="Run in this container (pyxis). mbr-perf must be importable there by --slurm_python; results and the checkout are mounted.")] = None
    container_mounts: Annotated[list[str] | None, _option("--container_mounts", metavar="SRC:DST",
        help="Further mounts of the container. Repeatable.")] = None
    slurm_python: Annotated[str | None, _option("--slurm_python", metavar="PATH",
        help="The Python that runs mbr-perf on the nodes. Default: the one in use here; python3 in a container.")] = None
    pending_timeout: Annotated[int | None, _option("--pending_timeout", metavar="MINUTES",
        help="Cancel a job that has not started by then. Default: wait.")] = None
    detach: Annotated[bool, _option("--detach", help="Submit and return; `mbr-perf jobs wait` collects and judges.")] = False
    no_submit: Annotated[bool, _option("--no_submit", help="Write the job's files and stop; `mbr-perf jobs submit` submits them.")] = False
# fmt: on


@dataclass(frozen=True, kw_only=True)
class SlurmArrayOptions(SlurmLaunchOptions):
    """Those of a sweep: also one task of an array per cell."""

    array: Annotated[bool, _option("--array", help="One task of a job array per cell, instead of one job for all.")] = (
        False
    )


def slurm_request(launcher: str, given: SlurmLaunchOptions, local: Mapping[str, object]) -> "SlurmRequest | None":
    """The options as one value; None for another launcher.

    ``local``: options that say which nodes take part, by name, where they are not as they are by default. BadRequestError,
    all at once, for options that contradict each other or the launcher.
    """
    if launcher != "slurm":
        said = _said(given)
        if said:
            raise BadRequestError(f"{', '.join(said)}: only with --launcher slurm", remedy="add it, or leave them out")
        return None
    problems = [*_local_problems(local), *_value_problems(given)]
    minutes = 1
    try:
        minutes = limit_minutes(given.time_limit)
    except BadRequestError as error:
        problems.append(error)
    raise_all(problems)
    return _request(given, minutes)


def limit_minutes(text: str | None) -> int:
    """``30``, ``01:30:00`` or ``1-12:00:00`` in whole minutes, rounded up. BadRequestError for what is none of these."""
    remedy = "--time_limit 30 (minutes) or 01:30:00"
    if text is None:
        raise BadRequestError(
            "--launcher slurm needs a time limit: a job without one may hold its nodes for ever", remedy=remedy
        )
    match = _TIME.fullmatch(text)
    if match:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        total = days * 1440 + hours * 60 + minutes + (seconds > 0)
    else:
        total = int(text) if _MINUTES.fullmatch(text) else 0
    if total < 1:
        raise BadRequestError(f"--time_limit {text!r} is no time of a minute or more", remedy=remedy)
    return total


def _request(given: SlurmLaunchOptions, minutes: int) -> "SlurmRequest":
    from harness.records.job import SlurmOptions, SlurmRequest

    options = SlurmOptions(
        time_limit_minutes=minutes,
        partition=given.partition,
        account=given.account,
        qos=given.qos,
        reservation=given.reservation,
        constraint=given.constraint,
        gpus=_gpus(given.slurm_gpus) or "gpus-per-node",
        exclusive=not given.no_exclusive,
        segment=given.segment,
        container_image=given.container_image,
        container_mounts=tuple(given.container_mounts or ()),
        python=given.slurm_python,
        pending_timeout_minutes=given.pending_timeout,
    )
    array = isinstance(given, SlurmArrayOptions) and given.array
    return SlurmRequest(options=options, submit=not given.no_submit, detach=given.detach, array=array)


def _said(given: SlurmLaunchOptions) -> list[str]:
    return [f"--{field.name}" for field in fields(given) if getattr(given, field.name) not in (None, False)]


def _local_problems(local: Mapping[str, object]) -> list[BadRequestError]:
    said = [f"--{name}" for name, value in local.items() if value is not None]
    if not said:
        return []
    remedy = "leave them out: Slurm gives the nodes, as many as --num_gpus and --gpus_per_node need"
    return [BadRequestError(f"{', '.join(said)} cannot be said with --launcher slurm", remedy=remedy)]


def _gpus(text: str | None) -> _Gpus | None:
    return next((word for word in get_args(_Gpus) if word == text), None)


def _value_problems(given: SlurmLaunchOptions) -> list[BadRequestError]:
    problems = [
        BadRequestError(f"--{name} {value} must be at least 1")
        for name, value in (("segment", given.segment), ("pending_timeout", given.pending_timeout))
        if value is not None and value < 1
    ]
    if given.slurm_gpus is not None and _gpus(given.slurm_gpus) is None:
        known = ", ".join(get_args(_Gpus))
        problems.append(BadRequestError(f"--slurm_gpus {given.slurm_gpus!r}: no such way", remedy=f"one of {known}"))
    if given.detach and given.no_submit:
        problems.append(BadRequestError("--detach and --no_submit exclude each other", remedy="leave one of them out"))
    return problems
