"""Reads training logs of Megatron-Bridge (GB of 10**9 bytes) and Megatron-LM (MB of 2**20) line by line."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from harness.foreign.log import ForeignLog, Iteration, LogFormat, RankMemory
from harness.foreign.logs.lines import LogLine, log_lines
from harness.foreign.logs.sources import log_sources
from harness.records.strict_yaml import table_in
from harness.units import GB, MIB, counted

_ALL_RANKS = "allranks"
_MAX_NOTES = 5
_LARGEST = 1e100
_MOST_MEMORY = 1e9  # GB or MB of one rank
_MOST_COUNTED = 1e15

_TABLE = table_in(Path(__file__).with_name("lines.yaml"))
_ITERATION, _UNCLOSED, _STEP_TIME, _MEMORY, _WORLD_SIZE, _ENDS = map(
    re.compile, (*_TABLE["patterns"].values(), "|".join(_TABLE["ends"]))
)
_MAY_END = tuple(_TABLE["may_end"])
WORDS = (*_TABLE["words"], *_MAY_END)
_FIELDS, _COUNTERS = (
    {name: field for field, names in _TABLE[group].items() for name in names} for group in ("fields", "counters")
)
_COUNTED = ("consumed_samples", "global_batch_size", "skipped_iterations", "nan_iterations")


def opened_logs(paths: Iterable[str | Path]) -> "tuple[LogReader, Iterator[LogLine]]":
    """Open the log of one job; the reader takes each line that you draw. A file of ``allranks`` stands for all."""
    sources = log_sources(paths)
    chosen = [source for source in sources if _ALL_RANKS in source.name] or list(sources)
    reader = LogReader()
    reader.sources = [source.name for source in chosen]
    return reader, map(reader.feed, log_lines([source.path or "-" for source in chosen]))


class LogReader:
    """Takes lines in order; :meth:`finish` returns the log. Memory grows with iterations and ranks, not with lines."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self._notes: list[str] = []
        self._known: dict[int, Iteration] = {}
        self._restarts: list[int] = []
        self._waiting: dict[str, list[_StepTime]] = {}
        self._num_lost = self._num_lines = self._open_line = 0
        self._memory: list[RankMemory] = []
        self._has_other_losses = self._ended = False
        self._times: list[str | None] = [None, None]
        self._total: int | None = None
        self._world_size: int | None = None
        self._signs: set[LogFormat] = set()

    def feed(self, line: LogLine) -> LogLine:
        """Take one line of the log, and return it. Most lines hold no record; a line may also hold several."""
        self._num_lines += 1
        text = line.text
        if line.time:
            self._times = [self._times[0] or line.time, line.time]
        if "iteration" in text:
            self._iterations(line)
            if text.startswith("iteration "):
                return line
        if "Step Time" in text:
            self._step_times(line)
        if "memory (" in text:
            self._memory_reports(line)
        if "world" in text and (size := _WORLD_SIZE.search(text)):
            self._world_size = self._world_size or int(size[1] or size[2])
        if any(word in text for word in _MAY_END):
            self._ended = self._ended or bool(_ENDS.search(text))
        return line

    def finish(self) -> ForeignLog:
        """Return everything that was read."""
        known = tuple(self._known.values())
        if self._open_line == self._num_lines and len(known) > 1:
            known = known[:-1]  # the end of the log was still being written
        iterations = self._with_lone_step_times(known)
        times: list[str | None] = [iteration.time for iteration in iterations if iteration.time]
        times = times or self._times
        if num_lost := self._num_lost + sum(map(len, self._waiting.values())):
            self._notes.append(f"{counted(num_lost, 'line')} of 'Step Time' without an iteration")
        return ForeignLog(
            format="bridge" if "bridge" in self._signs else next(iter(self._signs), None),
            sources=tuple(self.sources),
            iterations=iterations,
            memory=tuple(self._memory),
            total=self._total,
            world_size=self._world_size,
            ended=self._ended,
            restarts=tuple(self._restarts),
            num_lines=self._num_lines,
            first_time=times[0],
            last_time=times[-1],
            has_other_losses=self._has_other_losses,
            notes=tuple(self._notes),
        )

    def _step_times(self, line: LogLine) -> None:
        if (match := _STEP_TIME.search(line.text)) and (tflops := _number(match[2])) is not None:
            self._signs.add("bridge")
            self._waiting.setdefault(line.source, []).append(_StepTime(float(match[1]), tflops))

    def _iterations(self, line: LogLine) -> None:
        text = line.text
        match = _ITERATION.search(text)
        if match is None or int(match[1]) == 0:
            return
        is_unclosed = ("iteration: " in text or "Training epoch" in text) and _UNCLOSED.search(text) is not None
        *whole, rest = f"{text[match.end() :]}{'|' * is_unclosed}".split("|")
        values: dict[str, Any] = self._values(whole)
        self._total, self._ended = int(match[2]), False
        self._open_line = self._num_lines if rest.strip() else 0
        if line.time and "." in line.time:
            self._signs.add("megatron-lm")
        if step := self._step_of(line.source, values.get("step_time_s")):
            values.setdefault("tflops_per_gpu", step.tflops_per_gpu)
        self._take(Iteration(int(match[1]), line.where, rank=line.rank, time=line.time, is_cut=":" in rest, **values))

    def _take(self, new: Iteration) -> None:
        """Take an iteration. Other figures than known mean a restart: drop what it had done from there on."""
        known = self._known.get(new.number)
        if known is not None and _is_the_same(known, new):
            missing = {name: getattr(new, name) for name in _ALL if getattr(known, name) is None}
            self._known[new.number] = replace(known, **missing)
            return
        if self._known and new.number <= (last := next(reversed(self._known))):
            self._restarts.append(new.number)
            if len(self._restarts) <= _MAX_NOTES:
                self._notes.append(f"the job restarted: from iteration {last} back to {new.number} ({new.where})")
            while self._known and next(reversed(self._known)) >= new.number:
                self._known.popitem()
        self._known[new.number] = new

    def _values(self, parts: Iterable[str]) -> dict[str, float]:
        values: dict[str, float] = {}
        for part in parts:
            name, _, written = part.partition(":")
            if (number := _number(written)) is None:
                continue
            field = _FIELDS.get(name.strip(), "")
            if field == "milliseconds":
                values.setdefault("step_time_s", number / 1000)
            elif field in _COUNTED and abs(number) < _MOST_COUNTED:
                values.setdefault(field, int(number))
            elif field and field not in _COUNTED:
                values.setdefault(field, number)
            elif "loss" in name and name.strip() != "loss scale":
                self._has_other_losses = True
        return values

    def _memory_reports(self, line: LogLine) -> None:
        if (match := _MEMORY.search(line.text)) is None:
            return
        unit = GB if match[3] == "GB" else MIB
        *whole, last = line.text[match.end() :].split("|")
        parts = [*whole, last] if re.search(r"\.\d", last) else whole  # no bar ends it: 592 may be 59235.00, cut
        counters: dict[str, int] = {}
        for part in parts:
            name, _, written = part.partition(":")
            value = _number(written)
            if name.strip() in _COUNTERS and value is not None and 0 <= value < _MOST_MEMORY:
                counters.setdefault(_COUNTERS[name.strip()], round(value * unit))
        self._signs.add("bridge" if unit == GB else "megatron-lm")
        self._memory.append(RankMemory(int(match[1]), int(match[2]), line.where, **counters))

    def _step_of(self, source: str, seconds: float | None) -> "_StepTime | None":
        """Take the (oldest) Step Time line that agrees best with an iteration; the lines before it are lost."""
        waiting = self._waiting.get(source, [])
        if seconds is None:
            chosen = waiting[-1:]
        else:
            within = _OTHER if len(waiting) == 1 else _CLOCKS
            chosen = [step for step in waiting if step.agrees(seconds, within=within)]
        best = min(chosen, key=lambda step: abs(step.seconds - (seconds or 0.0)), default=None)
        num_before = waiting.index(best) if best else len(waiting)
        self._num_lost += num_before
        del waiting[: num_before + 1]
        return best

    def _with_lone_step_times(self, iterations: tuple[Iteration, ...]) -> tuple[Iteration, ...]:
        """Use rank 0's lines from a separate file only if every time agrees with the other rank's times."""
        left = [steps for steps in self._waiting.values() if steps]
        if self._num_lost or len(left) != 1 or len(left[0]) != len(iterations):
            return iterations
        pairs = list(zip(iterations, left[0], strict=True))
        if not all(row.tflops_per_gpu is None and step.agrees(row.step_time_s) for row, step in pairs):
            return iterations
        self._waiting.clear()
        return tuple(replace(row, tflops_per_gpu=step.tflops_per_gpu) for row, step in pairs)


