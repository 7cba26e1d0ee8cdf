"""Signs of a failure in log lines, and torchrun's summary of failures."""

import re
from dataclasses import dataclass
from signal import Signals
from typing import Literal

from harness.failures.allocator import allocator_figures
from harness.failures.collectives import job_rank
from harness.failures.frames import error_line
from harness.failures.known_ends import OF_PROGRAMS, REPORTS_OF_WORKERS, UNLINKED, XID_LINE, is_non_finite, rank_in
from harness.failures.known_texts import known_text
from harness.failures.network_ends import DETAIL, ENDED_BY_WATCHDOG, LAUNCH_FAULT, PEER_LOST
from harness.foreign.logs.lines import LogLine

FailureKind = Literal["oom", "signal", "error", "peer"]
# Strongest evidence first: a rank that runs out of memory makes the others fail, not the reverse. ``peer``: the rank lost
# the others, or was ended from outside.
KINDS: tuple[FailureKind, ...] = ("oom", "signal", "error", "peer")


SRUN = 3  # srun also kills the other tasks after a failure, with the same messages


@dataclass(frozen=True, slots=True)
class Sign:
    """``weight``: -1 the job ended, or NCCL's own line that names the cause, 0 a message of the process, 1 to ``SRUN`` a report about it. ``rank``: from the line."""

    kind: FailureKind
    weight: int = 0
    rank: int | None = None
    exit_code: int | None = None


