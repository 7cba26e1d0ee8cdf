"""The request of an import: the logs of one job, its settings, and what to name where these are missing."""

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from harness.errors import BadRequestError, SeveralMatchError
from harness.foreign.logs.lines import log_lines
from harness.foreign.logs.sources import is_stream
from harness.measure.logged import logged_arguments
from harness.records.gating import GateOptions
from harness.resolve.find import all_recipe_files, recipes_dir
from harness.resolve.listing import full_model
from harness.resolve.recipe import Request
from harness.resolve.recipe_file import load_recipe
from harness.units import utc_time


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """The logs of one job, its settings, its start ``started_at`` if given, and how to judge it."""

    logs: tuple[str, ...]
    asked: Request
    gate: GateOptions
    started_at: datetime | None = None
    results_dir: Path | None = None


_SIZE = re.compile(r"^\s*(num_layers|hidden_size) \.{2,80} (\d{1,7})$")
_HEAD_LINES = 50_000  # trainers print their arguments before the first iteration
_MOST_RECIPES = 3


def require_job(logs: tuple[str, ...], asked: Request, recipes: Path | None) -> None:
    """Raise BadRequestError, with commands to copy, where neither a recipe nor a log's arguments and a GPU are known.

    The commands name the recipes with the layers and the hidden size that the first log prints, else placeholders.
    """
    prints_arguments = not asked.job_name and logged_arguments(logs) is not None
    if asked.job_name or (asked.gpu and prints_arguments):
        return
    log = logs[0]
    if prints_arguments:
        wanted = f"a log does not contain its GPU type; name it with -g ({log} prints all other settings)"
        raise SeveralMatchError(wanted, choices=(("-g", "GPU"),))
    layers, hidden = _size_of(log)
    alike = []
    if layers and hidden:
        for file in all_recipe_files(recipes_dir(recipes)):
            model = full_model(load_recipe(file.path, file.label))
            if file.name and (model.num_layers, model.hidden_size) == (layers, hidden):
                alike.append(file.name)
    size = f": {log} has {layers} layers and hidden size {hidden}" if alike else ""
    where = () if asked.gpu else ("-g", "GPU")
    choices = tuple(("-mr", name, *where) for name in alike[:_MOST_RECIPES] or ["RECIPE"])
    raise SeveralMatchError(
        f"a log does not contain its recipe{size}; name one with -mr, or your file, e.g. with --bridge_config",
        choices=choices,
    )


def _size_of(log: str) -> tuple[int | None, int | None]:
    """Return layers and hidden size; None where the log does not print them, cannot be read, or is a pipe."""
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
