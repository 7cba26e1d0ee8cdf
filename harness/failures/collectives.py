"""Finds the rank that the others wait for, from the lines of torch's NCCL watchdog about each rank's collectives."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.foreign.logs.lines import LogLine

# torch 2.0 to 2.15, ProcessGroupNCCL.cpp. The rank in brackets counts inside the process group, the prefix [rank3]: in the job.
_MEMBER = re.compile(
    r"\[(?:PG (?:ID )?(?P<id>\w{1,20})(?: PG GUID (?P<guid>[^\s\]]{1,80}))? )?Rank (?P<rank>\d{1,6})\]"
)
_GLOBAL = re.compile(r"^Global rank: (\d{1,6})\b")  # of DeepEP
_WORK = re.compile(r"WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,40})")
_ENQUEUED = re.compile(r"[Ll]ast enqueued (?:NCCL )?work: (-?\d{1,18}), last completed (?:NCCL )?work: (-?\d{1,18})")
# torch's report with TORCH_NCCL_DESYNC_DEBUG, on the rank whose collective timed out.
_DESYNC = re.compile(
    r"\[(\d{1,6}(?:, ?\d{1,6}){0,999})\] (?:finished collective #(\d{1,18}), but didn't join collective #|(?:are|is) the lagging ranks? that caused this timeout)"
)
_DEFAULT = re.compile(r"$|0\b")  # all ranks of the job
_MOST_MEMBERS = 65_536
_SHOWN = 4


def job_rank(text: str) -> int | None:
    """Return the rank of the job in the brackets of torch's line; None if they count inside a smaller process group."""
    if of_deep_ep := _GLOBAL.match(text):
        return int(of_deep_ep[1])
    member = _MEMBER.search(text)
    return int(member["rank"]) if member and _DEFAULT.match(_group_of(member)) else None


def _group_of(member: re.Match[str]) -> str:
    return member["guid"] or member["id"] or ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rank came in a process group: the number of its collective. ``operation``: empty if the line has none."""

    number: int
    operation: str
    line: LogLine


@dataclass(frozen=True, slots=True)
class Lag:
    """The ranks that the others wait for. ``is_certain``: all numbers are of one named process group."""

    ranks: tuple[int, ...]
    reason: str
    is_certain: bool
    line: LogLine


@dataclass(slots=True)
class Collectives:
    """Feed it every line. ``works``: the collective that timed out, ``enqueued``: the last that was enqueued; by group and rank. ``reported``: what torch's own report says."""

    reported: Lag | None = None
    works: dict[str, dict[int, Progress]] = field(default_factory=dict)
    enqueued: dict[str, dict[int, Progress]] = field(default_factory=dict)

    def feed(self, line: LogLine) -> None:
        """Take in a line; most lines hold nothing."""
        text = line.text
        if "WorkNCCL(" not in text and "enqueued" not in text:
            if self.reported is None and ("collective #" in text or "lagging rank" in text):
                self.reported = _of_report(line)
            return
        member = _MEMBER.search(text)
        rank = line.rank if line.rank is not None else int(member["rank"]) if member else None
        if rank is None:
            return
        group = _group_of(member) if member else ""
        if line.rank is None and not _DEFAULT.match(group):
            return  # which rank of the job that is, the line does not say
        if work := _WORK.search(text):
            _keep(self.works, group, rank, Progress(int(work[1]), work[2], line))
        if last := _ENQUEUED.search(text):
            _keep(self.enqueued, group, rank, Progress(int(last[1]), "", line))

    def lag(self) -> Lag | None:
        """Return who is behind; None if no ranks differ, or two groups contradict each other. torch's own report counts first."""
        if self.reported:
            return self.reported
        found = [
            lag for table in (self.enqueued, self.works) for group, seen in table.items() if (lag := _lag(group, seen))
        ]
        certain = [lag for lag in found if lag.is_certain] or found
        return certain[0] if certain and len({lag.ranks for lag in certain}) == 1 else None


def some_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 4``, or the first four: ``ranks 0, 1, 2, 3 ...``."""
    listed = ", ".join(map(str, ranks[:_SHOWN]))
    return f"rank{'s' * (len(ranks) > 1)} {listed}{' ...' * (len(ranks) > _SHOWN)}"


def _of_report(line: LogLine) -> Lag | None:
    """Return the ranks that torch's report names as those that did not join a collective."""
    match = _DESYNC.search(line.text)
    if match is None:
        return None
    ranks = tuple(int(rank) for rank in match[1].split(","))
    return Lag(
        ranks,
        f"torch's report names {some_ranks(ranks)}, which did not join the collective",
        is_certain=True,
        line=line,
    )


def _keep(table: dict[str, dict[int, Progress]], group: str, rank: int, progress: Progress) -> None:
    """Keep the first report of a rank: later ones repeat it, or are of the end."""
    if sum(map(len, table.values())) < _MOST_MEMBERS:
        table.setdefault(group, {}).setdefault(rank, progress)


def _lag(group: str, seen: dict[int, Progress]) -> Lag | None:
    numbers = [progress.number for progress in seen.values()]
    least = min(numbers)
    behind = sorted(rank for rank, progress in seen.items() if progress.number == least)
    if least == max(numbers) or 2 * len(behind) > len(seen):
        return None  # those behind are at most as many as those that wait
    first = seen[behind[0]]
    others = sorted({number for number in numbers if number != least})
    at = f"{others[0]} to {others[-1]}" if len(others) > 1 else str(others[0])
    operation = f" ({first.operation})" if first.operation else ""
    verb, it = ("are", "them") if len(behind) > 1 else ("is", "it")
    condition = f"in process group {group}" if group else "if all are of one process group"
    reason = f"{some_ranks(behind)} {verb} at collective {least}{operation}, the others at {at}: they wait for {it}, {condition}"
    return Lag(tuple(behind), reason, bool(group), first.line)
