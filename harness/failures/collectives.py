"""Finds the rank that the others wait for, from the lines of torch's NCCL watchdog about each rank's collectives."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.foreign.logs.lines import LogLine

# torch's ProcessGroupNCCL.cpp. The rank in brackets counts inside the process group, the prefix [rank3]: in the job.
_MEMBER = re.compile(
    r"\[(?:PG (?:ID )?(?P<id>\w{1,20})(?: PG GUID (?P<guid>[^\s\]]{1,80}))? )?Rank (?P<rank>\d{1,6})\]"
)
_WORK = re.compile(r"WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,40})")
_ENQUEUED = re.compile(r"[Ll]ast enqueued (?:NCCL )?work: (-?\d{1,18}), last completed (?:NCCL )?work: (-?\d{1,18})")
# torch's report with TORCH_NCCL_DESYNC_DEBUG, on the rank whose collective timed out.
_DESYNC = re.compile(
    r"\[(\d{1,6}(?:, ?\d{1,6}){0,999})\] (?:finished collective #\d{1,18}, but didn't join collective #"
    r"|(?:are|is) the lagging ranks? that caused this timeout)"
)
_DEFAULT = re.compile(r"$|0\b")  # the group of all ranks of the job
_SHOWN = 4


def job_rank(text: str) -> int | None:
    """Return the rank of the job in the brackets of torch's line; None if they count inside a smaller process group."""
    member = _MEMBER.search(text) if "Rank " in text else None
    return int(member["rank"]) if member and _DEFAULT.match(_group_of(member)) else None


def _group_of(member: re.Match[str]) -> str:
    return member["guid"] or member["id"] or ""


def some_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 4``, or the first four: ``ranks 0, 1, 2, 3 ...``."""
    listed = ", ".join(map(str, ranks[:_SHOWN]))
    return f"rank{'s' * (len(ranks) > 1)} {listed}{' ...' * (len(ranks) > _SHOWN)}"


@dataclass(frozen=True, slots=True)
class Lag:
    """The ranks that the others wait for. ``is_certain``: all numbers are of one named process group."""

    ranks: tuple[int, ...]
    reason: str
    is_certain: bool
    line: LogLine


_Table = dict[str, dict[int, tuple[int, LogLine]]]


@dataclass(slots=True)
class Collectives:
    """Feed it every line. ``works`` timed out, ``enqueued`` was the last, by group and rank. ``reported``: by torch."""

    reported: Lag | None = None
    works: _Table = field(default_factory=dict)
    enqueued: _Table = field(default_factory=dict)

    def feed(self, line: LogLine) -> None:
        """Take in a line; most lines hold nothing."""
        text = line.text
        if "WorkNCCL(" not in text and "enqueued" not in text:
            if self.reported is None and ("collective #" in text or "lagging rank" in text):
                self.reported = _of_report(line)
            return
        member = _MEMBER.search(text)
        group = _group_of(member) if member else ""
        if line.rank is None and (member is None or not _DEFAULT.match(group)):
            return  # which rank of the job that is, the line does not say
        rank = line.rank if line.rank is not None else int(member["rank"]) if member else 0
        for table, pattern in ((self.works, _WORK), (self.enqueued, _ENQUEUED)):
            if match := pattern.search(text):
                table.setdefault(group, {}).setdefault(rank, (int(match[1]), line))  # later lines repeat it

    def lag(self) -> Lag | None:
        """Return who is behind, first by torch's report; None if nobody is, or two groups contradict each other."""
        if self.reported:
            return self.reported
        tables = (self.enqueued, self.works)
        found = [lag for table in tables for group, seen in table.items() if (lag := _lag(group, seen))]
        certain = [lag for lag in found if lag.is_certain] or found
        return certain[0] if certain and len({lag.ranks for lag in certain}) == 1 else None


def _of_report(line: LogLine) -> Lag | None:
    match = _DESYNC.search(line.text)
    if match is None:
        return None
    ranks = tuple(int(rank) for rank in match[1].split(","))
    reason = f"torch's report names {some_ranks(ranks)}, which did not join the collective"
    return Lag(ranks, reason, is_certain=True, line=line)


def _lag(group: str, seen: dict[int, tuple[int, LogLine]]) -> Lag | None:
    numbers = {number for number, _ in seen.values()}
    least = min(numbers)
    behind = sorted(rank for rank, (number, _) in seen.items() if number == least)
    if len(numbers) == 1 or 2 * len(behind) > len(seen):
        return None  # those behind are at most as many as those that wait
    reason = f"{some_ranks(behind)} reached collective {least}, the others {max(numbers)}"
    return Lag(tuple(behind), reason, bool(group), seen[behind[0]][1])
