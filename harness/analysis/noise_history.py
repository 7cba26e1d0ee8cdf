"""The nights in history that tell how noisy a case is today."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from harness.analysis.likeness import SOFTWARE, measured_device
from harness.analysis.noise import KnownNoise, known_noise
from harness.errors import BadRequestError
from harness.planning.flops import FORMULA_VERSION
from harness.records.history import HistoryRecord
from harness.records.history_files import started
from harness.records.run import RunRecord

# Nights with a regression are of another level; of those that failed nothing is known.
_TELLING = ("pass", "improvement", "inconclusive")


def noise_of(
    history: Sequence[HistoryRecord], metric: str, like: RunRecord, *, since: str | None, before: str | None = None
) -> KnownNoise | None:
    """The noise of ``metric`` in nights of the settings, device and software of ``like``; None from fewer than two runs.

    Only runs that ended well and are not suspect count, of nights whose case was no regression. ``since``: when the
    golden was promoted; ``before``: when tonight began (UTC ISO-8601, None: no limit).
    """
    nights: dict[str, list[float]] = {}
    for record in sorted(_telling(history, like, since, before), key=started):
        figure = record.metrics.get(metric)
        if figure is not None and figure.value > 0:
            nights.setdefault(record.night_id, []).append(figure.value)
    return known_noise(list(nights.values()))


def _telling(
    history: Sequence[HistoryRecord], like: RunRecord, since: str | None, before: str | None
) -> Iterable[HistoryRecord]:
    first, end = _moment(since), _moment(before)
    return [
        record
        for record in history
        if record.night_id
        and record.status == "ok"
        and not record.suspect
        and record.outcome in _TELLING
        and _is_like(record, like)
        and (first is None or started(record) >= first)
        and (end is None or started(record) < end)
    ]


def _is_like(record: HistoryRecord, like: RunRecord) -> bool:
    here = like.provenance
    return (
        record.fingerprint == like.fingerprint
        and record.formula_version == FORMULA_VERSION
        and record.device_name == measured_device(like)
        and record.driver_version == here.driver_version
        and all(record.versions.get(name) == here.versions.get(name) for name in SOFTWARE)
    )


def _moment(text: str | None) -> datetime | None:
    """BadRequestError for what is no time; without a zone it is UTC."""
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRequestError(f"{text!r}: not an ISO-8601 time") from error
    return when if when.tzinfo else when.replace(tzinfo=UTC)
