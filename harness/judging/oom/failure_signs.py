"""Signs of a failure in log lines, and torchrun's summary of failures."""

import re
from dataclasses import dataclass
from typing import Literal

from harness.judging.oom.allocator_text import allocator_figures
from harness.judging.oom.classify import is_non_finite, rank_in
from harness.judging.oom.library_texts import known_text
from harness.records.logs.lines import LogLine

FailureKind = Literal["oom", "signal", "error", "peer"]
# Strongest evidence first: whoever ran out of memory took the others along, and not the other way round. ``peer``: it lost
# the others, or was ended from outside.
KINDS: tuple[FailureKind, ...] = ("oom", "signal", "error", "peer")


SRUN = 3  # srun also kills what is left after a failure, and says so in the same words


@dataclass(frozen=True, slots=True)
class Sign:
    """``weight``: -1 the end of the job, 0 the process's own words, 1 to ``SRUN`` what is said of it; ``rank``: by the line."""

    kind: FailureKind
    weight: int = 0
    rank: int | None = None
    exit_code: int | None = None


# A line without any of these shows nothing; looking for them first is what makes gigabytes bearable.
_TELLING = (
    "rror", "emory", "xit", "ignal", "SIG", "xception", "alloc", "ALLOC", "illed", "fault", "imeout", "imed out", "peer",
    "roken pipe", "oom", "bort", "overflow", "CANCELLED", "KeyboardInterrupt", "eturn code",
    "Xid", "fallen off", "is lost", "Unexpected result",
)  # fmt: skip
_CODE = ("raise ", "except ", "assert ")
_ERROR = re.compile(
    r"(?:[A-Za-z_]\w{0,99}\.){0,9}([A-Za-z_]\w{0,99}(?:Error|Exception|Failure|Interrupt|Exit))(?::\s|:?$)"
)
# What torchrun and shells raise because a child failed.
_OF_A_PARENT = ("ChildFailedError", "CalledProcessError", "SystemExit")
_PEER = re.compile(
    r"Connection (?:closed|reset) by (?:remote )?peer|Broken pipe|Socket Timeout|recvValue failed"
    r"|ncclRemoteError|remote process exited|communicator was aborted|NCCL communicator .{0,80}abort"
    r"|Watchdog caught collective|collective operation timeout|operations have failed or timed out|Heartbeat monitor timed out"
    r"|\bDist(?:Network|Store)Error\b|\bRendezvous\w{0,30}Error\b|got signal: (?:15|2)\b|^KeyboardInterrupt"
)
_RANK_IN_TEXT = re.compile(r"\[Rank (\d{1,6})\]")
# torchrun: "failed (exitcode: -9) local_rank: 3 (pid: 77) of binary: ..."; Python: "died with <Signals.SIGKILL: 9>".
_AGENT = re.compile(r"\bfailed \(exitcode: (-?\d{1,5})\) local_rank: \d")
_DIED = re.compile(r"died with <Signals\.SIG\w{1,12}: (\d{1,2})>")
_SIGNAL = re.compile(r"\b[Ss]ignal (\d{1,2}) \(SIG[A-Z]{2,6}\)")
# Shells and schedulers, of a command that may be a parent of the ranks: "exit code 137", "exitcode: -9", "4711 Killed  python".
_EXIT = re.compile(
    r"\b(?:exit ?(?:code|status)?|return ?code)\s{0,4}[:=]?\s{0,4}(-\d{1,2}|12[9]|1[3-9]\d)\b(?!\.)",
    re.IGNORECASE,
)
_SHELL = re.compile(
    r"(?:^|\d\s{1,8})(Killed|Segmentation fault|Aborted|Bus error)(?:\s{1,40}\(core dumped\))?(?:\s{2,40}\S|$)"
)
_SRUN = re.compile(
    r"\btasks? (\d{1,6})([-,\d]{0,200}): (Killed|Segmentation fault|Aborted|Bus error|Exited with exit code (\d{1,3}))"
)
_WORDS = {"Killed": -9, "Segmentation fault": -11, "Aborted": -6, "Bus error": -7}
_CRASH = re.compile(
    r"Fatal Python error: (?:Segmentation fault|Bus error|Aborted|Illegal instruction|Floating)|Caught signal 11\b"
)
_ENDED_BY_SLURM = re.compile(r"CANCELLED AT .{0,60}DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)")
# The kernel's line on a GPU, or a health check's; it explains the errors that ranks raise after it.
_GPU_LOST = re.compile(r"\bNVRM: Xid\b|\bXid\b.{0,80}?: \d{1,3}\b|GPU has fallen off the bus|\bGPU is lost\b")
_TERMINATED = (2, 15)  # SIGINT and SIGTERM: a launcher ends what is left


