"""Scans a log for failure messages, and finds rank, place and time of each."""

import re
from collections import Counter
from dataclasses import dataclass, field, replace

from harness.failures.allocator import MAX_TEXT, message_start
from harness.failures.collectives import Collectives
from harness.failures.failure_signs import (
    ENDED_BY_SLURM,
    ENDS_THE_JOB,
    FailureKind,
    Sign,
    SummaryEntry,
    TorchrunSummary,
    sign_of,
)
from harness.failures.frames import Task, error_line, frame_of
from harness.failures.known_ends import is_non_finite, known_end
from harness.failures.mentions import mention_in
from harness.foreign.logs.lines import LogLine
from harness.records.rank import Phase

# Of Megatron, NeMo 2, Nanotron and torchtitan.
_ITERATION = re.compile(r"\biteration:?\s{1,20}(\d{1,12})\s?/|\bstep:\s{1,8}(\d{1,12})\s{1,4}(?:\x1b\[\d{1,3}m)?loss:")
_EXPANDABLE = re.compile(
    r"(?<!try setting )PYTORCH_(?:CUDA_)?ALLOC_CONF\W{1,8}[^\s\"']{0,200}expandable_segments:\s?(True|False)(?! ?to avoid)",
    re.I,
)


def finished_step(text: str) -> int | None:
    """Return the iteration that ended, if the line reports this."""
    match = _ITERATION.search(text) if "iteration" in text or "step:" in text else None
    return int(match[1] or match[2]) if match else None


def expandable_segments_in(text: str) -> bool | None:
    """Return the setting of expandable segments in a line. The advice in torch's own message does not count."""
    match = _EXPANDABLE.search(text) if "expandable_segments:" in text else None
    return match[1].lower() == "true" if match else None


MAX_FAILURES = 10_000
MAX_RANKS = 65_536  # followed at once; beyond that, the rank seen first starts again
_SURVIVED = 2  # iterations after a failure; ranks train in step, so without one of them the others end at most one more
# Iterations that waited in a buffer of 64 KiB when a traceback was written are fewer.
BUFFERED = 200
_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_IGNORED = "Exception ignored in"  # how Python reports an error that it ignores, which follows
# How torch raises the error of a worker again; the error itself follows, below its own traceback.
_ORIGINAL = "Original"  # Traceback (most recent call last), a record of its own
_RAISED_AGAIN = re.compile(r"Error: Caught \w{1,100} in (?:DataLoader worker|replica|pin memory)")
_OPEN = re.compile(
    r"(?:E {2,8})?[\w.]{1,200}(?:Error|Exception):(?:.{1,300}because of the following error.{0,60}:)?$"
)  # its message begins on the next line
# NCCL's error has more lines: "ncclSystemError: System call ... failed", "Last error:", and what NCCL printed last.
_NCCL_ERROR = re.compile(r"NCCL error in: |ncclInternalError: |nccl[A-Z]\w{2,40}Error: ")
_MORE_OF_NCCL = re.compile(r"nccl[A-Z]\w{2,40}: |Last error:")
# How a traceback ends that says nothing: the errors of a launcher, and a program that ends itself.
_NOTHING_RAISED = re.compile(
    r"(?:[\w.]{1,200}\.)?(?:ChildFailedError|CalledProcessError|SystemExit|KeyboardInterrupt)\b"
)
_CAUSE = re.compile(r"[A-Z]\w{0,90}(?:Error|Exception)\(['\"]")  # such as ValueError("...")
_BARE_ASSERT = re.compile(r"(?:E {2,8})?AssertionError:?$")
# glog, as torch's elastic writes it: E0821 14:03:27.481093; torch's C++ writes no zero before the month: [E821
_GLOG_TIME = re.compile(r"\[?[IWEF](\d{1,2})(\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,9})?)")