_ALL = tuple(each.name for each in fields(Iteration))
_figures = attrgetter("step_time_s", "loss", "grad_norm", "consumed_samples")


def _is_the_same(known: Iteration, new: Iteration) -> bool:
    both = [pair for pair in zip(_figures(known), _figures(new), strict=True) if None not in pair]
    return bool(both) and all(left == right or (math.isnan(left) and math.isnan(right)) for left, right in both)


# Rank 0 and the last rank time the same interval by their own clocks; Step Time has two decimals.
_ROUNDING_S = 0.006
_CLOCKS = 0.02
# A single line directly before belongs to the iteration, unless the two times differ too much.
_OTHER = 0.25


@dataclass(frozen=True, slots=True)
class _StepTime:
    """``Step Time : 8.92s GPU utilization: 744.1MODEL_TFLOP/s/GPU``. The line does not name its iteration."""

    seconds: float
    tflops_per_gpu: float

    def agrees(self, seconds: float | None, *, within: float = _CLOCKS) -> bool:
        return seconds is not None and abs(self.seconds - seconds) <= _ROUNDING_S + within * seconds


def _number(written: str) -> float | None:
    """Parse a number, also NaN and infinity; None for other text. Numbers out of range become infinite."""
    try:
        value = float(written)
    except ValueError:
        return None
    if "_" in written:  # of Python only
        return None
    return math.copysign(math.inf, value) if abs(value) > _LARGEST else value
