"""The record of a run, and the log behind an imported run."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from harness.errors import os_errors_reported
from harness.experiment.effective import EffectiveRecompute
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.frozen import Frozen
from harness.experiment.rules.rule import Finding
from harness.records.prediction import PredictionRecord
from harness.records.rank import LONGEST_STEP_S, SCRIPTED, ClockSamples, Failure, RankRecord, Recorded

StartSource = Literal["log", "unknown"]  # the source of the job's start time

IMPORTED = "imported from "  # how the first note of an imported run begins
BUILT_OTHERWISE = "the built layers recompute "  # how the doubt about a build that recomputes something else begins


class LogFile(Frozen):
    """A log file at the time of reading. ``sha256``: of its bytes."""

    name: str
    num_bytes: int
    sha256: str


class LoggedThroughput(Frozen):
    """TFLOP/s/GPU of one step, by the trainer's own formula. Steps are counted from 0."""

    step: int
    tflops_per_gpu: float


class ImportedLog(Frozen):
    """The log behind a record; None: the log does not say it.

    ``interval``: iterations from one line to the next. ``clock_rank``: its record holds the step times. ``unsaid``:
    values that a run by mbr-perf has. ``provisional``: that the log ends before its job.
    """

    source_format: Literal["bridge", "megatron-lm"] | None
    files: tuple[LogFile, ...]
    interval: int = 1
    clock_rank: int = 0
    is_clock_named: bool = False
    total_iterations: int | None = None
    throughput: tuple[LoggedThroughput, ...] = ()
    first_line: str | None = None
    start_source: StartSource = "unknown"
    unsaid: tuple[str, ...] = ()
    failed_rank: int | None = None
    provisional: str = ""


def log_files(names: Iterable[str]) -> tuple[LogFile, ...]:
    """Return size and checksum of every file. BadRequestError if a file cannot be read."""
    found: list[LogFile] = []
    for name in names:
        with os_errors_reported(f"{name}: cannot be read"), Path(name).open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            found.append(LogFile(name=name, num_bytes=stream.tell(), sha256=digest))
    return tuple(found)


REPLAYED = "replayed from "  # how the note of a replayed run begins: nothing was measured

Status = Literal["ok", "oom", "failed", "interrupted"]


class DeviceSample(Frozen):
    """The NVML samples of one GPU during the run. Bytes, watts, MHz; None if NVML did not answer."""

    uuid: str
    name: str
    index: int
    total_bytes: int | None = None
    reserved_bytes: int | None = None
    max_used_bytes: int | None = None
    num_samples: int = 0
    interval_s: float = 0.0
    max_power_w: float | None = None
    median_sm_clock_mhz: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    clocks: ClockSamples | None = None
    foreign_processes: tuple[str, ...] = ()
    num_unidentified_processes: int = 0
    error: str | None = None


class NodeSample(Recorded):
    """``ranks/nvml_<node>.json``: the sampler's record. ``error``: why there are no devices."""

    hostname: str
    driver_version: str | None = None
    devices: tuple[DeviceSample, ...] = ()
    error: str | None = None


class Provenance(Frozen):
    """Where and with what a run was measured. ``num_cpus``: those that it may use. Versions None: not installed."""

    started_at: str
    finished_at: str
    duration_s: Annotated[float, Field(ge=0, le=LONGEST_STEP_S)]
    command: tuple[str, ...]
    mbr_perf: str
    git_commit: str | None = None
    git_branch: str | None = None
    container: str | None = None
    job_id: str | None = None
    hostname: str
    platform: str
    processor: str
    num_cpus: int | None = None
    device_name: str | None = None
    driver_version: str | None = None
    versions: dict[str, str | None] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)


def no_time(ranks: Iterable[RankRecord]) -> str | None:
    """Return why the ranks' times and losses mean nothing; None on devices that exist."""
    names = (rank.device.name for rank in ranks if rank.device)
    scripted = next((name for name in names if name.startswith(SCRIPTED)), None)
    return f"{scripted}: allocations are real, kernels do nothing" if scripted else None


class RunRecord(Recorded):
    """The raw facts of a run. ``imported``: the log of an imported run. ``no_prediction``: why there is none."""

    run_id: str
    status: Status
    spec: ExperimentSpec
    sources: dict[str, str] = Field(default_factory=dict)
    fingerprint: str
    effective: EffectiveRecompute
    ranks: tuple[RankRecord, ...]
    nodes: tuple[NodeSample, ...] = ()
    failure: str | None = None
    findings: tuple[Finding, ...] = ()
    suspect: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    prediction: PredictionRecord | None = None
    no_prediction: str = ""
    imported: ImportedLog | None = None
    provenance: Provenance

    def when_failed(self, failure: Failure) -> str:
        """Return the moment of a rank's failure, counted as the program counts its steps."""
        return failure.when_logged if self.imported else failure.when

    @property
    def no_time(self) -> str | None:
        """Return why its times and losses mean nothing; None on a device that exists."""
        return no_time(self.ranks)

    @property
    def unmeasured(self) -> tuple[str, ...]:
        replays = (note for note in self.notes if note.startswith(REPLAYED))
        return (*replays, *([self.no_time] if self.no_time else []))

    @property
    def first_oom(self) -> RankRecord | None:
        """Return the rank that ran out of memory first; the lowest if only that is known."""
        first = self.imported.failed_rank if self.imported else None
        full = (rank for rank in self.ranks if rank.failure and rank.failure.kind == "oom")
        return min(full, key=lambda rank: (rank.rank != first, rank.rank), default=None)
