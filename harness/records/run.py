"""The record of a run, with its prediction, and what is known of a run that was imported from a log."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.errors import BadRequestError
from harness.experiment.effective import EffectiveRecompute
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import Frozen
from harness.experiment.rules.rule import Finding
from harness.records.rank import SCHEMA_VERSION, ClockSamples, MemorySeries, RankRecord

StartSource = Literal["log", "told", "unknown"]  # of the time at which the job started

IMPORTED = "imported from "  # how the first note of such a run begins
LAUNCHER = "import"  # how the plan of a sweep says that its runs are such runs


class LogFile(Frozen):
    """One file as it was read; ``sha256`` is of its bytes."""

    name: str
    num_bytes: int
    sha256: str


class LoggedThroughput(Frozen):
    """TFLOP/s/GPU of one step by the log's own formula. Steps count from 0."""

    step: int
    tflops_per_gpu: float


class ImportedLog(Frozen):
    """The log behind a record. ``source_format`` is None where no line tells whose log it is.

    ``interval``: iterations from one line to the next; a line's figures are means over them. ``clock_rank``: whose record
    holds the step times, ``is_clock_told`` False where that is taken from the format's habit. ``first_line`` and
    ``last_line``: when the first and the last iteration were logged, or any line where none was, as the log writes it.
    ``start_source``: who tells when the job started; ``unknown`` where the record has the time of the import,
    ``imported_at``, in its place.
    ``unsaid``: what a run of our own would know and this one does not.
    """

    source_format: Literal["bridge", "megatron-lm"] | None
    files: tuple[LogFile, ...]
    interval: int = 1
    clock_rank: int = 0
    is_clock_told: bool = False
    total_iterations: int | None = None
    throughput: tuple[LoggedThroughput, ...] = ()
    first_line: str | None = None
    last_line: str | None = None
    start_source: StartSource = "unknown"
    imported_at: str | None = None
    unsaid: tuple[str, ...] = ()


def log_files(names: Iterable[str]) -> tuple[LogFile, ...]:
    """Size and checksum of every file. BadRequestError for one that cannot be read."""
    return tuple(_log_file(Path(name)) for name in names)


def _log_file(path: Path) -> LogFile:
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return LogFile(name=str(path), num_bytes=stream.tell(), sha256=digest)
    except OSError as error:
        raise BadRequestError(f"{path}: cannot be read: {error.strerror}") from error


class StagePrediction(Frozen):
    """Peak of one pipeline stage in bytes; the parts add up to ``total``. ``peak``: which of the three peaks it is."""

    pp_rank: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    transient: int
    overhead: int
    total: int
    peak: str

    @property
    def parts(self) -> dict[str, int]:
        """The bytes of each part by its name."""
        return {name: size for name, size in self if name not in ("pp_rank", "total", "peak")}


class PredictionRecord(Frozen):
    """A prediction as values. Seconds are None where none are predicted (cpu); ``range_bytes`` is (low, high).

    ``recompute_flops`` and ``model_flops`` are per step over all GPUs.
    """

    peak_bytes: int
    range_bytes: tuple[int, int]
    stages: tuple[StagePrediction, ...]
    model_flops: int
    recompute_flops: int
    step_time_s: float | None = None
    step_time_range_s: tuple[float, float] | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def worst_stage(self) -> StagePrediction:
        """The stage with the highest peak."""
        return max(self.stages, key=lambda stage: stage.total)


REPLAYED = "replayed from "  # how the note of a run begins in which nothing was measured

Status = Literal["ok", "oom", "failed", "interrupted"]


class DeviceSample(Frozen):
    """What the NVML sampler of one node saw of one GPU over the run. Bytes, watts, MHz; None where NVML would not say.

    ``memory_api`` v1 is that of old drivers: its ``used`` includes what the driver reserves for itself, v2's does not.
    ``num_unidentified_processes``: seen during the run, but from inside a container not to be told from the ranks.
    ``throttle_reasons`` and ``median_sm_clock_mhz`` cover the whole run. ``clocks`` has every look with its time; None in
    records of versions before it.
    """

    uuid: str
    name: str
    index: int
    total_bytes: int | None = None
    reserved_bytes: int | None = None
    baseline_used_bytes: int | None = None
    max_used_bytes: int | None = None
    num_samples: int = 0
    interval_s: float = 0.0
    max_power_w: float | None = None
    median_sm_clock_mhz: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    clocks: ClockSamples | None = None
    foreign_processes: tuple[str, ...] = ()
    num_unidentified_processes: int = 0
    memory_api: Literal["v1", "v2"] | None = None
    timeline: MemorySeries | None = None
    error: str | None = None


class NodeSample(Frozen):
    """``ranks/nvml_<node>.json``: the sampler's own record; ``error`` says why there are no devices."""

    schema_version: int = SCHEMA_VERSION
    hostname: str
    driver_version: str | None = None
    devices: tuple[DeviceSample, ...] = ()
    error: str | None = None


class Provenance(Frozen):
    """Where and with what a run was measured. Times are UTC ISO-8601; versions None where not installed.

    ``git_branch`` is None on a detached head, as in most CI, and in records of older versions. ``container``: the image, as
    far as anything names it; ``job_id``: of the Slurm job, or of the whole array, that the run was part of.
    """

    started_at: str
    finished_at: str
    duration_s: float
    command: tuple[str, ...]
    mbr_perf: str
    git_commit: str | None = None
    git_branch: str | None = None
    container: str | None = None
    job_id: str | None = None
    hostname: str
    platform: str
    processor: str
    device_name: str | None = None
    driver_version: str | None = None
    versions: dict[str, str | None] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)


class RunRecord(Frozen):
    """Raw facts of a run; figures such as TFLOP/s are derived from it on reading, under a named formula version.

    ``no_prediction`` says why there is no ``prediction``; records from before there were any have neither.
    ``imported``: the training log that it was read from; None for a run of our own.
    """

    schema_version: int = SCHEMA_VERSION
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
