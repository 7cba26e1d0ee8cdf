"""Records of one rank: its result, heartbeats, GPU clocks and memory, and the owner of its folder."""

import platform
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.frozen import Frozen
from harness.records.redact import redact

# NVML's bits for a lowered clock (nvml.h, nvmlClocksEventReasons). Idle, user-set clocks and display do not disturb a
# run.
POWER_CAP = 0x04
CLOCK_REASONS = {
    POWER_CAP: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
IDLE = 0x01
# A GPU that trains at full load works at its power limit; that is its normal state. The other reasons are disturbances.
SLOWDOWNS = tuple(name for bit, name in CLOCK_REASONS.items() if bit != POWER_CAP)


SCHEMA_VERSION = 1
SchemaVersion = Annotated[int, Field(ge=1, le=SCHEMA_VERSION)]


class Recorded(Frozen):
    """What a whole file holds, or a line of it."""

    schema_version: SchemaVersion = SCHEMA_VERSION


LONGEST_STEP_S = 1e9  # 31 years; sums of longer times may overflow
_LATEST_S = 253_402_300_799.0  # Unix time at the end of the year 9999, the last that Python can print
StepSeconds = Annotated[float, Field(ge=0, le=LONGEST_STEP_S)]


class ClockSamples(Frozen):
    """Every sample of one GPU's clock, in columns, by the clock of the ranks' steps. None: NVML did not answer."""

    times_s: tuple[float, ...]
    sm_clocks_mhz: tuple[int | None, ...]
    reasons: tuple[int | None, ...]


class RankClocks(Frozen):
    """The clocks of a rank's GPU at busy samples of the window, or ``over`` the run. ``longest_gap_s``: no sample."""

    over: Literal["window", "run"]
    num_samples: int
    num_busy_samples: int | None = None
    sm_clock_mhz: float | None = None
    power_cap_share: float | None = None
    slowdowns: tuple[str, ...] = ()
    window_s: float | None = None
    longest_gap_s: float | None = None
    interval_s: float | None = None


_CPUINFO = Path("/proc/cpuinfo")


def processor_name() -> str:
    """Return the processor's model name, or its architecture."""
    if not _CPUINFO.is_file():
        return platform.machine()
    names = [
        line.partition(":")[2].strip() for line in _CPUINFO.read_text().splitlines() if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


Phase = Literal[
    "start", "import", "init_process_group", "build_model", "build_optimizer", "load_checkpoint", "forward_backward",
    "optimizer_step", "train_step", "step", "probe", "finish",
]  # fmt: skip


class StepRecord(Frozen):
    """One training step. Seconds are wall time between device synchronisations. Only the last stage has a loss."""

    step: int
    seconds: StepSeconds
    loss: float | None = None
    grad_norm: float | None = None
    ended_s: Annotated[float, Field(ge=0, le=_LATEST_S)] | None = None


class MemoryRecord(Frozen):
    """Peak bytes of one rank; None: not measured. ``device_used``: by all processes. ``static``: held between steps."""

    meter: str
    max_allocated_bytes: int | None = None
    max_reserved_bytes: int | None = None
    max_device_used_bytes: int | None = None
    static_bytes: int | None = None
    after_setup_bytes: int | None = None
    num_alloc_retries: int | None = None
    num_ooms: int | None = None
    device_total_bytes: int | None = None
    limit_bytes: int | None = None


class LayerRecompute(Frozen):
    """How many built layers of this rank have each recompute flag active."""

    num_layers: int
    modules: dict[str, int] = Field(default_factory=dict)
    full_layers: int = 0


_Masked = Annotated[str, AfterValidator(redact)]


class Failure(Frozen):
    """How a rank failed. ``request_bytes``: the allocation that failed. Secrets in its texts are masked."""

    kind: Literal["oom", "error", "non_finite_loss", "signal", "lost", "hang", "timeout"]
    message: _Masked
    phase: Phase | None = None
    step: int | None = None
    request_bytes: int | None = None
    traceback: _Masked | None = None

    @property
    def when(self) -> str:
        """Return text such as ``in forward_backward of step 2``. Phase ``step`` means that the step has ended."""
        if self.phase == "step":
            return "in the first step" if self.step is None else f"after step {self.step}"
        parts = (f"in {self.phase}" if self.phase else "", f"of step {self.step}" if self.step is not None else "")
        return " ".join(part for part in parts if part)

    @property
    def when_logged(self) -> str:
        """Return the same moment in iterations, which logs count from 1: ``in forward_backward after iteration 2``."""
        phase = f"in {self.phase}" if self.phase and self.phase != "step" else ""
        done = "" if self.step is None else f"after iteration {self.step + (not phase)}"
        return " ".join(part for part in (phase, done) if part)


class Coordinates(Frozen):
    """Place of a rank in the parallel grid."""

    tp: int = 0
    pp: int = 0
    dp: int = 0
    cp: int = 0
    ep: int = 0

    @property
    def is_first_copy(self) -> bool:
        return (self.tp, self.dp, self.cp) == (0, 0, 0)


SCRIPTED = "Scripted "  # how the name of a device begins that does not exist: memory is real, kernels do nothing


class Device(Frozen):
    """The device a rank ran on."""

    kind: Literal["cpu", "cuda"]
    name: str
    uuid: str | None = None
    pci_bus_id: str | None = None
    capability: tuple[int, int] | None = None


class RankRecord(Recorded):
    """``ranks/rank_NNN.json``, written whole. ``clocks``: added by the harness, from the NVML samples."""

    rank: int
    world_size: int
    hostname: str
    pid: int
    finished: bool
    failure: Failure | None = None
    coordinates: Coordinates = Coordinates()
    device: Device | None = None
    versions: dict[str, str | None] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)
    steps: tuple[StepRecord, ...] = ()
    memory: MemoryRecord | None = None
    clocks: RankClocks | None = None
    recompute: LayerRecompute | None = None
    counted_flops_per_step: int | None = None
    num_parameters: int | None = None
    config: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


def placed(ranks: tuple[RankRecord, ...], spec: ExperimentSpec) -> tuple[RankRecord, ...]:
    """Ranks with coordinates. A rank that ended before it joined megatron's groups gets those of the layout."""
    return tuple(
        rank
        if rank.coordinates != Coordinates()
        else rank.model_copy(update={"coordinates": coordinates(rank.rank, spec)})
        for rank in ranks
    )


def coordinates(rank: int, spec: ExperimentSpec) -> Coordinates:
    """Coordinates of a global rank: megatron-core's default order tp-cp-ep-dp-pp, TP fastest (`RankGenerator`)."""
    p = spec.parallelism
    tp, cp, dp = p.tensor_model_parallel_size, p.context_parallel_size, spec.data_parallel_size
    return Coordinates(
        tp=rank % tp,
        cp=rank // tp % cp,
        dp=rank // (tp * cp) % dp,
        pp=rank // (tp * cp * dp),
        ep=rank // p.expert_tensor_size % p.expert_model_parallel_size,
    )


class Heartbeat(Frozen):
    """One line of ``ranks/rank_NNN.progress.jsonl``: the progress of a rank, which a kill does not lose."""

    time_s: Annotated[float, Field(ge=0, le=_LATEST_S)]
    phase: Phase
    step: int | None = None
    seconds: StepSeconds | None = None
    loss: float | None = None
    grad_norm: float | None = None
    ended_s: Annotated[float, Field(ge=0, le=_LATEST_S)] | None = None


OWNER, RELEASED = "harness.json", "released.json"


class Owner(Recorded):
    """A process of one machine and one boot. ``start_ticks``: since boot. Kernel ids name the boot and container."""

    hostname: str
    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int