@dataclass(frozen=True, slots=True)
class RankFailure:
    """How a rank failed. ``rank`` and ``host`` are None if unknown.

    ``after_step``: the last step that finished before. ``evidence``: the lines, best evidence first. ``task``: what its
    traceback shows that the program did. ``is_cut``: the log ends before the error is named. ``is_mention``: the line names
    a cause without the form of a failure.
    """

    kind: FailureKind
    rank: int | None
    host: str | None
    text: str
    evidence: tuple[LogLine, ...]
    after_step: int | None = None
    phase: Phase | None = None
    time: str | None = None
    exit_code: int | None = None
    weight: int = 0
    task: Task | None = None
    is_cut: bool = False
    is_mention: bool = False

    @property
    def where(self) -> str:
        """Return the file and line of the best evidence."""
        return self.evidence[0].where


@dataclass(slots=True)
class _Rank:
    """The state of a rank in a file. The place of a traceback is kept until training continues.

    ``code``: the last line of code in it. ``last``: the key of the last failure; ``chained``: of the one whose handling
    raised the next. ``opened``: of the one whose message the next line continues; ``takes_any``: any next line. ``last_error``: of the latest error, below which Triton prints its cause.
    ``is_ignored``: Python said that it ignores the error that follows.
    """

    code: str = ""
    last: tuple[object, ...] | None = None
    chained: tuple[object, ...] | None = None
    opened: tuple[object, ...] | None = None
    takes_any: bool = False
    last_error: tuple[object, ...] | None = None
    in_traceback: bool = False
    is_ignored: bool = False
    task: Task | None = None
    phase: Phase | None = None
    frame: LogLine | None = None
    time: str | None = None