# A line without any of these shows nothing. Searching for them first makes logs of gigabytes feasible.
_TELLING = (
    "rror", "emory", "xit", "ignal", "SIG", "xception", "alloc", "ALLOC", "illed", "fault", "imeout", "imed out", "peer",
    "roken pipe", "oom", "bort", "overflow", "CANCELLED", "KeyboardInterrupt", "eturn code",
    "loss value", "Assertion", "undefined symbol", "ocket has", "Xid", "XID", "fallen off", "is lost", "what():", "RmInit", "MPI_", "PMI", "Unexpected result", "Duplicate GPU", "both on CUDA", "nvalid usage", "device ordinal", "no socket", "ibv_", "NET/IB",
    "NCCL WARN", "Unable to determine", "ad grad", "loss is", "loss was", "loss became", "norm is", "norm was", "norm became", "ystem error", "onnect to", "atchdog", "cuMem", "load symbol", "load library", "recv_tokens", "recv_expert", "find -l", "inf/nan", "died", "ready dead", "low on resource",
)  # fmt: skip
_CODE = ("raise ", "except ", "assert ")
# Lines of Slurm, NCCL, the kernel and torchrun, which stand inside a traceback where several processes write to one file.
_OF_OTHERS = re.compile(r"^(?:slurmstepd|srun): |NCCL WARN |NVRM: Xid|failed \(exitcode: |" + UNLINKED)
# Ray names the error above the traceback that it raises again; torch's message is below.
_RAY_OOM = re.compile(r"\bRayTaskError\(OutOfMemoryError\)")
# Errors that torchrun and shells raise because a child failed.
_OF_A_PARENT = (
    "ChildFailedError",
    "CalledProcessError",
    "SystemExit",
    "ProcessExitedException",
    "ProcessRaisedException",
)
_PEER = re.compile(
    rf"{PEER_LOST}|\bDist(?:Network|Store)Error\b|\bRendezvous\w{{0,30}}Error\b|got signal: (?:15|2|1)\b"
    r"|\bReceived (?:15|2|1|Signals\.SIG(?:TERM|INT|HUP)) death signal|^KeyboardInterrupt"
)
_WHAT = re.compile(r"^\s*what\(\):")  # of the C++ exception with which torch's watchdog ends a process
_OOM_TASK = re.compile(r"\btask (\d{1,6}): Out Of Memory")
_WORDS = {"Terminated": -15, "Killed": -9, "Segmentation fault": -11, "Aborted": -6, "Bus error": -7}
_NUMBERS = {each.name: int(each) for each in Signals}
_WORD = f"(?P<word>{'|'.join(_WORDS)})"
# How other programs report the end of a process (exit code, signal, or a word for a signal), with the weight.
_EXITS = (
    # torchrun: "failed (exitcode: -9) local_rank: 3 (pid: 77) of binary: ..."; Python: "died with <Signals.SIGKILL: 9>".
    (re.compile(r"\bfailed \(exitcode: (?P<code>-?\d{1,5})\) local_rank: \d"), 1),
    (re.compile(r"\bterminated with signal (?P<name>SIG[A-Z]{2,6})\b"), 1),
    # Composer: "Rank 2 crashed with exit code -7.", "Global rank 2 (PID 77) exited with code -7"; DeepSpeed: "exits with return code = 1".
    (re.compile(r"\b[Rr]ank (?P<rank>\d{1,6}) (?:\(PID \d{1,10}\) )?(?:crashed with exit|exited with) code (?P<code>-?\d{1,3})\b"), 1),
    (re.compile(r"\bexits with return code = (?P<code>-?\d{1,3})\b"), SRUN),
    (re.compile(r"died with <Signals\.SIG\w{1,12}: (?P<signal>\d{1,2})>"), 1),
    (re.compile(r"\b[Ss]ignal (?P<signal>\d{1,2}) \(SIG[A-Z]{2,6}\)"), 1),
    (re.compile(rf"\btasks? (?P<rank>\d{{1,6}})(?P<more>[-,\d]{{0,200}}): (?:{_WORD}|Exited with exit code (?P<code>\d{{1,3}}))"), SRUN),
    (re.compile(r"\breturned non-zero exit status (?P<code>\d{1,3})\."), SRUN),
    # Shells and schedulers, of a command that may be a parent of the ranks: "4711 Killed  python", "exit code 137".
    (re.compile(rf"(?:^|\d\s{{1,8}}){_WORD}(?:\s{{1,40}}\(core dumped\))?(?:\s{{2,40}}\S|$)"), SRUN),
    (re.compile(r"\b(?:exit ?(?:code|status)?|return ?code)\s{0,4}[:=]?\s{0,4}(?P<code>-\d{1,2}|12[9]|1[3-9]\d)\b(?!\.)", re.I), SRUN),
)  # fmt: skip
_GLUED = re.compile(r"[\w)\]'\"]Killed$")  # a shell's word behind a trace without a line end
_BARE_OOM = re.compile(r"^(?:[\w.]{1,100}: )?(?:CUDA|HIP|XPU) (?:error: )?out of memory\b")
_CRASH = re.compile(
    r"Fatal Python error: (?:Segmentation fault|Bus error|Aborted|Illegal instruction|Floating)|Caught signal (?:4|6|7|8|11)\b"
)
# Errors that follow are consequences. After a requeue they may be of the next attempt.
ENDS_THE_JOB = re.compile(r"CANCELLED AT .{0,60}DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)")
ENDED_BY_SLURM = re.compile(
    rf"{ENDS_THE_JOB.pattern}|CANCELLED AT .{{0,60}}DUE TO (?:JOB REQUEUE|TASK FAILURE)|: this job is (?:preempted|timed-out)"
)
# A line of the kernel or a health check on a GPU; it explains the errors that ranks raise after it.
_GPU_LOST = re.compile(
    rf"{XID_LINE}|caused by previous Xid \d|fallen off the bus|\bGPU is lost\b|Unable to determine the device handle|RmInitAdapter failed"
)
_TERMINATED = (1, 2, 15)  # SIGHUP, SIGINT and SIGTERM: a launcher ends the other processes


def sign_of(text: str, *, in_traceback: bool) -> Sign | None:
    """Return the strongest sign of a failure in a line; None for most lines.

    Inside a traceback, lines of code are ignored. Outside, the name of an error has less weight: programs also report
    errors that they handled.
    """
    may_name = in_traceback and ": " in text and not text.endswith(":")
    if not (may_name or any(word in text for word in _TELLING)) or (in_traceback and text.startswith(_CODE)):
        return None
    error = error_line(text, in_traceback=in_traceback)
    is_code = in_traceback and error is None and _OF_OTHERS.search(text) is None
    if allocator_figures(text) or (not is_code and known_text(text)) or (error and error[1] == "OutOfMemoryError"):
        match = _OOM_TASK.search(text)
        return Sign("oom", rank=int(match[1]) if match else None)
    if sign := Sign("oom", weight=2) if _RAY_OOM.search(text) else _of_known_end(text, is_code=is_code):
        return sign
    if error and error[1] not in _OF_A_PARENT:
        return Sign("error", weight=0 if in_traceback else 1)
    if _GLUED.search(text):
        return Sign("signal", SRUN, exit_code=_WORDS["Killed"])
    return None if is_code and text not in _WORDS else _ended(text)


