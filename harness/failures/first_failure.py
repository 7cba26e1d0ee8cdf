"""Finds the rank that failed first among many, by the kind of evidence and then by time."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from harness.failures.classify import Ending, classify, cut_traceback
from harness.failures.collectives import some_ranks
from harness.failures.failure_scan import BUFFERED, FailureScan, RankFailure
from harness.failures.failure_signs import KINDS, SRUN
from harness.failures.mentions import verdict_of_mention
from harness.failures.network_ends import EXPERTS, NAMES_ANOTHER, STACKS_ADVICE, WAITED_ADVICE
from harness.failures.verdict import Confidence, OomVerdict
from harness.foreign.logs.lines import LogLine
from harness.records.redact import redact

LOCAL_RANK = re.compile(r"\blocal_rank: {0,3}(\d{1,4})\b")
_OF_LAUNCHER = OomVerdict(
    "unknown",
    "low",
    "torchrun reports that a process failed; the lines with its exit code are missing",
    advice="Read this log to its end, and the log of that process.",
)
_MOST_RANKS = 65_536
_SIGABRT = (-6, 134)  # as Python and as a shell count it
_TRAPPED = "unspecified launch failure"
_UNNAMED_WAIT = "Some NCCL operations have failed or timed out"  # torch's line after the one that names the rank
_SIGKILL = -9  # the kernel's signal when host memory runs out
__all__ = ["FailureScan", "FirstFailure", "RankFailure", "failure_of", "first_failure", "survived_by"]


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """``failure`` came first. ``also`` failed the same way, ``victims`` with weaker evidence. ``verdict``: the OOM class."""

    failure: RankFailure
    verdict: OomVerdict
    also: tuple[RankFailure, ...] = ()
    victims: tuple[RankFailure, ...] = ()


def first_failure(lines: Iterable[LogLine], *, device_bytes: int | None = None) -> FirstFailure | None:
    """Return the original failure: out of memory, a signal, a Python error or a lost peer, in this order, then the first.

    Without a failure, a line that only mentions a cause counts. None if no line shows either, or if the job survived it.
    ``device_bytes``: the memory of the job's GPUs, if known. Reads lines once; memory use grows only with the number of ranks.
    """
    scan = FailureScan()
    for line in lines:
        scan.feed(line)
    return failure_of(scan, device_bytes)


def failure_of(scan: FailureScan, device_bytes: int | None) -> FirstFailure | None:
    """Return the original failure of the lines that ``scan`` was fed, as ``first_failure`` does."""
    scan.end_log()
    found = list(scan.found.values())
    if scan.mention and _says_more(scan.mention, found, scan.cut):
        found = [scan.mention]
    if not found and scan.cut:
        return FirstFailure(_without_secrets(scan.cut), _of_cut(scan.cut, scan.mention))
    if not found and (line := scan.launcher):
        rank = scan.summary.open_rank
        return FirstFailure(RankFailure("error", rank, line.host, line.text, (line,), weight=1), _OF_LAUNCHER)
    if (
        scan.survived
        and scan.num_after < BUFFERED
        and found
        and all(failure.exit_code is not None for failure in found)
    ):
        found.insert(0, scan.survived)  # exit codes do not say why
    failures = _with_best_evidence([_placed(failure, scan) for failure in found], scan)
    if not failures:
        return None
    by_rank = _strongest_of_each(failures)
    strongest = min(KINDS.index(failure.kind) for failure in by_rank)
    same = [failure for failure in by_rank if KINDS.index(failure.kind) == strongest]
    lag = scan.collectives.lag() if KINDS[strongest] == "peer" else None
    first = _earliest(same)
    ending = Ending(
        exit_code=first.exit_code,
        expandable_segments=scan.expandable_segments,
        device_bytes=device_bytes,
        has_traceback=first.kind == "error" and first.weight == 0,
        who=_who(first),
        task=first.task,
        phase=first.phase,
    )
    verdict = verdict_of_mention(first.text) if first.is_mention else classify(first.text, ending)
    if lag is not None and verdict.advice == WAITED_ADVICE:
        named = replace(first, rank=lag.ranks[0], text=lag.line.text, evidence=(lag.line, *first.evidence))
        first = next((failure for failure in same if failure.rank == lag.ranks[0]), named)
        verdict = _waited_for(verdict, f"rank {lag.ranks[0]}", lag.reason, "high" if lag.is_certain else "medium")
    if lag is None and verdict.advice == WAITED_ADVICE and (silent := _silent(by_rank)):
        verdict = _waited_for(verdict, silent, f"{silent} reported no time-out", verdict.confidence)
    return FirstFailure(
        failure=_without_secrets(_with_listing(first, failures)),
        verdict=verdict,
        also=tuple(_without_secrets(failure) for failure in same if failure is not first),
        victims=tuple(_without_secrets(failure) for failure in by_rank if KINDS.index(failure.kind) != strongest),
    )


def _waited_for(verdict: OomVerdict, who: str, why: str, confidence: Confidence) -> OomVerdict:
    """Return the verdict on ranks that waited, with the rank for which they waited."""
    advice = f"Read the log of {who} first. If it does not show why: {STACKS_ADVICE}"
    return replace(verdict, confidence=confidence, reason=f"{verdict.reason}; {why}", advice=advice)


def _silent(failures: list[RankFailure]) -> str:
    """Return the ranks without a report, up to the highest with one; empty if they are more than half as many as the others."""
    spoke = {failure.rank for failure in failures if failure.rank is not None}
    silent = sorted(set(range(min(max(spoke, default=0), _MOST_RANKS))) - spoke)
    if not silent or 2 * len(silent) > len(spoke):
        return ""
    return some_ranks(silent)


def _says_more(mention: RankFailure, found: list[RankFailure], cut: RankFailure | None) -> bool:
    """Return whether a mention is a better answer than all failures found.

    It is if they are launchers' reports, and no traceback that the log's end cut off follows the mention.
    """
    if found and not (all(map(_is_report, found)) and verdict_of_mention(mention.text).oom_class != "unknown"):
        return False
    last = cut.evidence[0] if cut else None
    line = mention.evidence[0]
    return last is None or (line.source == last.source and line.number > last.number)


def _of_cut(cut: RankFailure, mention: RankFailure | None) -> OomVerdict:
    """Return the verdict on a traceback that the log's end cut off, with the cause that another line mentions."""
    verdict = cut_traceback(cut.task)
    if mention is None:
        return verdict
    mentioned = verdict_of_mention(mention.text)
    reason = f"{verdict.reason}. Another line ({mention.where}) may show the cause: {mentioned.reason}"
    return replace(verdict, reason=reason, advice=f"{verdict.next_experiment} {mentioned.next_experiment}")


