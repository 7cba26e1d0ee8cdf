"""The nights in history that tell how noisy a case is today."""

from collections.abc import Sequence
from datetime import datetime

from harness.errors import BadRequestError
from harness.judging.likeness import SOFTWARE, measured_device
from harness.night.history.files import started
from harness.night.history.record import HistoryRecord
from harness.night.noise import KnownNoise, known_noise
from harness.planning.flops import FORMULA_VERSION
from harness.records.run import RunRecord
from harness.units import utc_time

# Nights with a regression are of another level; of those that failed nothing is known.
_TELLING = ("pass", "improvement", "inconclusive")


def noise_of(
    history: Sequence[HistoryRecord], metric: str, like: RunRecord, *, since: str, before: str | None = None
) -> KnownNoise | None:
    """The noise of ``metric`` in nights of the settings, device and software of ``like``; None from fewer than two runs.

    Only runs that ended well and are not suspect count, of nights whose case was no regression and whose own A/A held.
    ``since``: when the
    golden was promoted; older nights tell of the noise, not of the level. ``before``: when tonight began (UTC ISO-8601,
    None: no limit).
    """
    end, promoted = (None if before is None else _moment(before)), _moment(since)
    nights: dict[tuple[str, str], list[float]] = {}  # of cases that share settings each its own
    older: set[tuple[str, str]] = set()
    for record in sorted(history, key=started):
        figure, when = record.metrics.get(metric), started(record)
        if figure is None or figure.value <= 0 or metric in record.voided:
            continue
        if not _tells(record, like) or (end is not None and when >= end):
            continue
        night = (record.night_id, record.suite_case)
        nights.setdefault(night, []).append(figure.value)
        if when < promoted:
            older.add(night)
    return known_noise(list(nights.values()), len(older))


def _tells(record: HistoryRecord, like: RunRecord) -> bool:
    ended_well = record.status == "ok" and not record.suspect and record.outcome in _TELLING
    return bool(record.night_id) and ended_well and _is_like(record, like)


def _is_like(record: HistoryRecord, like: RunRecord) -> bool:
    here = like.provenance
    return (
        record.fingerprint == like.fingerprint
        and record.formula_version == FORMULA_VERSION
        and record.device_name == measured_device(like)
        and record.driver_version == here.driver_version
        and all(record.versions.get(name) == here.versions.get(name) for name in SOFTWARE)
    )


def _moment(text: str) -> datetime:
    """BadRequestError for what is no time; without a zone it is UTC."""
    try:
        return utc_time(text)
    except ValueError as error:
        raise BadRequestError(f"{text!r}: not an ISO-8601 time") from error