def _of_known_end(text: str, *, is_code: bool) -> Sign | None:
    """Return the sign of a launch fault, a result that is not finite, or a lost peer."""
    if LAUNCH_FAULT.search(text):
        return Sign("error", weight=-1 if DETAIL.search(text) else 0)
    if not is_code and is_non_finite(text):
        return Sign("error", rank=rank_in(text))
    rank = job_rank(text)
    if ENDED_BY_WATCHDOG.search(text):
        return Sign("peer", weight=1, rank=rank)
    has_lost_peer = _PEER.search(text) is not None
    if not is_code and OF_PROGRAMS.search(text) and not (has_lost_peer and _WHAT.match(text)):
        return Sign("error", rank=rank)
    if not is_code and REPORTS_OF_WORKERS.search(text):
        return Sign("error", weight=2)
    return Sign("peer", -1 if DETAIL.search(text) else 0, rank=rank) if has_lost_peer else None


def sign_of_exit(exit_code: int, rank: int | None, weight: int) -> Sign | None:
    """Return the sign of an exit code. Negative, or above 128 as shells count: a signal."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    if exit_code == 0:
        return None
    if number in _TERMINATED:
        return Sign("peer", weight, rank, exit_code)
    return Sign("signal" if 0 < number < 65 else "error", weight, rank, exit_code)


def _ended(text: str) -> Sign | None:
    for pattern, weight in _EXITS:
        match = pattern.search(text)
        if match is None:
            continue
        groups = match.groupdict()
        signal, code, rank = groups.get("signal"), groups.get("code"), groups.get("rank")
        if name := groups.get("name"):
            signal = str(_NUMBERS.get(name, 0))
        exit_code = -int(signal) if signal else int(code) if code else _WORDS[groups["word"]]
        if sign := sign_of_exit(exit_code, None if rank is None or groups.get("more") else int(rank), weight):
            return sign
    if ENDED_BY_SLURM.search(text):
        return Sign("peer", weight=-1)
    if _BARE_OOM.match(text):
        return Sign("error", weight=1)
    if _GPU_LOST.search(text):
        return Sign("signal", weight=1)
    return Sign("signal") if _CRASH.search(text) else None


_FIELD = re.compile(r"(time|host|rank|exitcode)\s*: (\S{1,255})")
_ROOT_CAUSE = "Root Cause (first observed failure)"
# Open MPI and PRRTE, of the first process that failed: "Process name: [[11192,1],8]", and then "Exit code:    3".
_MPI_PROCESS = re.compile(r"Process name: \[.{1,200}[,\]](\d{1,6})\]$")
_MPI_CODE = re.compile(r"Exit code: {1,8}(\d{1,3})$")


@dataclass(frozen=True, slots=True)
class SummaryEntry:
    """A rank of the table. ``line``: the line with the exit code. ``sign``: its meaning, of weight 2, or 1 for the root cause."""

    sign: Sign
    line: LogLine
    host: str | None
    time: str | None


class TorchrunSummary:
    """Feed it every line. The exit code completes an entry, of torchrun's table or of mpirun's report."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}
        self._weight = 2

    def feed(self, line: LogLine) -> SummaryEntry | None:
        """Return the entry that ``line`` completes. Lines of other ranks may come in between."""
        if line.text.startswith(_ROOT_CAUSE):
            self._weight = 1
            return None
        if mpi := _MPI_PROCESS.match(line.text):
            self._fields, self._weight = {"rank": mpi[1]}, 1
            return None
        if (mpi := _MPI_CODE.match(line.text)) and "rank" in self._fields:
            self._fields["exitcode"] = mpi[1]
            return self._entry(line)
        match = _FIELD.match(line.text)
        if match is None:
            return None
        if match[1] == "time":
            self._fields = {}
        self._fields[match[1]] = match[2]
        if match[1] != "exitcode" or "rank" not in self._fields:
            return None
        return self._entry(line)

    @property
    def open_rank(self) -> int | None:
        """Return the rank of an entry whose exit code is still missing."""
        rank = self._fields.get("rank", "")
        return int(rank) if rank.isdecimal() else None

    def _entry(self, line: LogLine) -> SummaryEntry | None:
        fields, self._fields = self._fields, {}
        weight, self._weight = self._weight, 2
        try:
            sign = sign_of_exit(int(fields["exitcode"]), int(fields["rank"]), weight)
        except ValueError:
            return None
        time = fields.get("time", "").replace("_", " ") or None
        return SummaryEntry(sign, line, fields.get("host"), time) if sign else None
