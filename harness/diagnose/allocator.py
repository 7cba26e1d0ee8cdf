"""Says whether other settings of torch's allocator would have kept a job from running out of memory."""

from collections.abc import Iterator
from dataclasses import dataclass

from harness.diagnose.stages import available_bytes, unexplained_bytes
from harness.diagnose.values import AllocatorAnswer, Case, Remedy, Trial
from harness.experiment.software import ALLOCATOR_NAMES
from harness.failures.verdict import THRESHOLDS, Confidence
from harness.launch.environment_rows import EXPANDABLE_SEGMENTS
from harness.predict.allocator_settings import asked_settings
from harness.records.prediction import Source
from harness.units import format_bytes

SPLITS = ("max_split_size_mb:512", "max_split_size_mb:128")
# Above this share of the device, a need that the prediction does not explain makes a replay less sure.
_EXPLAINED = 0.02
# A smaller share of the device is no difference: so well do replays agree with real ranks.
_NOISE = 0.005


@dataclass(frozen=True, slots=True)
class Trials:
    """Replays of the failed rank's stage; ``is_own_known``: whether the job's own settings are."""

    rows: tuple[Trial, ...]
    source: Source
    is_own_known: bool


def answer_of(case: Case, trials: Trials | None = None) -> AllocatorAnswer | None:
    """Judge the message of the failure, and replays where there are any; None without figures of the device."""
    figures = case.verdict.figures
    reserved = figures.reserved_bytes if figures else None
    if not case.on_device or figures is None or reserved is None:
        return None
    tried, free, allocated = figures.tried_bytes, figures.free_bytes, figures.allocated_bytes
    if tried is None or free is None or allocated is None:
        return None
    available, needed = available_bytes(case) or 0, allocated + tried
    remedy, settings, sure, missing = _found(case, trials, available, needed)
    held = next((row.reserved_bytes for row in case.ranks if case.failed and row.rank == case.failed.rank), None)
    found = AllocatorAnswer(
        available_bytes=available,
        needed_bytes=needed,
        stranded_bytes=reserved - allocated,
        given_back_bytes=None if held is None else max(0, held - reserved),
        missing_bytes=missing,
        remedy=remedy,
        settings=settings,
        confidence=sure,
        source=trials.source if trials else "message",
        excluded=case.pools,
        trials=trials.rows if trials else (),
        reason="",
    )
    return found.model_copy(update={"reason": _conclusion(found, is_captured=case.is_captured)})


def _found(case: Case, trials: Trials | None, available: int, needed: int) -> tuple[Remedy, str, Confidence, int]:
    if needed > available + THRESHOLDS["rounding_bytes"]:
        return "less_memory", "", "high", needed - available
    own, *others = trials.rows if trials else (None,)
    freeing = [row for row in others if own and own.fits_bytes - row.fits_bytes > _NOISE * available]
    if own is not None and not own.helps:
        helpful = next((row.settings for row in freeing if row.helps), "")
        least = min(row.fits_bytes for row in (own, *others))
        return _remedy(helpful), helpful, _sure(case, trials, available), max(0, least - available)
    return _guessed(case, trials, freeing)


def _guessed(case: Case, trials: Trials | None, freeing: list[Trial]) -> tuple[Remedy, str, Confidence, int]:
    if case.expandable_segments or not _is_in_pieces(case):
        return "less_memory", "", "low", 0
    guess = trials.rows[1].settings if trials and trials.rows[1:] else EXPANDABLE_SEGMENTS
    if case.pools:
        best = min(freeing, key=lambda row: row.fits_bytes, default=None)
        guess = best.settings if best else "" if trials else SPLITS[-1]
    is_certain = (case.verdict.oom_class, case.verdict.confidence) == ("fragmentation", "high")
    is_sure = guess and is_certain and (trials is not None or not case.pools)
    return _remedy(guess), guess, "medium" if is_sure else "low", 0


def _is_in_pieces(case: Case) -> bool:
    """Return whether free pieces of reserved memory hold the request; where they are many, with free memory."""
    figures = case.verdict.figures
    if figures is None or case.verdict.oom_class == "fragmentation":
        return case.verdict.oom_class == "fragmentation"
    pieces, tried, total = figures.unallocated_bytes or 0, figures.tried_bytes or 0, figures.total_bytes or 0
    if pieces >= THRESHOLDS["surely_fragmented_share"] * total:
        return pieces + (figures.free_bytes or 0) >= tried
    return case.verdict.recompute_helps and pieces >= max(tried, THRESHOLDS["slightly_fragmented_share"] * total)


def _remedy(settings: str) -> Remedy:
    if EXPANDABLE_SEGMENTS in settings:
        return "expandable_segments"
    return "max_split_size_mb" if settings else "less_memory"


def _sure(case: Case, trials: Trials | None, available: int) -> Confidence:
    if trials is None or trials.source == "estimated" or (case.spec and case.spec.is_routed_naturally):
        return "low"
    is_explained = (unexplained_bytes(case) or 0) <= _EXPLAINED * available
    return "high" if is_explained and trials.is_own_known else "medium"


def _conclusion(found: AllocatorAnswer, *, is_captured: bool) -> str:
    if is_captured:
        return f"A capture gives no cached memory back: {format_bytes(found.stranded_bytes)} stay reserved."
    if found.needed_bytes > found.available_bytes + THRESHOLDS["rounding_bytes"]:
        needed, available = map(format_bytes, (found.needed_bytes, found.available_bytes))
        return f"No setting of it helps: tensors need {needed} of {available}."
    if found.settings:
        return f"{found.settings} would help ({found.confidence})."
    less = f"{format_bytes(found.missing_bytes)} less" if found.missing_bytes else "less memory"
    return f"No setting of it helps ({found.confidence}): the job must use {less}."


def account_of(found: AllocatorAnswer, *, is_captured: bool) -> Iterator[str]:
    """Yield what the answer follows from."""
    if not is_captured:
        earlier = f"; earlier it returned {format_bytes(found.given_back_bytes)}" if found.given_back_bytes else ""
        stranded = format_bytes(found.stranded_bytes)
        yield f"torch could return no memory to the device: {stranded} are free, but beside live blocks{earlier}."
    if found.trials:
        rows = "; ".join(f"{row.settings or 'defaults'}: {format_bytes(row.fits_bytes)}" for row in found.trials)
        available = format_bytes(found.available_bytes)
        yield f"The allocator could have {available}; the first steps need, {found.source}: {rows}."
    if found.excluded:
        yield f"Expandable segments do not work beside {found.excluded}."


def own_settings(case: Case) -> str:
    """Return the allocator's settings of the job as far as they are known; empty for torch's defaults."""
    assert case.spec is not None
    if not case.has_given_settings:
        return asked_settings(case.spec)[1]
    given = dict(case.sources)
    name = next((each for each in ALLOCATOR_NAMES if given.get(f"env.{each}", "").startswith("--")), None)
    if name is not None:
        return case.spec.env[name]
    return f"expandable_segments:{case.expandable_segments}" if case.expandable_segments is not None else ""


def replaced_by(own: str, setting: str) -> str:
    """Return ``own`` with ``setting`` in place of expandable segments and the split size; other parts stay."""
    kept = [
        part
        for part in map(str.strip, own.split(","))
        if part and not part.startswith(("expandable_segments", "max_split"))
    ]
    return ",".join((*kept, setting))
