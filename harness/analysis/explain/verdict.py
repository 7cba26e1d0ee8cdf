"""What to know before any cause is read, and what to do after."""

from collections.abc import Iterator, Sequence

from harness.analysis.explain.changes import moved
from harness.analysis.explain.values import Cause, Change
from harness.analysis.metrics import METRICS
from harness.units import format_percent

_TITLES = {metric.name: metric.title for metric in METRICS}
_OF_THE_NODE = frozenset({"throttling or other clocks", "other processes on the GPU", "a slow rank"})


def verdict(changes: Sequence[Change], causes: Sequence[Cause]) -> tuple[str, ...]:
    """Whether there is anything to explain: noise first, then what cannot be known."""
    compared = [change for change in changes if change.change is not None]
    if not compared:
        return ("No metric has a figure on both sides: what differs is listed, not what it changed.",)
    changed = [change for change in compared if moved(change)]
    told = [*_noise(changed), *_unknown(changed)]
    if not changed:
        told.append(f"No change in {_listed(compared)}.")
    elif not any(cause.can_explain for cause in causes) and not all(change.is_noise for change in changed):
        told.append("Nothing that both sides recorded explains the change.")
    alone = [change for change in changes if change.change is None]
    return (*told, *([f"On one side only: {_listed(alone)}."] if alone else []))


def _noise(changed: Sequence[Change]) -> Iterator[str]:
    """One sentence per basis of what is known, with all the metrics that it excuses."""
    excused: dict[str, list[str]] = {}
    for change in changed:
        if change.is_noise:
            limit = f"±{(change.noise or 0) * 100:.1f} % ({change.basis})"
            excused.setdefault(limit, []).append(f"{_TITLES[change.metric]} {format_percent(change.change or 0)}")
    for limit, told in excused.items():
        yield f"There may be nothing to explain, equal runs differ by {limit}: {', '.join(told)}."


def _unknown(changed: Sequence[Change]) -> Iterator[str]:
    unknown = [change for change in changed if change.noise is None]
    if unknown:
        yield f"By how much equal runs differ is not known, neither side has repeats: {_listed(unknown)}."


def _listed(changes: Sequence[Change]) -> str:
    return ", ".join(_TITLES[change.metric] for change in changes)


def advice(changes: Sequence[Change], causes: Sequence[Cause], *, is_published: bool) -> tuple[str, ...]:
    """What to do next, most telling first; nothing where nothing moved. ``is_published``: it is held against such figures."""
    changed = [change for change in changes if moved(change)]
    disturbed = any(cause.can_explain and cause.name in _OF_THE_NODE for cause in causes)
    likely = [cause for cause in causes if cause.can_explain and cause.name not in _OF_THE_NODE]
    if not changed:
        return ()
    told = []
    if any(change.is_noise or change.noise is None for change in changed):
        told.append("repeat the run, three times or more, and compare with --repeat; nightly does so with --confirm")
    if disturbed:
        told.append("repeat it on another node, or here once it is idle and cool, before looking at anything else")
    if likely:
        told.append(f"change one thing back at a time, beginning with: {likely[0].name}")
    elif not disturbed:
        told.append("repeat it on another node; if the change stays, look at what is recorded on neither side")
    if is_published:
        told.append("promote a golden of your own runs: what a published figure does not say cannot be ruled out")
    return tuple(told)