@dataclass(slots=True)
class FailureScan:
    """Feed it every line. ``found``: the first failure of each rank and kind. ``listed``: torchrun's table.

    ``survived``: the first failure after which the same log goes on with iterations, ``num_after`` of them. ``cut``: a
    traceback at the end of a log, without its error. ``is_over``: Slurm has ended the job; later errors are consequences.
    ``recent``: how many more iterations each failure of this log must outlast. ``mention``: the first line after the last
    iteration of its log that names a cause without the form of a failure. ``launcher``: the line with which torchrun reports that a process failed.
    """

    source: str = ""
    last_step: int | None = None
    largest_step: int | None = None
    expandable_segments: bool | None = None
    ranks: dict[int | None, _Rank] = field(default_factory=dict)
    summary: TorchrunSummary = field(default_factory=TorchrunSummary)
    found: dict[tuple[object, ...], RankFailure] = field(default_factory=dict)
    kept: Counter[FailureKind] = field(default_factory=Counter)
    listed: list[SummaryEntry] = field(default_factory=list)
    collectives: Collectives = field(default_factory=Collectives)
    entry: SummaryEntry | None = None  # of torchrun's table, whose traceback follows it
    survived: RankFailure | None = None
    num_after: int = 0
    cut: RankFailure | None = None
    is_over: bool = False
    mention: RankFailure | None = None
    launcher: LogLine | None = None
    recent: dict[tuple[object, ...], int] = field(default_factory=dict)

    def feed(self, line: LogLine) -> None:
        """Take in the next line."""
        if line.source != self.source:
            self._begin_log(line.source)
        elif line.text.startswith("====="):
            self.entry = None
        step = finished_step(line.text)
        if step is not None:
            self._train_on(step)
            self.last_step, self.largest_step = step, max(step, self.largest_step or 0)
            self.ranks.pop(line.rank, None)
        if self.expandable_segments is None:
            self.expandable_segments = expandable_segments_in(line.text)
        self.collectives.feed(line)
        state = self._state_of(line.rank)
        state.time = _comparable_time(line) or state.time
        if state.opened and self._continue(state, state.opened, line):
            return
        if entry := self.summary.feed(line):
            self._list(entry)
        elif not self._follow_traceback(state, line):
            self._look(state, line)

    def _begin_log(self, source: str) -> None:
        self.end_log()
        self.source, self.last_step, self.ranks, self.summary = source, None, {}, TorchrunSummary()
        self.entry, self.is_over = None, False
        self.recent.clear()

    def _look(self, state: _Rank, line: LogLine) -> None:
        """Note what a line shows that is no part of a traceback's frames."""
        if state.is_ignored and error_line(line.text, in_traceback=state.in_traceback):
            state.is_ignored = state.in_traceback = False
        elif sign := sign_of(line.text, in_traceback=state.in_traceback):
            if not self.is_over:
                self._note(sign, line, state)
            self.is_over = self.is_over or ENDS_THE_JOB.search(line.text) is not None
        elif _NOTHING_RAISED.match(line.text):
            state.in_traceback = False
            self.launcher = self.launcher or (line if "ChildFailedError" in line.text else None)
        elif state.in_traceback and line.text.startswith("assert "):
            state.code = line.text
        elif state.last_error and _CAUSE.match(line.text):
            if failure := self.found.get(state.last_error):
                self.found[state.last_error] = replace(failure, text=f"{line.text} {failure.text}"[:MAX_TEXT])
        elif self.mention is None and (text := mention_in(line.text, in_traceback=state.in_traceback)):
            self.mention = RankFailure("error", line.rank, line.host, text, (_short(line),), self.last_step,
                                       time=state.time, weight=1, is_mention=True)  # fmt: skip

    def _train_on(self, step: int) -> None:
        """Drop the failures that the job survived, so that a later one of the same kind counts."""
        self.launcher = None
        if self.mention and self.mention.evidence[0].source == self.source:
            self.mention = None
        if self.last_step is not None and step <= self.last_step:
            if step < self.last_step:  # the job started again
                self.recent.clear()
                self.is_over = False
            return
        self.num_after += self.survived is not None
        for key in list(self.recent):
            self.recent[key] -= 1
            if not self.recent[key]:
                del self.recent[key]
                failure = self.found.pop(key)
                self.kept[failure.kind] -= 1
                self.survived = self.survived or failure

    def _state_of(self, rank: int | None) -> _Rank:
        state = self.ranks.get(rank)
        if state is None:
            if len(self.ranks) >= MAX_RANKS:
                del self.ranks[next(iter(self.ranks))]
            state = self.ranks[rank] = _Rank()
        return state

    def _follow_traceback(self, state: _Rank, line: LogLine) -> bool:
        """Return whether the line is the head or a frame of a traceback, which is not a failure by itself."""
        if line.text.startswith(_TRACEBACK):
            state.in_traceback, state.phase, state.task, state.frame = True, None, None, None
            return True
        if line.text.startswith(_CHAINED) or line.text == _ORIGINAL:
            state.chained, state.last = state.last, None
            return True
        if line.text.startswith(_IGNORED):
            state.is_ignored = True
            return True
        frame = frame_of(line.text)
        if frame:  # also without its head, which a paste may lack
            state.in_traceback, state.frame, state.code = True, line, ""
            is_loading = state.phase == "load_checkpoint"  # it also runs steps, to make the optimizer's state
            state.phase = state.phase if is_loading else frame.phase or state.phase
            state.task = frame.task or state.task
        return frame is not None and not line.text.endswith("Killed")

    def end_log(self) -> None:
        """Keep a traceback that the end of the log cut off."""
        for rank, state in self.ranks.items():
            if state.in_traceback and state.frame and self.cut is None:
                line = _short(state.frame)
                self.cut = RankFailure("error", rank, line.host, line.text, (line,), self.last_step, state.phase,
                                       state.time, weight=1, task=state.task, is_cut=True)  # fmt: skip

    def _note(self, sign: Sign, line: LogLine, state: _Rank) -> None:
        rank = line.rank if line.rank is not None else sign.rank
        host = line.host
        if rank is None and state.in_traceback and self.entry:
            rank, host = self.entry.sign.rank, self.entry.host
        failure = RankFailure(
            kind=sign.kind,
            rank=rank,
            host=host,
            text=f"{line.text} {state.code}"
            if state.code and _BARE_ASSERT.match(line.text)
            else _from_message(line.text),
            evidence=tuple(_short(shown) for shown in (line, state.frame if sign.weight == 0 else None) if shown),
            after_step=self.last_step,
            phase=state.phase if sign.weight == 0 else None,
            time=state.time,
            exit_code=sign.exit_code,
            weight=sign.weight,
            task=state.task if sign.weight == 0 else None,
        )
        state.in_traceback = False
        key = (line.source if rank is None else None, rank, host, sign.kind, sign.weight)
        if key == state.chained and key in self.found and _explains_more(failure.text, self.found[key].text):
            self.found[key] = failure
        state.last = state.chained if key == state.chained else key if key not in self.found else None
        state.chained = None
        self._keep(key, failure)
        state.takes_any = _OPEN.match(line.text) is not None
        is_open = state.takes_any or _NCCL_ERROR.search(line.text) is not None
        state.last_error = key if sign.kind == "error" else None
        is_kept = self.found.get(key) is failure
        state.opened = key if is_open and is_kept else None

    def _continue(self, state: _Rank, key: tuple[object, ...], line: LogLine) -> bool:
        """Add the line to the text of a failure that goes on; return whether it is nothing but a part of NCCL's error."""
        is_nccl = _MORE_OF_NCCL.match(line.text) is not None
        if (state.takes_any or is_nccl) and key in self.found and not line.text.startswith((_TRACEBACK, *_CHAINED)):
            self.found[key] = replace(self.found[key], text=f"{self.found[key].text} {_from_message(line.text)}")
        state.opened = key if is_nccl else None
        state.takes_any = line.text.rstrip() == "Last error:"
        return is_nccl

    def _list(self, entry: SummaryEntry) -> None:
        sign = entry.sign
        failure = RankFailure(
            sign.kind,
            sign.rank,
            entry.host,
            _from_message(entry.line.text),
            (_short(entry.line),),
            self.last_step,
            time=_month_first(entry.time),
            exit_code=sign.exit_code,
            weight=sign.weight,
        )
        self._keep((None, sign.rank, "torchrun", sign.kind, sign.weight), failure)
        self.entry = entry
        if len(self.listed) < MAX_FAILURES:
            self.listed.append(entry)

    def _keep(self, key: tuple[object, ...], failure: RankFailure) -> None:
        """Keep the first failure of each key, and ``MAX_FAILURES`` of each kind: lost peers must not hide the cause."""
        if key not in self.found and self.kept[failure.kind] < MAX_FAILURES:
            self.found[key] = failure
            self.kept[failure.kind] += 1
            if num := _survived_after(failure):
                self.recent[key] = num


