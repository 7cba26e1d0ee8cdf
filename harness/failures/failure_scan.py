"""Scans a log for failure messages, and finds rank, place and time of each."""

import re
from dataclasses import dataclass, field, replace

from harness.failures.allocator import MAX_TEXT, message_start
from harness.failures.collectives import Collectives
from harness.failures.entries import Sign
from harness.failures.failure_signs import RankFailure, TorchrunSummary, mentions_error, month_first, sign_of
from harness.failures.frames import error_line, frame_of, inside
from harness.foreign.logs.lines import LogLine

# Of Megatron, NeMo 2, Nanotron and torchtitan.
_ITERATION = re.compile(r"\biteration:?\s{1,20}(\d{1,12})\s?/|\bstep:\s{1,8}(\d{1,12})\s{1,4}loss:")
_EXPANDABLE = re.compile(
    r"(?<!try setting )PYTORCH_(?:CUDA_)?ALLOC_CONF\W{1,8}[^\s\"']{0,200}expandable_segments:\s?(True|False)"
    r"(?! ?to avoid)",
    re.I,
)
_SURVIVED = 2  # iterations after a failure; ranks train in step, so without one of them the others end at most one more
# Iterations that waited in a buffer of 64 KiB when a traceback was written are fewer.
BUFFERED = 200
_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_IGNORED = "Exception ignored in"  # how Python reports an error that it ignores, which follows
_OPEN = re.compile(r"(?:E {2,8})?[\w.]{1,200}(?:Error|Exception):$")  # its message begins on the next line
# NCCL's error has more lines: "ncclSystemError: System call ... failed", "Last error:", and what NCCL printed last.
_NCCL_ERROR = re.compile(r"NCCL error in: |ncclInternalError: |nccl[A-Z]\w{2,40}Error: ")
_MORE_OF_NCCL = re.compile(r"nccl[A-Z]\w{2,40}: |Last error:")
# How a traceback ends that says nothing: the errors of a launcher, and a program that ends itself.
_NOTHING_RAISED = re.compile(
    r"(?:[\w.]{1,200}\.)?(?:ChildFailedError|CalledProcessError|SystemExit|KeyboardInterrupt)\b"
)
_BARE_ASSERT = re.compile(r"(?:E {2,8})?AssertionError:?$")
# glog, as torch's elastic writes it: E0821 14:03:27.481093; torch's C++ writes no zero before the month: [E821
_GLOG_TIME = re.compile(r"\[?[IWEF](\d{1,2})(\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,9})?)")
# Slurm ended the job: errors that follow are consequences. After a requeue they may be of the next attempt.
_ENDS_THE_JOB = ("slurm_time_limit", "slurm_preempted", "slurm_node_lost", "kubernetes_restarted")
# What a program cannot have survived, or goes on with for a while.
_STAYS = (*_ENDS_THE_JOB, "slurm_requeued", "slurm_task_failed", "non_finite")


def finished_step(text: str) -> int | None:
    """Read the number that Megatron, NeMo, Nanotron and torchtitan print when an iteration has ended."""
    match = _ITERATION.search(text) if "iteration" in text or "step:" in text else None
    return int(match[1] or match[2]) if match else None


def expandable_segments_in(text: str) -> bool | None:
    """Return the setting of expandable segments in a line. The advice in torch's own message does not count."""
    match = _EXPANDABLE.search(text) if "xpandable_segments:" in text else None
    return match[1].lower() == "true" if match else None


_Key = tuple[object, ...]


@dataclass(slots=True)
class _Rank:
    """The state of a rank in a file. ``opened``: the key of the failure whose message the next line continues."""

    code: str = ""
    opened: _Key | None = None
    takes_any: bool = False
    in_traceback: bool = False
    is_ignored: bool = False
    moment: str | None = None
    frame: LogLine | None = None
    time: str | None = None


