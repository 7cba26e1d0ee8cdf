"""What a rank writes while it runs: heartbeats as they happen, its record whole on every way out."""

import json
import os
import socket
import time
from pathlib import Path
from types import TracebackType

from harness.engine.failures import failure_of
from harness.records.atomic import write_atomically
from harness.records.rank import Failure, Heartbeat, MemoryRecord, Phase, RankRecord, StepRecord
from harness.records.redact import redact


class RankLog:
    """Context manager around a rank's life. Fields set on it end up in ``ranks/rank_NNN.json``."""

    def __init__(self, run_dir: Path, rank: int, world_size: int):
        self.rank, self.world_size = rank, world_size
        self.path = run_dir / "ranks" / f"rank_{rank:03d}.json"
        self.snapshot_path = run_dir / "ranks" / f"snapshot_{rank:03d}.pickle"
        self.fields: dict[str, object] = {}
        self.meter = None  # set once the device is known
        self.steps: list[StepRecord] = []
        self.notes: list[str] = []
        self.phase: Phase = "start"
        self.inside_step: Phase | None = None
        self.step_index: int | None = None
        self.seconds: dict[str, float] = {}
        self._phase_began = time.perf_counter()
        self._heartbeats = (run_dir / "ranks" / f"rank_{rank:03d}.progress.jsonl").open("a", buffering=1)

    def enter(self, phase: Phase) -> None:
        """A new phase of the rank's life; the time of the last one is kept."""
        now = time.perf_counter()
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + now - self._phase_began
        self.phase, self._phase_began, self.inside_step = phase, now, None
        self._beat(Heartbeat(time_s=time.time(), phase=phase, step=self.step_index))

    def within_step(self, phase: Phase) -> None:
        """Where inside a step we are; kept in memory only, because it is on the measured path."""
        self.inside_step = phase

    def finished_step(self, record: StepRecord) -> None:
        """A completed step, told at once so that it outlives a kill."""
        self.steps.append(record)
        self.inside_step = None
        self._beat(Heartbeat(time_s=time.time(), phase="step", **record.model_dump()))

    def _beat(self, heartbeat: Heartbeat) -> None:
        self._heartbeats.write(json.dumps(heartbeat.model_dump(exclude_none=True)) + "\n")

    def __enter__(self) -> "RankLog":
        self._beat(Heartbeat(time_s=time.time(), phase="start"))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        failure: Failure | None = None
        if error is not None:
            failure = failure_of(error, phase=self.inside_step or self.phase, step=self.step_index)
        self.write(failure)
        self._heartbeats.close()

    def write(self, failure: Failure | None = None) -> None:
        """Write the record with everything known so far; a later call replaces it."""
        running = time.perf_counter() - self._phase_began
        seconds = {**self.seconds, self.phase: self.seconds.get(self.phase, 0.0) + running}
        self.fields["memory"] = self._memory()
        record = RankRecord(
            rank=self.rank,
            world_size=self.world_size,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            finished=failure is None,
            failure=failure,
            steps=tuple(self.steps),
            seconds={name: round(value, 6) for name, value in seconds.items()},
            notes=tuple(self.notes),
            **self.fields,
        )
        write_atomically(self.path, record.model_dump_json(indent=1) + "\n")

    def _memory(self) -> MemoryRecord | None:
        """The meter's reading; a device that failed may refuse it, which must not cost the rest of the record."""
        if self.meter is None:
            return None
        try:
            return self.meter.record()
        except RuntimeError as error:
            self.notes.append(redact(f"memory could not be read: {error}"))
            return None
