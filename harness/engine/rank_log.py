"""Heartbeats, the record of a rank, and the classification of its failures."""

import json
import os
import re
import socket
import time
import traceback
from pathlib import Path
from types import TracebackType

from harness.records.rank import Failure, Heartbeat, MemoryRecord, Phase, RankRecord, StepRecord
from harness.records.redact import redact
from harness.records.store import write_atomically

# Texts of torch 2.0 to 2.15, and of libraries that allocate outside torch's caching allocator.
OOM_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        r"out of memory",
        r"CUBLAS_STATUS_ALLOC_FAILED",
        r"CUDNN_STATUS_ALLOC_FAILED",
        r"CUDNN_STATUS_INTERNAL_ERROR_(?:DEVICE|HOST)_ALLOCATION_FAILED",
        r"Failed to CUDA calloc",
        r"exceed per_process_memory_fraction limit",
        r"DefaultCPUAllocator: can't allocate memory",
    )
)
REQUEST = re.compile(
    r"(?:[Tt]ried to allocate|Requested size:|CUDA calloc(?: async)?) (\d+(?:\.\d+)?) (bytes|[KMGT]iB)"
)
UNIT_BYTES = {"bytes": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
MAX_TEXT = 8000  # characters; the search for secrets takes twice as many, so that the cut splits none


class NonFiniteLossError(RuntimeError):
    """The loss or the gradient norm became NaN or infinite."""


def failure_of(error: BaseException, *, phase: Phase, step: int | None) -> Failure:
    """Classify ``error``. If torch's text names the failed request, read its bytes."""
    text = f"{type(error).__name__}: {error}"
    kind = "error"
    if isinstance(error, NonFiniteLossError):
        kind = "non_finite_loss"
    elif isinstance(error, MemoryError) or any(p.search(text) for p in OOM_PATTERNS):
        kind = "oom"
    request = REQUEST.search(text) if kind == "oom" else None
    return Failure(
        kind=kind,
        message=redact(text[: 2 * MAX_TEXT])[:MAX_TEXT],
        phase=phase,
        step=step,
        request_bytes=round(float(request[1]) * UNIT_BYTES[request[2]]) if request else None,
        traceback=redact("".join(traceback.format_exception(error))[-2 * MAX_TEXT :])[-MAX_TEXT:],
    )


class RankLog:
    """Surrounds a rank's life as a context manager and writes its fields to ``ranks/rank_NNN.json``."""

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
        """Begin a phase of the rank's life and keep the time of the last one."""
        now = time.perf_counter()
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + now - self._phase_began
        self.phase, self._phase_began, self.inside_step = phase, now, None
        self._beat(Heartbeat(time_s=time.time(), phase=phase, step=self.step_index))

    def within_step(self, phase: Phase) -> None:
        """Note the place inside a step, in memory only, because writing would cost measured time."""
        self.inside_step = phase

    def finished_step(self, record: StepRecord) -> None:
        """Write a completed step at once, so that a kill does not lose it."""
        self.steps.append(record)
        self.inside_step = None
        self._beat(Heartbeat(time_s=time.time(), phase="step", **record.model_dump(exclude_none=True)))

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
        write_atomically(self.path, record)

    def _memory(self) -> MemoryRecord | None:
        """Read the meter. A failed device may refuse; the rest of the record must survive that."""
        if self.meter is None:
            return None
        try:
            return self.meter.record()
        except RuntimeError as error:
            self.notes.append(redact(f"cannot read memory: {error}"))
            return None
