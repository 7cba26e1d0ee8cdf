"""Many ranks failed: which one failed by itself, by the kind of its evidence first and by time after that."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from harness.judging.oom.classify import Ending, classify
from harness.judging.oom.failure_scan import FailureScan, RankFailure
from harness.judging.oom.failure_signs import KINDS, SRUN
from harness.judging.oom.verdict import OomVerdict
from harness.records.logs.lines import LogLine
from harness.records.redact import redact

_SIGKILL = -9  # how the kernel ends a process when host memory runs out
__all__ = ["FirstFailure", "RankFailure", "first_failure"]


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """``failure`` came first; ``also`` failed the same way, ``victims`` by weaker evidence. ``verdict``: its OOM class."""

    failure: RankFailure
    verdict: OomVerdict
    also: tuple[RankFailure, ...] = ()
    victims: tuple[RankFailure, ...] = ()


def first_failure(lines: Iterable[LogLine], *, device_bytes: int | None = None) -> FirstFailure | None:
    """The rank that really failed: out of memory, then a signal, then a Python error, then a lost peer; of these the first.

    None where no line shows a failure. ``device_bytes``: the memory of the job's GPUs, where that is known. Lines are read
    once; what is kept grows with the number of ranks only.
    """
    scan = FailureScan()
    for line in lines:
        scan.feed(line)
    return _judged(scan, device_bytes)


def _judged(scan: FailureScan, device_bytes: int | None) -> FirstFailure | None:
    failures = _that_tell_more([_placed(failure, scan) for failure in scan.found.values()], scan)
    if not failures:
        return None
    by_rank = _strongest_of_each(failures)
    strongest = min(KINDS.index(failure.kind) for failure in by_rank)
    same = [failure for failure in by_rank if KINDS.index(failure.kind) == strongest]
    first = _earliest(same)
    ending = Ending(
        exit_code=first.exit_code,
        expandable_segments=scan.expandable_segments,
        device_bytes=device_bytes,
        has_traceback=first.kind == "error" and first.weight == 0,
    )
    return FirstFailure(
        failure=_without_secrets(_with_listing(first, failures)),
        verdict=classify(first.text, ending),
        also=tuple(_without_secrets(failure) for failure in same if failure is not first),
        victims=tuple(_without_secrets(failure) for failure in by_rank if KINDS.index(failure.kind) != strongest),
    )


def _without_secrets(failure: RankFailure) -> RankFailure:
    """As it may be recorded and shown: logs of others hold what their programs printed."""
    evidence = tuple(replace(line, text=redact(line.text)) for line in failure.evidence)
    return replace(failure, text=redact(failure.text), evidence=evidence)


def _placed(failure: RankFailure, scan: FailureScan) -> RankFailure:
    """Of a failure without a rank, torchrun's table tells it where one rank alone ended that way."""
    if failure.after_step is None:
        failure = replace(failure, after_step=scan.largest_step)
    if failure.rank is not None or failure.kind == "peer":
        return failure
    if failure.exit_code is not None:
        own = _listed(scan, failure.exit_code)
    elif failure.kind == "oom":
        own = _listed(scan, None) or _listed(scan, _SIGKILL)
    else:
        own = _listed(scan, None)
    if len(own) != 1:
        return failure
    rank, host = own.pop()
    return replace(failure, rank=rank, host=failure.host or host)


def _listed(scan: FailureScan, exit_code: int | None) -> set[tuple[int | None, str | None]]:
    """Ranks of torchrun's table that ended with ``exit_code``; None for those that ended by an error of their own."""
    return {
        (entry.sign.rank, entry.host)
        for entry in scan.listed
        if (entry.sign.kind == "error" if exit_code is None else entry.sign.exit_code == exit_code)
    }


def _that_tell_more(failures: list[RankFailure], scan: FailureScan) -> list[RankFailure]:
    """Without exit codes of nobody where torchrun listed somebody's, and without srun's where a rank spoke for itself."""
    spoke = any(failure.weight == 0 and failure.kind != "peer" for failure in failures)
    return [
        failure
        for failure in failures
        if not (scan.listed and failure.exit_code is not None and failure.rank is None)
        and not (failure.weight == SRUN and (scan.listed or spoke))
    ]


def _strongest_of_each(failures: list[RankFailure]) -> list[RankFailure]:
    """One failure per rank, in the order in which ranks were first seen; those without a rank each for themselves.

    SIGABRT is how torch ends a process whose peers are gone: where a rank said that before, the signal tells nothing.
    """
    lost = {failure.rank for failure in failures if failure.kind == "peer" and failure.rank is not None}
    best: dict[object, RankFailure] = {}
    for index, failure in enumerate(failures):
        if failure.kind == "signal" and failure.exit_code in (-6, 134) and failure.rank in lost:
            continue
        key: object = ("unknown", index) if failure.rank is None else failure.rank
        if key not in best or _strength(failure) < _strength(best[key]):
            best[key] = failure
    return list(best.values())


def _strength(failure: RankFailure) -> tuple[int, int]:
    return KINDS.index(failure.kind), failure.weight


def _earliest(failures: list[RankFailure]) -> RankFailure:
    """By weight, then by time where all have one, then by the last finished step, then as they were read."""
    least = min(failure.weight for failure in failures)
    told = [failure for failure in failures if failure.weight == least]
    timed = all(failure.time for failure in told)
    return min(told, key=lambda failure: (failure.time or "" if timed else "", failure.after_step or 0))


def _with_listing(first: RankFailure, failures: list[RankFailure]) -> RankFailure:
    """The same failure with what torchrun's table and others say of that rank as further evidence."""
    lines = [failure.evidence[0] for failure in failures if failure.rank == first.rank is not None and failure.weight]
    more = tuple(line for line in lines if line not in first.evidence)
    return replace(first, evidence=(*first.evidence, *more[:3]))
