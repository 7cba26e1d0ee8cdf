"""Recognises signs of a failure in log lines, and torchrun's summary of failures."""

import re
from dataclasses import dataclass, replace
from functools import cache
from signal import Signals
from typing import cast, get_args

from harness.failures.allocator import message_start
from harness.failures.collectives import job_rank
from harness.failures.entries import FailureKind, Sign, first_match, signal_number, signs, word_of
from harness.failures.frames import error_line
from harness.failures.verdict import table
from harness.foreign.logs.lines import LogLine
from harness.records.rank import Phase

_CODE = ("raise ", "except ", "assert ")
# Lines of Slurm, NCCL, the kernel and torchrun, which stand inside a traceback where processes write to one file.
_OF_OTHERS = re.compile(r"^(?:slurmstepd|srun): |NCCL WARN |NVRM: Xid|failed \(exitcode: ")
# Errors that torchrun and shells raise because a child failed.
_OF_A_PARENT = (
    "ChildFailedError", "CalledProcessError", "SystemExit", "ProcessExitedException", "ProcessRaisedException",
)  # fmt: skip
_TERMINATED = (1, 2, 15)  # SIGHUP, SIGINT and SIGTERM: a launcher ends the other processes
# Words of this room's other patterns.
_MORE_WORDS = ("WorkNCCL(", "enqueued", "ollective #", "lagging rank", "xpandable_segments", "Exit", "Interrupt",
               "step:")  # fmt: skip
# After a line with one of these, the next lines belong to the message. A line break: the line ends there.
WORDS_BEFORE_MORE = (
    "Traceback (", 'File "', "Error:\n", "Exception:\n", "NCCL error in: ", "ncclInternalError: ", "Last error",
    "exitcode", "ChildFailed",
)  # fmt: skip


@cache
def _exits() -> tuple[tuple[str, re.Pattern[str], int, int | None], ...]:
    rows = ((pattern, row["weight"]) for row in table()["exits"] for pattern in row["pattern"])
    every = (
        (pattern.replace("WORD", word), weight, code)
        for pattern, weight in rows
        for word, code in (table()["words"] if "WORD" in pattern else {"": None}).items()
    )
    return tuple((word_of(pattern), re.compile(pattern), weight, code) for pattern, weight, code in every)


@cache
def _any_of(name: str) -> re.Pattern[str]:
    return re.compile("|".join(table()[name]))


@cache
def words_of_failures() -> tuple[str, ...]:
    """Return words of which every line has one that this room reads, apart from the lines that follow a traceback."""
    pools = (each for row in table()["pools"] for each in row["pattern"])
    patterns = (*table()["mentions"], *(each for entry in signs() for each in entry.patterns), *pools)
    of_exits = (word for word, *_ in _exits())
    every = sorted({*map(word_of, patterns), *of_exits, *_MORE_WORDS}, key=len)
    return tuple(word for number, word in enumerate(every) if not any(short in word for short in every[:number]))


def sign_of(text: str, *, in_traceback: bool) -> Sign | None:
    """Return the strongest sign of a failure in a line; an error outside a traceback may have been handled."""
    if in_traceback and text.startswith(_CODE):
        return None
    if message_start(text) is not None:
        return Sign("oom")
    error = error_line(text, in_traceback=in_traceback)
    is_code = in_traceback and error is None and _OF_OTHERS.search(text) is None
    if not is_code and (sign := _of_entry(text)):
        return replace(sign, weight=min(sign.weight, 0)) if error and in_traceback else sign
    if error and error[1] not in _OF_A_PARENT:
        return Sign("error", weight=0 if in_traceback else 1)
    return None if is_code and text not in table()["words"] else _ended(text)


def _of_entry(text: str) -> Sign | None:
    found = first_match(text, of_signs=True)
    if found is None or found[0].sign is None:
        return None
    groups = found[1].groupdict()
    rank, task = (int(groups[name]) if groups.get(name) else None for name in ("rank", "task"))
    return replace(found[0].sign, rank=job_rank(text) if rank is None else rank, task=task, entry=found[0].id)


