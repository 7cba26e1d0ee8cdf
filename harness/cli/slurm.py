"""Checks the options of a Slurm job."""

import re
from collections.abc import Mapping
from typing import get_args

from harness.cli.options import SlurmLaunchOptions
from harness.errors import BadRequestError, Problems
from harness.records.job import SlurmOptions

_TIME = re.compile(r"(?:(?P<days>\d{1,3})-)?(?P<hours>\d{1,4}):(?P<minutes>[0-5]?\d):(?P<seconds>[0-5]?\d)")
_MINUTES = re.compile(r"\d{1,7}")


def checked_minutes(given: SlurmLaunchOptions, local: Mapping[str, object]) -> int:
    """Return the time limit in minutes. BadRequestError, all at once, for options that contradict each other.

    ``local``: the options that choose the nodes, by name; None for a default.
    """
    problems = Problems()
    if names := [f"--{name}" for name, value in local.items() if value is not None]:
        remedy = "leave them out: --num_gpus and --gpus_per_node decide how many nodes"
        problems.add(f"{', '.join(names)} cannot be combined with --launcher slurm", remedy)
    for name, value in (("segment", given.segment), ("pending_timeout", given.pending_timeout_minutes)):
        if value is not None and value < 1:
            problems.add(f"--{name} {value} must be at least 1", "")
    ways = get_args(SlurmOptions.model_fields["gpus"].annotation)
    if given.gpus is not None and given.gpus not in ways:
        problems.add(f"--slurm_gpus {given.gpus!r}: no such value", f"one of {', '.join(ways)}")
    if given.detach and given.no_submit:
        problems.add("--detach and --no_submit exclude each other", "leave one of them out")
    return problems.having(problems.tried(lambda: limit_minutes(given.time_limit)))


def limit_minutes(text: str | None) -> int:
    """Return ``30``, ``01:30:00`` or ``1-12:00:00`` in whole minutes, rounded up.

    BadRequestError for any other text.
    """
    remedy = "--time_limit 30 (minutes) or 01:30:00"
    if text is None:
        raise BadRequestError("--launcher slurm needs a time limit", remedy=remedy)
    match = _TIME.fullmatch(text)
    if match:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        total = days * 1440 + hours * 60 + minutes + (seconds > 0)
    else:
        total = int(text) if _MINUTES.fullmatch(text) else 0
    if total < 1:
        raise BadRequestError(f"--time_limit {text!r} must be a time of at least one minute", remedy=remedy)
    return total
