"""Finds the rank that failed first among many, by the kind of evidence and then by time."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from harness.failures.classify import Ending, classify, quoted
from harness.failures.collectives import some_ranks
from harness.failures.entries import KINDS, SRUN
from harness.failures.failure_scan import BUFFERED, FailureScan
from harness.failures.failure_signs import RankFailure
from harness.failures.verdict import Confidence, OomVerdict
from harness.foreign.logs.lines import LogLine
from harness.records.redact import redact
from harness.units import grouped

LOCAL_RANK = re.compile(r"\blocal_rank: {0,3}(\d{1,4})\b")
_SIGABRT = (-6, 134)  # as Python and as a shell count it
KILL_COUNT = "slurm_kill_count"
"""slurmstepd counts every process of a step that the kernel ended, also helpers and data loader workers."""
_SIGKILL = -9  # the kernel's signal when host memory runs out


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """``failure`` came first; of ``others``, those with weaker evidence last."""

    failure: RankFailure
    verdict: OomVerdict
    others: tuple[RankFailure, ...] = ()


def first_failure(lines: Iterable[LogLine]) -> FirstFailure | None:
    """Return the first failure by evidence and time; None without one, and where the job survived it."""
    scan = FailureScan()
    for line in lines:
        scan.feed(line)
    return failure_of(scan)


def failure_of(scan: FailureScan, device_bytes: int | None = None) -> FirstFailure | None:
    """As ``first_failure``, of the lines that ``scan`` was fed. ``device_bytes``: of the job's GPUs, if known."""
    scan.end_log()
    found = list(scan.found.values())
    if scan.survived and scan.num_after < BUFFERED and found and all(each.exit_code is not None for each in found):
        found.insert(0, scan.survived)  # exit codes do not say why
    elif all(map(_is_report, found)) and (alone := _without_failure(scan)):
        return alone
    failures = _with_best_evidence([_placed(failure, scan) for failure in found], scan)
    return _first_of(failures, scan, device_bytes) if failures else None


def _first_of(failures: list[RankFailure], scan: FailureScan, device_bytes: int | None) -> FirstFailure:
    by_rank = _strongest_of_each(failures)
    strongest = min(KINDS.index(failure.kind) for failure in by_rank)
    same = _distinct([failure for failure in by_rank if KINDS.index(failure.kind) == strongest])
    first = _earliest(same)
    verdict = classify(first.text, _ending(first, scan, device_bytes))
    if verdict.oom_class == "bad_size" and (earlier := _timeout_before(first, failures)):
        # A collective that was cut off leaves sizes that were never received.
        same, first = [earlier], earlier
        verdict = classify(first.text, _ending(first, scan, device_bytes))
        verdict = replace(verdict, reason=f"{verdict.reason}; the impossible size came after it")
        by_rank = [*same, *(failure for failure in by_rank if failure.rank != first.rank)]
    if verdict.entry == "collective_timeout":
        first, verdict = _waited(first, verdict, same, by_rank, scan)
    weaker = [failure for failure in by_rank if KINDS.index(failure.kind) != strongest]
    return FirstFailure(
        failure=_without_secrets(first),
        verdict=verdict,
        others=tuple(_without_secrets(failure) for failure in (*same, *weaker) if failure is not first),
    )


def _distinct(failures: list[RankFailure]) -> list[RankFailure]:
    """Drop what repeats the message of a rank without its prefix, and Slurm's count beside the task that it counts."""
    said = {failure.text for failure in failures if failure.who}
    has_task = any(failure.task is not None for failure in failures)
    return [
        failure
        for failure in failures
        if failure.who or not (failure.text in said or (has_task and failure.entry == KILL_COUNT))
    ]


def _timeout_before(failure: RankFailure, failures: list[RankFailure]) -> RankFailure | None:
    before = failures[: failures.index(failure)]
    for each in failures:
        is_in_order = each in before and each.evidence[0].source == failure.evidence[0].source
        is_before = each.time <= failure.time if each.time and failure.time else is_in_order
        if each.entry == "collective_timeout" and is_before:
            return each
    return None


def _ending(first: RankFailure, scan: FailureScan, device_bytes: int | None) -> Ending:
    return Ending(
        exit_code=first.exit_code,
        expandable_segments=scan.expandable_segments,
        device_bytes=device_bytes,
        has_traceback=first.kind == "error" and first.weight == 0,
        who=_who(first),
        moment=first.moment,
    )


def _without_failure(scan: FailureScan) -> FirstFailure | None:
    if scan.mention and (scan.cut is None or scan.found):
        verdict = OomVerdict.of_ending("mentioned", error=quoted(scan.mention.text))
        return FirstFailure(_without_secrets(scan.mention), verdict)
    if scan.cut and not scan.found:
        return FirstFailure(_without_secrets(scan.cut), OomVerdict.of_ending("cut"))
    return None


