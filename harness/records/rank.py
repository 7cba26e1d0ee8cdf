"""What one rank leaves: its record, its time line, the clocks of its GPU, and who holds its folder."""

import platform
from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.experiment.gpu import Frozen

# NVML's bits for a lowered clock (nvml.h, nvmlClocksEventReasons). Idle, set clocks and display do not disturb a run.
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


class ClockSamples(Frozen):
    """Every sample of one GPU's clock, in columns of equal length, in order of time.

    ``times_s`` are of the node's monotonic clock, which ranks use for their steps as well. ``sm_clocks_mhz`` and
    ``reasons`` (NVML's bits) are None where NVML refused to answer.
    """

    times_s: tuple[float, ...]
    sm_clocks_mhz: tuple[int | None, ...]
    reasons: tuple[int | None, ...]


class RankClocks(Frozen):
    """The clocks of one rank's GPU over the window of steps.

    ``sm_clock_mhz`` is the median and ``power_cap_share`` the part under the power cap (0 to 1), both over samples at
    which the GPU was busy. ``over`` is ``run`` where the times of steps or samples were not recorded: the figures then
    cover the whole run. ``longest_gap_s``: the longest stretch of the window without a sample; ``interval_s``: the usual
    time between two samples.
    """

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
    """The kernel's model name, else the architecture."""
    if not _CPUINFO.is_file():
        return platform.machine()
    names = [
        line.partition(":")[2].strip() for line in _CPUINFO.read_text().splitlines() if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


MAX_POINTS = 240  # the width of a picture; a rank's record grows by a few KiB


class MemorySeries(Frozen):
    """The highest bytes within each of consecutive intervals of ``interval_s`` seconds, at most ``MAX_POINTS`` of them.

    ``what`` says what was watched and for how long. The highest point is the exact peak of what was watched.
    """

    what: str
    interval_s: float
    max_bytes: tuple[int, ...]


SCHEMA_VERSION = 1

Phase = Literal[
    "start", "import", "init_process_group", "build_model", "build_optimizer", "forward_backward", "optimizer_step",
    "step", "probe", "finish",
]  # fmt: skip


class StepRecord(Frozen):
    """One training step. Seconds are wall time between device synchronisations; loss is None off the last stage.

    ``ended_s`` is of the node's monotonic clock, as the times of the NVML samples are; None in older records.
    """

    step: int
    seconds: float = Field(ge=0)
    loss: float | None = None
    grad_norm: float | None = None
    ended_s: float | None = None


class MemoryRecord(Frozen):
    """Peak bytes of one rank. ``meter`` says how they were read; None means this meter cannot say.

    ``allocated``: bytes in live tensors. ``reserved``: bytes held by the caching allocator. ``device_used``: bytes in
    use on the device by anyone (NVML), joined by GPU UUID from the sampler. ``static``: parameters, gradients and
    optimizer state after the first step. ``limit``: what the rank was held to, where a limit was asked for.
    """

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
    host_max_rss_bytes: int | None = None
    timeline: MemorySeries | None = None


class LayerRecompute(Frozen):
    """Read back from built layers: how many layers of this rank carry each active recompute flag."""

    num_layers: int
    modules: dict[str, int] = Field(default_factory=dict)
    full_layers: int = 0


class Failure(Frozen):
    """How a rank ended badly. ``request_bytes`` is the allocation that failed, where the text says so."""

    kind: Literal["oom", "error", "non_finite_loss", "signal", "lost", "hang", "timeout"]
    message: str
    phase: Phase | None = None
    step: int | None = None
    request_bytes: int | None = None
    traceback: str | None = None

    @property
    def when(self) -> str:
        """``in forward_backward of step 2``; a heartbeat of phase ``step`` is written when that step has ended."""
        if self.phase == "step":
            return "in the first step" if self.step is None else f"after step {self.step}"
        parts = (f"in {self.phase}" if self.phase else "", f"of step {self.step}" if self.step is not None else "")
        return " ".join(part for part in parts if part)


class Coordinates(Frozen):
    """Place of a rank in the parallel grid."""

    tp: int = 0
    pp: int = 0
    dp: int = 0
    cp: int = 0
    ep: int = 0


class Device(Frozen):
    """The device a rank ran on."""

    kind: Literal["cpu", "cuda"]
    name: str
    uuid: str | None = None
    pci_bus_id: str | None = None
    capability: tuple[int, int] | None = None


class RankRecord(Frozen):
    """``ranks/rank_NNN.json``: written whole on every way out of a rank.

    ``clocks`` is None in the rank's own file: the harness adds it to the run's record, from the NVML samples.
    """

    schema_version: int = SCHEMA_VERSION
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


class Heartbeat(Frozen):
    """One line of ``ranks/rank_NNN.progress.jsonl``: where a rank is, written as it goes, so it outlives a kill."""

    time_s: float
    phase: Phase
    step: int | None = None
    seconds: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    ended_s: float | None = None


OWNER, RELEASED = "harness.json", "released.json"


class Owner(Frozen):
    """A process of one machine and one boot. ``start_ticks`` is since boot; ids of the kernel's tell boots and containers."""

    schema_version: int = SCHEMA_VERSION
    hostname: str
    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int


class SeriesRecorder:
    """Maxima of equal intervals; when there are too many, neighbours become one and the interval doubles.

    ``first_interval_s`` is the finest resolution. Readings must come in order of time.
    """

    def __init__(self, first_interval_s: float) -> None:
        self.interval_s = first_interval_s
        self._start_s: float | None = None
        self._level = 0
        self._maxima: list[int] = []

    def add(self, time_s: float, num_bytes: int) -> None:
        """The level is ``num_bytes`` from ``time_s`` on."""
        if self._start_s is None:
            self._start_s = time_s
        while (place := int((time_s - self._start_s) / self.interval_s)) >= MAX_POINTS:
            self._halve()
        while len(self._maxima) <= place:  # nothing happened in between: the level stayed
            self._maxima.append(self._level)
        self._maxima[place] = max(self._maxima[place], num_bytes)
        self._level = num_bytes

    def series(self, what: str) -> MemorySeries | None:
        """What was recorded so far; None without a reading."""
        if not self._maxima:
            return None
        return MemorySeries(what=what, interval_s=self.interval_s, max_bytes=tuple(self._maxima))

    def _halve(self) -> None:
        pairs = range(0, len(self._maxima), 2)
        self._maxima = [max(self._maxima[place : place + 2]) for place in pairs]
        self.interval_s *= 2