def mentions_error(text: str) -> bool:
    """Whether a line mentions an error, in any form."""
    is_mention = _any_of("mentions").search(text) is not None and _any_of("harmless").search(text) is None
    is_of_table = text.startswith("|") and text.rstrip().endswith("|")  # of Markdown
    return is_mention and not text.startswith(_CODE) and not is_of_table


def sign_of_exit(exit_code: int, rank: int | None, weight: int) -> Sign | None:
    """Return the sign of an exit code; None for 0."""
    number = signal_number(exit_code)
    if exit_code == 0:
        return None
    if number in _TERMINATED:
        return Sign("peer", weight, rank, exit_code)
    return Sign("signal" if 0 < number < 65 else "error", weight, rank, exit_code)


def _ended(text: str) -> Sign | None:
    for word, pattern, weight, of_word in _exits():
        match = pattern.search(text) if word in text else None
        if match is None:
            continue
        groups = match.groupdict()
        signal, code, rank, task = (groups.get(name) for name in ("signal", "code", "rank", "task"))
        if name := groups.get("name"):
            signal = str(int(Signals[name])) if name in Signals.__members__ else "0"
        exit_code = -int(signal) if signal else int(code) if code else of_word or 0
        if sign := sign_of_exit(exit_code, None if rank is None else int(rank), weight):
            return replace(sign, task=None if task is None or groups.get("more") else int(task))
    return None


_FIELD = re.compile(r"(time|host|rank|exitcode)\s*: (\S{1,255})")
_ROOT_CAUSE = "Root Cause (first observed failure)"


@dataclass(frozen=True, slots=True)
class RankFailure:
    """How a rank failed; ``evidence``: the best first. ``is_cut``: before its error. ``is_mention``: no known form."""

    kind: FailureKind
    rank: int | None
    host: str | None
    text: str
    evidence: tuple[LogLine, ...]
    after_step: int | None = None
    moment: str | None = None
    time: str | None = None
    exit_code: int | None = None
    weight: int = 0
    task: int | None = None
    entry: str = ""
    is_cut: bool = False
    is_mention: bool = False

    @property
    def where(self) -> str:
        return self.evidence[0].where

    @property
    def who(self) -> str:
        """``rank 3``, else Slurm's ``task 3``."""
        found = (("rank", self.rank), ("task", self.task))
        return next((f"{what} {number}" for what, number in found if number is not None), "")

    @property
    def phase(self) -> Phase | None:
        name = "forward_backward" if self.moment in ("logits", "gradient_sync") else self.moment
        return cast(Phase, name) if name in get_args(Phase) else None


class TorchrunSummary:
    """Feed it every line. The exit code completes a rank of torchrun's table; the root cause has weight 1, not 2."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}
        self._weight = 2

    def feed(self, line: LogLine) -> RankFailure | None:
        """Return the failure that ``line`` completes. Lines of other ranks may come in between."""
        if line.text.startswith(_ROOT_CAUSE):
            self._weight = 1
        match = _FIELD.match(line.text)
        if match is None:
            return None
        if match[1] == "time":
            self._fields = {}
        self._fields[match[1]] = match[2]
        if match[1] != "exitcode" or "rank" not in self._fields:
            return None
        fields, self._fields = self._fields, {}
        weight, self._weight = self._weight, 2
        try:
            sign = sign_of_exit(int(fields["exitcode"]), int(fields["rank"]), weight)
        except ValueError:
            return None
        if sign is None:
            return None
        time = month_first(fields.get("time", "").replace("_", " "))
        return RankFailure(
            sign.kind,
            sign.rank,
            fields.get("host"),
            line.text,
            (line,),
            time=time,
            exit_code=sign.exit_code,
            weight=weight,
        )


def month_first(time: str | None) -> str | None:
    """Return a time as ``08-21 14:03:27.48``: glog writes no year, so all times are compared without it."""
    return time[5:].replace("T", " ").replace(",", ".").rstrip("Z") if time and len(time) >= 19 else None