def survived_by(scan: FailureScan) -> RankFailure | None:
    """Return the failure after which the job trained on, without secrets; None if there was none."""
    return _without_secrets(scan.survived) if scan.survived else None


def _who(failure: RankFailure) -> str:
    rank = "" if failure.rank is None else f"{'task' if failure.weight == SRUN else 'rank'} {failure.rank}"
    if not rank and (local := LOCAL_RANK.search(failure.text)):
        rank = f"local rank {local[1]}"
    return f"{rank} on {failure.host}" if rank and failure.host else rank


def _without_secrets(failure: RankFailure) -> RankFailure:
    """Redact the failure's text: a log contains whatever programs printed."""
    evidence = tuple(replace(line, text=redact(line.text)) for line in failure.evidence)
    return replace(failure, text=redact(failure.text), evidence=evidence)


def _placed(failure: RankFailure, scan: FailureScan) -> RankFailure:
    """Find the rank of a failure in torchrun's table, if only one rank ended that way."""
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
    """Return the ranks in torchrun's table with ``exit_code``; None: the ranks that ended with a Python error."""
    return {
        (entry.sign.rank, entry.host)
        for entry in scan.listed
        if (entry.sign.kind == "error" if exit_code is None else entry.sign.exit_code == exit_code)
    }


def _with_best_evidence(failures: list[RankFailure], scan: FailureScan) -> list[RankFailure]:
    """Drop evidence that better evidence explains.

    Exit codes without a rank if torchrun lists ranks, srun's reports if a rank printed its own error, reports of a rank that
    named the cause, SIGABRT after its process named an error, and failed launches of kernels that waited too long for a rank.
    """
    spoke = any(failure.weight == 0 and failure.kind != "peer" for failure in failures)
    heard = {
        failure.rank
        for failure in failures
        if failure.kind == "peer" and failure.weight <= 0 and not NAMES_ANOTHER.search(failure.text)
    }
    has_waited = any(failure.kind == "peer" and EXPERTS.search(failure.text) for failure in failures)
    return [
        failure
        for failure in failures
        if not (scan.listed and failure.exit_code is not None and failure.rank is None)
        and not _is_abort_of(failure, failures)
        and not (_TRAPPED in failure.text and has_waited)
        and not (failure.weight == SRUN and (scan.listed or spoke))
        and not (_UNNAMED_WAIT in failure.text and failure.rank is None and heard - {None})
        and not (_is_report(failure) and heard and (failure.rank is None or heard & {None, failure.rank}))
    ]