def sign_of(text: str, *, in_traceback: bool) -> Sign | None:
    """The strongest thing that a line shows; None for most lines.

    Inside a traceback the lines of code are passed over. Outside, the name of an error counts for less: programs
    report errors that they have got over.
    """
    if not any(word in text for word in _TELLING) or (in_traceback and text.startswith(_CODE)):
        return None
    error = _ERROR.match(text)
    is_code = in_traceback and error is None
    if allocator_figures(text) or (not is_code and known_text(text)) or (error and error[1] == "OutOfMemoryError"):
        return Sign("oom", rank=_srun_rank(text))
    if not is_code and is_non_finite(text):
        return Sign("error", rank=rank_in(text))
    if _PEER.search(text):
        told = _RANK_IN_TEXT.search(text)
        return Sign("peer", rank=int(told[1]) if told else None)
    if error:
        return None if error[1] in _OF_A_PARENT else Sign("error", weight=0 if in_traceback else 1)
    return None if is_code else _ended(text)


def sign_of_exit(exit_code: int, rank: int | None, weight: int) -> Sign | None:
    """How a process ended by its exit code: negative, or above 128 as a shell counts, for a signal."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    if exit_code == 0:
        return None
    if number in _TERMINATED:
        return Sign("peer", weight, rank, exit_code)
    return Sign("signal" if 0 < number < 65 else "error", weight, rank, exit_code)


def _ended(text: str) -> Sign | None:
    for told in (_by_launcher, _by_shell):
        if sign := told(text):
            return sign
    if _ENDED_BY_SLURM.search(text):
        return Sign("peer", weight=-1)
    if _GPU_LOST.search(text):
        return Sign("signal", weight=1)
    return Sign("signal") if _CRASH.search(text) else None


def _by_launcher(text: str) -> Sign | None:
    if match := _AGENT.search(text):
        return sign_of_exit(int(match[1]), None, weight=1)
    if match := _DIED.search(text) or _SIGNAL.search(text):
        return sign_of_exit(-int(match[1]), None, weight=1)
    match = _SRUN.search(text)
    if match is None:
        return None
    rank = None if match[2] else int(match[1])
    return sign_of_exit(_WORDS.get(match[3]) or int(match[4] or 1), rank, weight=SRUN)


def _by_shell(text: str) -> Sign | None:
    if match := _SHELL.search(text):
        return sign_of_exit(_WORDS[match[1]], None, weight=SRUN)
    match = _EXIT.search(text)
    return sign_of_exit(int(match[1]), None, weight=SRUN) if match else None


def _srun_rank(text: str) -> int | None:
    match = re.search(r"\btask (\d{1,6}): Out Of Memory", text)
    return int(match[1]) if match else None


_FIELD = re.compile(r"(time|host|rank|exitcode)\s*: (\S{1,255})")
_ROOT_CAUSE = "Root Cause (first observed failure)"


@dataclass(frozen=True, slots=True)
class SummaryEntry:
    """One rank of the table. ``line`` is the one with the exit code; ``sign`` its meaning, of weight 2, the root cause 1."""

    sign: Sign
    line: LogLine
    host: str | None
    time: str | None


class TorchrunSummary:
    """Fed with every line; an entry is whole with its exit code."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}
        self._weight = 2

    def feed(self, line: LogLine) -> SummaryEntry | None:
        """The entry that ``line`` completes. Other lines in between do no harm, for ranks may still be writing."""
        if line.text.startswith(_ROOT_CAUSE):
            self._weight = 1
            return None
        match = _FIELD.match(line.text)
        if match is None:
            return None
        if match[1] == "time":
            self._fields = {}
        self._fields[match[1]] = match[2]
        if match[1] != "exitcode" or "rank" not in self._fields:
            return None
        return self._entry(line)

    def _entry(self, line: LogLine) -> SummaryEntry | None:
        fields, self._fields = self._fields, {}
        weight, self._weight = self._weight, 2
        try:
            sign = sign_of_exit(int(fields["exitcode"]), int(fields["rank"]), weight)
        except ValueError:
            return None
        time = fields.get("time", "").replace("_", " ") or None
        return SummaryEntry(sign, line, fields.get("host"), time) if sign else None
