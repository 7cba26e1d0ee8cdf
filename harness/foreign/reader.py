"""Reads training logs of Megatron-Bridge and Megatron-LM line by line into iterations and memory reports."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from harness.foreign.lines import IterationLine, MemoryLine, StepTimeLine, records_of
from harness.foreign.log import (
    Attempts,
    ForeignLog,
    Iteration,
    LogFormat,
    RankMemory,
    StepTime,
    WaitingStepTimes,
    in_order,
)
from harness.foreign.logs.lines import LogLine, log_lines
from harness.foreign.logs.sources import log_sources
from harness.units import counted

_ALL_RANKS = "allranks"
# One report per rank and iteration. Later reports are left out, with a note.
_MAX_MEMORY_REPORTS = 200_000
_LOSSES = ("lm loss", "loss scale")


def read_logs(paths: Iterable[str | Path]) -> ForeignLog:
    """Read the log of one job from files, folders of files, or ``-``.

    The launcher of Megatron-Bridge writes every rank's output to a file with ``allranks`` in its name. If there are
    such files, only they are read. BadRequestError if a file is not text.
    """
    reader, lines = opened_logs(paths)
    for _ in lines:
        pass
    return reader.finish()


def opened_logs(paths: Iterable[str | Path]) -> "tuple[LogReader, Iterator[LogLine]]":
    """As :func:`read_logs`, but also yield the lines; the reader takes each line that you draw."""
    sources = log_sources(paths)
    chosen = [source for source in sources if _ALL_RANKS in source.name] or list(sources)
    reader = LogReader()
    reader.sources = [source.name for source in chosen]
    if len(chosen) < len(sources):
        reader.notes.append(
            f"{counted(len(sources) - len(chosen), 'other file')} left out: {chosen[0].name} holds all ranks"
        )
    return reader, _fed(reader, log_lines([source.path or "-" for source in chosen]))


def _fed(reader: "LogReader", lines: Iterator[LogLine]) -> Iterator[LogLine]:
    for line in lines:
        reader.feed(line)
        yield line


class LogReader:
    """Takes lines in order; :meth:`finish` returns the log. Memory grows with iterations and ranks, not with lines."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.notes: list[str] = []
        self._attempts = Attempts()
        self._waiting: dict[str, WaitingStepTimes] = {}
        self._memory: list[RankMemory] = []
        self._num_memory = self._num_cut = self._num_lines = 0
        self._names: set[str] = set()
        self._first_cut = ""
        self._first_time: str | None = None
        self._last_time: str | None = None
        self._total: int | None = None
        self._world_size: int | None = None
        self._ended = False
        self._signs: dict[LogFormat, int] = {"bridge": 0, "megatron-lm": 0}

    def feed(self, line: LogLine) -> None:
        """Take one line of the log."""
        self._num_lines += 1
        if line.time:
            self._first_time, self._last_time = self._first_time or line.time, line.time
        for record in records_of(line.text):
            match record:
                case IterationLine():
                    self._iteration(line, record)
                case StepTimeLine():
                    self._signs["bridge"] += 1
                    self._waiting_in(line.source).add(StepTime(record, line.source, line.number))
                case MemoryLine():
                    self._memory_report(line, record)
                case int():
                    self._world_size = self._world_size or record
                case _:
                    self._ended = record == "end"

    def finish(self) -> ForeignLog:
        """Return everything that was read."""
        iterations = self._with_lone_step_times(self._attempts.iterations())
        times: list[str | None] = [iteration.time for iteration in iterations if iteration.time]
        times = times or [self._first_time, self._last_time]
        return ForeignLog(
            format=self._format(),
            sources=tuple(self.sources),
            iterations=iterations,
            memory=tuple(self._memory),
            total=self._total,
            world_size=self._world_size,
            ended=self._ended,
            restarts=tuple(self._attempts.restarts),
            num_lines=self._num_lines,
            first_time=times[0],
            last_time=times[-1],
            has_other_losses=any("loss" in name and name not in _LOSSES for name in self._names),
            notes=(*self.notes, *self._attempts.all_notes(), *self._notes_at_the_end()),
        )

    def _iteration(self, line: LogLine, read: IterationLine) -> None:
        self._total, self._ended = read.total, False
        if read.is_cut:
            self._num_cut += 1
            self._first_cut = self._first_cut or line.where
        if line.time and "." in line.time:
            self._signs["megatron-lm"] += 1
        self._names.update(read.fields)
        milliseconds = read.fields.get("elapsed time per iteration (ms)")
        seconds = read.fields.get("train_step_timing in s") if milliseconds is None else milliseconds / 1000
        tflops = read.fields.get("throughput per GPU (TFLOP/s/GPU)")
        step = self._waiting_in(line.source).take(seconds)
        if tflops is None and step is not None:
            tflops = step.line.tflops_per_gpu
        self._attempts.add(
            Iteration(
                read.number,
                line.where,
                step_time_s=seconds,
                tflops_per_gpu=tflops,
                loss=read.fields.get("lm loss"),
                grad_norm=read.fields.get("grad norm"),
                consumed_samples=_count(read.fields.get("consumed samples")),
                global_batch_size=_count(read.fields.get("global batch size")),
                skipped_iterations=_count(read.fields.get("number of skipped iterations")) or 0,
                nan_iterations=_count(read.fields.get("number of nan iterations")) or 0,
                rank=line.rank,
                time=line.time,
                is_cut=read.is_cut,
            )
        )

    def _memory_report(self, line: LogLine, read: MemoryLine) -> None:
        self._signs["bridge" if read.is_decimal else "megatron-lm"] += 1
        self._num_memory += 1
        if len(self._memory) < _MAX_MEMORY_REPORTS:
            self._memory.append(RankMemory(read.rank, read.iteration, line.where, **read.bytes_of))

    def _waiting_in(self, source: str) -> WaitingStepTimes:
        if source not in self._waiting:
            self._waiting[source] = WaitingStepTimes()
        return self._waiting[source]

    def _with_lone_step_times(self, iterations: tuple[Iteration, ...]) -> tuple[Iteration, ...]:
        """Use rank 0's lines from a separate file only if every time agrees with the other rank's times."""
        if any(iteration.tflops_per_gpu is not None for iteration in iterations):
            return iterations
        left = [waiting for waiting in self._waiting.values() if waiting.left()]
        if len(left) != 1 or not iterations:
            return iterations
        steps = list(left[0].left())
        if left[0].unbound or not in_order(steps, [iteration.step_time_s for iteration in iterations]):
            return iterations
        left[0].take(None)
        left[0].unbound = 0
        self.notes.append(
            f"{counted(len(steps), 'line')} of 'Step Time' in {steps[0].source} matched to iterations in order; every "
            f"time agrees"
        )
        return tuple(
            replace(iteration, tflops_per_gpu=step.line.tflops_per_gpu)
            for iteration, step in zip(iterations, steps, strict=True)
        )

    def _format(self) -> LogFormat | None:
        if self._signs["bridge"]:
            return "bridge"
        return "megatron-lm" if self._signs["megatron-lm"] else None

    def _notes_at_the_end(self) -> list[str]:
        notes = []
        if self._num_cut:
            notes.append(f"{counted(self._num_cut, 'line')} of iterations cut short, first at {self._first_cut}")
        if len(self._memory) < self._num_memory:
            notes.append(f"{self._num_memory - len(self._memory)} of {self._num_memory} memory reports left out")
        lost = [
            (waiting.unbound + len(waiting.left()), waiting.first_unbound or waiting.left()[0])
            for waiting in self._waiting.values()
            if waiting.unbound or waiting.left()
        ]
        if lost:
            first = lost[0][1]
            count = sum(number for number, _ in lost)
            notes.append(
                f"{counted(count, 'line')} of 'Step Time' without an iteration, first at {first.source}:{first.number}"
            )
        return notes


def _count(value: float | None) -> int | None:
    return int(value) if value is not None and abs(value) < 1e15 else None
