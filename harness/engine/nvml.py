"""The GPU sampler process of a node: ``python -m harness.engine.nvml sample --out FILE`` samples during a run."""

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pynvml

from harness.engine.nvml_device import Gpu, Neighbours, reason_of
from harness.engine.process import die_with_parent
from harness.records.rank import CLOCK_REASONS, IDLE, POWER_CAP, ClockSamples
from harness.records.run import DeviceSample, NodeSample
from harness.records.store import write_atomically
from harness.units import counted

MAX_SAMPLES = 2048
_SLOWDOWN_BITS = sum(CLOCK_REASONS) - POWER_CAP

_Look = tuple[float, int | None, int | None]


class ClockRecorder:
    """Keeps samples ``every_s`` apart. Past :data:`MAX_SAMPLES` it keeps one of two, that with a slowdown."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self.due_s = 0.0
        self._looks: list[_Look] = []

    def add(self, time_s: float, sm_clock_mhz: int | None, reasons: int | None) -> None:
        """Add a sample; the next is due ``every_s`` later."""
        self._looks.append((time_s, sm_clock_mhz, reasons))
        self.due_s = time_s + self.every_s
        if len(self._looks) > MAX_SAMPLES:
            pairs = (self._looks[place : place + 2] for place in range(0, len(self._looks), 2))
            self._looks = [max(pair, key=lambda look: bool((look[2] or 0) & _SLOWDOWN_BITS)) for pair in pairs]
            self.every_s *= 2

    def samples(self) -> ClockSamples | None:
        """Return the samples so far; None without any."""
        if not self._looks:
            return None
        times_s, clocks, reasons = zip(*self._looks, strict=True)
        return ClockSamples(times_s=tuple(round(at, 3) for at in times_s), sm_clocks_mhz=clocks, reasons=reasons)

    def median_busy_mhz(self) -> float | None:
        """Return the median over samples of a busy GPU: an idle clock says nothing about the run."""
        busy = [clock for _, clock, reasons in self._looks if clock is not None and not (reasons or 0) & IDLE]
        return float(median(busy)) if busy else None

    def reasons_seen(self) -> tuple[str, ...]:
        """Return the names of all reasons for a lowered clock in any sample."""
        return tuple(name for bit, name in CLOCK_REASONS.items() if any((look[2] or 0) & bit for look in self._looks))


# Clocks and power cost the driver more than memory; listing processes takes its lock for milliseconds.
# A window of steps may be half a second long, and its verdict needs clocks from inside it.
CLOCKS_EVERY_S = 0.1
POWER_EVERY_S = 1.0
PROCESSES_EVERY_S = 10.0
WRITE_EVERY_S = 2.0
# The driver lists a process for a moment after it has ended, such as a rank of the run before.
LEAVING_S = 1.0


@dataclass
class Track:
    """Holds the samples of one GPU. An ``error`` ends its sampling; earlier samples stay."""

    gpu: Gpu
    neighbours: Neighbours
    max_used: int | None = None
    total: int | None = None
    reserved: int | None = None
    num_samples: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    max_power_w: float | None = None
    clocks: ClockRecorder = field(default_factory=lambda: ClockRecorder(CLOCKS_EVERY_S))
    error: str | None = None

    def sample_memory(self, now: float) -> None:
        """Sample memory once. After an error the GPU is not asked again."""
        try:
            used, self.total, self.reserved = self.gpu.memory()
        except pynvml.NVMLError as error:
            self.error = f"{reason_of(error)} after {counted(self.num_samples, 'sample')}"
            return
        if self.max_used is None:
            self.max_used, self.first_s = used, now
        self.max_used = max(self.max_used, used)
        self.num_samples += 1
        self.last_s = now

    def sample(self) -> DeviceSample:
        """Return the record of this GPU up to now."""
        gaps = self.num_samples - 1
        return DeviceSample(
            uuid=self.gpu.uuid,
            name=self.gpu.name,
            index=self.gpu.index,
            total_bytes=self.total,
            reserved_bytes=self.reserved,
            max_used_bytes=self.max_used,
            num_samples=self.num_samples,
            interval_s=round((self.last_s - self.first_s) / gaps, 6) if gaps > 0 else 0.0,
            max_power_w=self.max_power_w,
            median_sm_clock_mhz=self.clocks.median_busy_mhz(),
            throttle_reasons=self.clocks.reasons_seen(),
            clocks=self.clocks.samples(),
            foreign_processes=tuple(self.neighbours.foreign.values()),
            num_unidentified_processes=len(self.neighbours.unidentified),
            error=self.error,
        )


class Sampler:
    """Sample all GPUs of this node until ``stop`` returns True. NVML must be initialised."""

    def __init__(self, out: Path, interval_s: float, run_pid: int, stop: Callable[[], bool]):
        self._out, self._interval_s, self._stop = out, interval_s, stop
        self._tracks: list[Track] = []
        self._broken: list[DeviceSample] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                self._tracks.append(Track(Gpu(index), Neighbours(run_pid)))
            except pynvml.NVMLError as error:
                self._broken.append(
                    DeviceSample(uuid=f"index-{index}", name="unknown", index=index, error=reason_of(error))
                )
        self._driver = pynvml.nvmlSystemGetDriverVersion()

    def run(self) -> None:
        """Sample until stopped; the file is complete after the first sample and after every rewrite."""
        until = time.monotonic() + LEAVING_S
        while any(track.gpu.processes() for track in self._tracks) and time.monotonic() < until:
            time.sleep(0.05)
        self._look_at_processes(Neighbours.before_ranks)
        self._sweep(time.monotonic(), power=True)
        self._publish()
        now = time.monotonic()
        power_at, processes_at, write_at = now + POWER_EVERY_S, now + PROCESSES_EVERY_S, now + WRITE_EVERY_S
        while not self._stop():
            time.sleep(self._interval_s)
            now = time.monotonic()
            self._sweep(now, power=now >= power_at)
            power_at = now + POWER_EVERY_S if now >= power_at else power_at
            if now >= processes_at:
                self._look_at_processes(Neighbours.during_run)
                processes_at = now + PROCESSES_EVERY_S
            if now >= write_at:
                self._publish()
                write_at = now + WRITE_EVERY_S
        self._sweep(time.monotonic(), power=False)
        self._look_at_processes(Neighbours.during_run)
        write_atomically(self._out, self._record())

    def _sweep(self, now: float, *, power: bool) -> None:
        for track in self._tracks:
            if track.error is None:
                track.sample_memory(now)
            if track.error is None and now >= track.clocks.due_s:
                clock, reasons = track.gpu.sm_clock_mhz(), track.gpu.clock_reasons()
                track.clocks.add(time.monotonic(), clock, reasons)  # a driver may answer late
            if track.error is None and power and (watts := track.gpu.power_w()) is not None:
                track.max_power_w = max(watts, track.max_power_w or 0.0)

    def _look_at_processes(self, judge: Callable[[Neighbours, dict[int, int | None]], None]) -> None:
        for track in self._tracks:
            processes = track.gpu.processes() if track.error is None else None
            if processes:
                judge(track.neighbours, processes)

    def _record(self) -> NodeSample:
        devices = sorted([*(track.sample() for track in self._tracks), *self._broken], key=lambda d: d.index)
        return NodeSample(hostname=socket.gethostname(), driver_version=self._driver, devices=tuple(devices))

    def _publish(self) -> None:
        """Write the file so that a kill cannot damage it. Waiting for the disk would leave a gap in the samples."""
        temporary = self._out.with_name(f".{self._out.name}.{os.getpid()}.tmp")
        temporary.write_text(self._record().model_dump_json(), encoding="utf-8")
        temporary.replace(self._out)


def main(argv: Sequence[str]) -> int:
    """Sample until SIGTERM, SIGINT or the parent's death. Return 0, also without GPU or driver: the file says so."""
    parent = os.getppid()
    parser = argparse.ArgumentParser(prog="harness.engine.nvml")
    parser.add_argument("command", choices=("sample",))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--interval_ms", type=int, default=50)
    parser.add_argument("--run_pid", type=int, default=parent, help="what ranks descend from (the parent)")
    asked = parser.parse_args(argv)
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: stopped.append(received))
    die_with_parent(signal.SIGTERM)
    try:
        pynvml.nvmlInit()
        interval_s = asked.interval_ms / 1000
        sampler = Sampler(asked.out, interval_s, asked.run_pid, lambda: bool(stopped) or os.getppid() != parent)
    except pynvml.NVMLError as error:
        write_atomically(asked.out, NodeSample(hostname=socket.gethostname(), error=reason_of(error)))
        return 0
    sampler.run()
    pynvml.nvmlShutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