@dataclass(slots=True)
class FailureScan:
    """Feed it every line. ``found``: the first failure of each rank and kind; ``recent``: those that may be survived.

    ``cut``: a traceback without its end. ``is_over``: by Slurm. ``mention``: of an error, after all iterations.
    """

    source: str = ""
    last_step: int | None = None
    largest_step: int | None = None
    expandable_segments: bool | None = None
    ranks: dict[int | None, _Rank] = field(default_factory=dict)
    summary: TorchrunSummary = field(default_factory=TorchrunSummary)
    found: dict[_Key, RankFailure] = field(default_factory=dict)
    listed: list[RankFailure] = field(default_factory=list)
    collectives: Collectives = field(default_factory=Collectives)
    entry: RankFailure | None = None  # of torchrun's table, whose traceback follows it
    survived: RankFailure | None = None
    num_after: int = 0
    cut: RankFailure | None = None
    is_over: bool = False
    mention: RankFailure | None = None
    recent: dict[_Key, int] = field(default_factory=dict)

    def feed(self, line: LogLine) -> None:
        """Take in the next line."""
        if line.source != self.source:
            self._begin_log(line.source)
        step = finished_step(line.text)
        if step is not None:
            self._train_on(step)
            self.last_step, self.largest_step = step, max(step, self.largest_step or 0)
            self.ranks.pop(line.rank, None)
            if "iteration" in line.text or sign_of(line.text, in_traceback=False) is None:
                return
        if self.expandable_segments is None:
            self.expandable_segments = expandable_segments_in(line.text)
        self.collectives.feed(line)
        state = self.ranks.setdefault(line.rank, _Rank())
        state.time = _comparable_time(line) or state.time
        if state.opened and self._continue(state, state.opened, line):
            return
        if line.text.startswith("====="):
            self.entry = None
        elif entry := self.summary.feed(line):
            self._list(entry)
        elif not self._follow_traceback(state, line):
            self._look(state, line)

    def _begin_log(self, source: str) -> None:
        self.end_log()
        self.source, self.last_step, self.ranks, self.summary = source, None, {}, TorchrunSummary()
        self.entry, self.is_over = None, False
        self.recent.clear()

    def _look(self, state: _Rank, line: LogLine) -> None:
        if state.is_ignored and error_line(line.text, in_traceback=state.in_traceback):
            state.is_ignored = state.in_traceback = False
        elif sign := sign_of(line.text, in_traceback=state.in_traceback):
            if not self.is_over:
                self._note(sign, line, state)
            self.is_over = self.is_over or sign.entry in _ENDS_THE_JOB
        elif _NOTHING_RAISED.match(line.text):
            state.in_traceback = False
        elif state.in_traceback and line.text.startswith("assert "):
            state.code = line.text
        elif self.mention is None and not state.in_traceback and mentions_error(line.text):
            self.mention = replace(self._unnamed(line, line.rank, state), moment=None, is_mention=True)

    def _train_on(self, step: int) -> None:
        """Drop the failures that the job survived, so that a later one of the same kind counts."""
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
                self.survived = self.survived or failure

    def _follow_traceback(self, state: _Rank, line: LogLine) -> bool:
        if line.text.startswith(_TRACEBACK):
            state.in_traceback, state.moment, state.frame = True, None, None
            return True
        if line.text.startswith((*_CHAINED, _IGNORED)):
            state.is_ignored = line.text.startswith(_IGNORED)
            return True
        is_frame, moment = frame_of(line.text)
        if is_frame:  # also without its head, which a paste may lack
            state.in_traceback, state.frame, state.code = True, line, ""
            state.moment = inside(state.moment, moment)
        return is_frame

    def end_log(self) -> None:
        """Keep a traceback that the end of the log cut off."""
        for rank, state in self.ranks.items():
            if state.in_traceback and state.frame and self.cut is None:
                self.cut = replace(self._unnamed(state.frame, rank, state), is_cut=True)

    def _unnamed(self, line: LogLine, rank: int | None, state: _Rank) -> RankFailure:
        shown, step = _short(line), self.last_step
        return RankFailure("error", rank, line.host, shown.text, (shown,), step, state.moment, state.time, weight=1)

    def _note(self, sign: Sign, line: LogLine, state: _Rank) -> None:
        rank, host = line.rank if line.rank is not None else sign.rank, line.host
        if rank is None and state.in_traceback and self.entry:
            rank, host = self.entry.rank, self.entry.host
        state.in_traceback, state.opened, state.takes_any = False, None, False
        key = (line.source if rank is None else None, rank, sign.task, host, sign.kind, sign.weight)
        if key in self.found:  # most lines of a log that repeats an error: the first one counts
            return
        is_own = sign.weight == 0  # the rank's own error, which the traceback above explains
        is_assert = state.code and _BARE_ASSERT.match(line.text)
        failure = RankFailure(
            kind=sign.kind,
            rank=rank,
            host=host,
            text=f"{line.text} {state.code}" if is_assert else _from_message(line.text),
            evidence=(_short(line), *((_short(state.frame),) if is_own and state.frame else ())),
            after_step=self.last_step,
            moment=state.moment if is_own else None,
            time=state.time,
            exit_code=sign.exit_code,
            weight=sign.weight,
            task=sign.task,
            entry=sign.entry,
        )
        self._keep(key, failure)
        state.takes_any = _OPEN.match(line.text) is not None
        state.opened = key if state.takes_any or _NCCL_ERROR.search(line.text) else None

    def _continue(self, state: _Rank, key: _Key, line: LogLine) -> bool:
        """Add the line to the text of a failure that goes on; return whether it is only a part of NCCL's error."""
        is_nccl = _MORE_OF_NCCL.match(line.text) is not None
        if (state.takes_any or is_nccl) and key in self.found and not line.text.startswith((_TRACEBACK, *_CHAINED)):
            self.found[key] = replace(self.found[key], text=f"{self.found[key].text} {_from_message(line.text)}")
        state.opened = key if is_nccl else None
        state.takes_any = line.text.rstrip() == "Last error:"
        return is_nccl

    def _list(self, failure: RankFailure) -> None:
        self.entry = replace(failure, after_step=self.last_step)
        key = (None, failure.rank, "torchrun", failure.kind, failure.weight)
        if key not in self.found:
            self._keep(key, self.entry)
        self.listed.append(self.entry)

    def _keep(self, key: _Key, failure: RankFailure) -> None:
        self.found[key] = failure
        # A program survives what it only printed. A traceback may be older than the iterations that follow it.
        if failure.kind != "signal" and failure.exit_code is None and failure.entry not in _STAYS:
            self.recent[key] = _SURVIVED if len(failure.evidence) == 1 else BUFFERED


def _short(line: LogLine) -> LogLine:
    return line if len(line.text) <= MAX_TEXT else replace(line, text=_from_message(line.text))


def _comparable_time(line: LogLine) -> str | None:
    if line.time:
        return month_first(line.time)
    match = _GLOG_TIME.match(line.text)
    return f"{match[1]:>02}-{match[2]} {match[3]}" if match else None


def _from_message(text: str) -> str:
    start = (message_start(text) or 0) if len(text) > MAX_TEXT else 0
    return text[start : start + MAX_TEXT]