def _waited(
    first: RankFailure, verdict: OomVerdict, same: list[RankFailure], every: list[RankFailure], scan: FailureScan
) -> tuple[RankFailure, OomVerdict]:
    sure: Confidence = verdict.confidence
    if lag := scan.collectives.lag():
        named = replace(first, rank=lag.ranks[0], text=lag.line.text, evidence=(lag.line, *first.evidence))
        first = next((failure for failure in same if failure.rank == lag.ranks[0]), named)
        who, why, sure = f"rank {lag.ranks[0]}", lag.reason, "high" if lag.is_certain else "medium"
    elif who := _silent(every):
        why = f"{who} reported no time-out"
    else:
        return first, verdict
    advice = f"Read the log of {who} first. If it does not show why: {verdict.next_experiment}"
    return first, replace(verdict, confidence=sure, reason=f"{verdict.reason}; {why}", advice=advice)


def _silent(failures: list[RankFailure]) -> str:
    spoke = {failure.rank for failure in failures if failure.rank is not None}
    silent = sorted(set(range(max(spoke, default=0))) - spoke)
    return some_ranks(silent) if silent and 2 * len(silent) <= len(spoke) else ""


def survived_by(scan: FailureScan) -> RankFailure | None:
    """Return the failure after which the job trained on, without secrets; None if there was none."""
    return _without_secrets(scan.survived) if scan.survived else None


def _who(failure: RankFailure) -> str:
    rank = failure.who
    if not rank and (local := LOCAL_RANK.search(failure.text)):
        rank = f"local rank {local[1]}"
    return f"{rank} on {failure.host}" if rank and failure.host else rank


def _without_secrets(failure: RankFailure) -> RankFailure:
    evidence = tuple(replace(line, text=redact(line.text)) for line in failure.evidence)
    return replace(failure, text=redact(failure.text), evidence=evidence)


def _placed(failure: RankFailure, scan: FailureScan) -> RankFailure:
    if failure.after_step is None:
        failure = replace(failure, after_step=scan.largest_step)
    if failure.rank is not None or failure.kind == "peer":
        return failure
    own = _listed(scan, failure.exit_code)
    if not own and failure.kind == "oom":
        own = _listed(scan, _SIGKILL)
    if len(own) != 1:
        return failure
    rank, host = own.pop()
    return replace(failure, rank=rank, host=failure.host or host)


def _listed(scan: FailureScan, exit_code: int | None) -> set[tuple[int | None, str | None]]:
    return {
        (entry.rank, entry.host)
        for entry in scan.listed
        if (entry.kind == "error" if exit_code is None else entry.exit_code == exit_code)
    }


def _with_best_evidence(failures: list[RankFailure], scan: FailureScan) -> list[RankFailure]:
    """Drop exit codes that the error of a rank, or a rank's own report of why it waited, explains."""
    own = [failure for failure in failures if failure.weight <= 0]
    heard = {failure.rank for failure in own if failure.kind == "peer" and failure.entry != "lost_peer"}
    found = [each for each in failures if not (heard and _is_named(each, heard)) and not _is_abort_of(each, failures)]
    is_listed, has_error = bool(scan.listed), any(failure.kind != "peer" for failure in own)

    def is_known(code: RankFailure) -> bool:
        return (is_listed and code.rank is None) or (code.weight == SRUN and (has_error or is_listed))

    return [each for each in found if each.exit_code is None or not is_known(each)]


def _is_named(failure: RankFailure, heard: set[int | None]) -> bool:
    """Return whether one of the ranks that named why they waited says all that this report does."""
    is_heard = failure.rank is None or bool(heard & {None, failure.rank})
    return failure.entry == "watchdog_ended" or (_is_report(failure) and is_heard)


def _is_abort_of(failure: RankFailure, others: list[RankFailure]) -> bool:
    """Return whether it is SIGABRT of a process that said before why: torch aborts one that lost its peers."""
    if failure.kind != "signal" or failure.exit_code not in _SIGABRT:
        return False
    said = {each.rank for each in others if each.kind == "error" and each.weight <= 0}
    lost = {each.rank for each in others if each.kind == "peer" and each.weight <= 1 and each.exit_code is None}
    return bool(said | lost if failure.rank is None else (said & {failure.rank, None}) | (lost & {failure.rank}))


def _is_report(failure: RankFailure) -> bool:
    return failure.kind == "error" and failure.exit_code is not None


def _strongest_of_each(failures: list[RankFailure]) -> list[RankFailure]:
    keys: list[object] = [failure.who or id(failure) for failure in failures]
    each = grouped(zip(keys, failures, strict=True)).values()
    return [min(of_rank, key=lambda failure: (KINDS.index(failure.kind), failure.weight)) for of_rank in each]


def _earliest(failures: list[RankFailure]) -> RankFailure:
    least = min(failure.weight for failure in failures)
    candidates = [failure for failure in failures if failure.weight == least]
    timed = all(failure.time for failure in candidates)
    return min(candidates, key=lambda failure: (failure.time or "" if timed else "", failure.after_step or 0))
