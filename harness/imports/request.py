"""The request of an import: the logs of one job, its settings, and what to name where these are missing."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import BadRequestError, SeveralMatchError
from harness.measure.logged import logged_arguments
from harness.records.gating import GateOptions
from harness.resolve.recipe import Request
from harness.units import utc_time


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """The logs of one job, its settings, its start ``started_at`` if given, and how to judge it."""

    logs: tuple[str, ...]
    asked: Request
    gate: GateOptions
    started_at: datetime | None = None
    results_dir: Path | None = None


def require_job(logs: tuple[str, ...], asked: Request) -> None:
    """Raise BadRequestError, with a command to copy, unless a recipe, or a GPU and the log's arguments, are known."""
    prints_arguments = not asked.job_name and logged_arguments(logs) is not None
    if asked.job_name or (asked.gpu and prints_arguments):
        return
    if prints_arguments:
        wanted = f"a log does not contain its GPU type; name it with -g ({logs[0]} prints all other settings)"
        raise SeveralMatchError(wanted, choices=(("-g", "GPU"),))
    raise SeveralMatchError(
        "a log does not contain its recipe; name one with -mr, or your file, e.g. with --bridge_config",
        choices=(("-mr", "RECIPE", *(() if asked.gpu else ("-g", "GPU"))),),
    )


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