def _is_abort_of(failure: RankFailure, others: list[RankFailure]) -> bool:
    """Return whether a launcher reports SIGABRT of a process that said before why it aborts.

    torch ends a process that waited too long, or lost its peers, with SIGABRT.
    """
    if failure.kind != "signal" or failure.exit_code not in _SIGABRT:
        return False
    said = {each.rank for each in others if each.kind == "error" and each.weight <= 0}
    lost = {each.rank for each in others if each.kind == "peer" and each.weight <= 1 and each.exit_code is None}
    return bool(said | lost if failure.rank is None else said & {failure.rank, None})


def _is_report(failure: RankFailure) -> bool:
    """Return whether a launcher reports an ordinary exit code, which says nothing about the cause."""
    return failure.kind == "error" and failure.exit_code is not None


def _strongest_of_each(failures: list[RankFailure]) -> list[RankFailure]:
    """Keep one failure per rank, in order of appearance, and every failure without a rank.

    torch ends a process whose peers are gone with SIGABRT. If the rank reported that before, ignore the signal.
    """
    lost = {failure.rank for failure in failures if failure.kind == "peer" and failure.rank is not None}
    best: dict[object, RankFailure] = {}
    for index, failure in enumerate(failures):
        if failure.kind == "signal" and failure.exit_code in _SIGABRT and failure.rank in lost:
            continue
        key: object = ("unknown", index) if failure.rank is None else failure.rank
        if key not in best or _strength(failure) < _strength(best[key]):
            best[key] = failure
    return list(best.values())


def _strength(failure: RankFailure) -> tuple[int, int]:
    return KINDS.index(failure.kind), failure.weight


def _earliest(failures: list[RankFailure]) -> RankFailure:
    """Return the earliest failure: by weight, by time if all have a time, by the last finished step, by order."""
    least = min(failure.weight for failure in failures)
    candidates = [failure for failure in failures if failure.weight == least]
    timed = all(failure.time for failure in candidates)
    return min(candidates, key=lambda failure: (failure.time or "" if timed else "", failure.after_step or 0))


def _with_listing(first: RankFailure, failures: list[RankFailure]) -> RankFailure:
    """Add the reports of torchrun and others on that rank to the failure's evidence."""
    lines = [failure.evidence[0] for failure in failures if failure.rank == first.rank is not None and failure.weight]
    more = tuple(line for line in lines if line not in first.evidence)
    return replace(first, evidence=(*first.evidence, *more[:3]))