def _survived_after(failure: RankFailure) -> int | None:
    """Return after how many iterations a program has survived what it printed; None for what it does not survive.

    A loss that is not finite, a signal, an exit code and an announced end count all the same: a job trains on for a while.
    """
    is_printed = failure.kind != "signal" and failure.exit_code is None and not ENDED_BY_SLURM.search(failure.text)
    if not is_printed or is_non_finite(failure.text):
        return None
    return _SURVIVED if len(failure.evidence) == 1 else BUFFERED


def _explains_more(later: str, earlier: str) -> bool:
    """Return whether only the later of two chained errors is a known one, or the earlier only raises it again."""
    return _RAISED_AGAIN.search(earlier) is not None or (known_end(earlier) is None and known_end(later) is not None)


def _short(line: LogLine) -> LogLine:
    return line if len(line.text) <= MAX_TEXT else replace(line, text=_from_message(line.text))


def _comparable_time(line: LogLine) -> str | None:
    """Return the time as ``08-21 14:03:27.48``. glog writes no year, so all times are compared without it."""
    if line.time:
        return _month_first(line.time)
    match = _GLOG_TIME.match(line.text)
    return f"{match[1]:>02}-{match[2]} {match[3]}" if match else None


def _month_first(time: str | None) -> str | None:
    return time[5:].replace("T", " ").replace(",", ".").rstrip("Z") if time and len(time) >= 19 else None


def _from_message(text: str) -> str:
    """Return the text from the beginning of torch's message in it."""
    start = (message_start(text) or 0) if len(text) > MAX_TEXT else 0
    return text[start : start + MAX_TEXT]
