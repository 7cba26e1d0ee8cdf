"""Reads devices and processes from NVML; ``python -m harness.engine.nvml_device list`` prints the GPUs as JSON."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pynvml

from harness.units import format_bytes


def reason_of(error: pynvml.NVMLError) -> str:
    """Return an NVML error as text with its number: ``GPU is lost (NVML 15)``."""
    return f"{error} (NVML {error.value})"


def optional(read: Callable, *arguments):
    """Return the result of ``read``; None if this driver, GPU or user cannot read it."""
    try:
        return read(*arguments)
    except pynvml.NVMLError:
        return None


class Gpu:
    """A device handle. The constructor raises NVMLError if the device exists but does not answer."""

    def __init__(self, index: int):
        self.index = index
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid: str = pynvml.nvmlDeviceGetUUID(self._handle)
        self.name: str = pynvml.nvmlDeviceGetName(self._handle)

    def memory(self) -> tuple[int, int, int]:
        """Return bytes used, total, and reserved by the driver, which are not in ``used`` (drivers from 510 on)."""
        info = pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2)
        return info.used, info.total, info.reserved

    def power_w(self) -> float | None:
        """Return the power drawn now, in watts."""
        milliwatts = optional(pynvml.nvmlDeviceGetPowerUsage, self._handle)
        return None if milliwatts is None else milliwatts / 1000

    def sm_clock_mhz(self) -> int | None:
        """Return the clock of the streaming multiprocessors now, in MHz."""
        return optional(pynvml.nvmlDeviceGetClockInfo, self._handle, pynvml.NVML_CLOCK_SM)

    def clock_reasons(self) -> int | None:
        """Return the bits of the reasons for the clock; older drivers have an older name for them."""
        bits = optional(pynvml.nvmlDeviceGetCurrentClocksEventReasons, self._handle)
        return optional(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, self._handle) if bits is None else bits

    def processes(self) -> dict[int, int | None] | None:
        """Return bytes by pid of compute processes on this GPU; None where NVML does not know them."""
        found = optional(pynvml.nvmlDeviceGetComputeRunningProcesses, self._handle)
        return None if found is None else {process.pid: process.usedGpuMemory for process in found}


PROC = Path("/proc")


def in_initial_namespace() -> bool:
    """Return whether the driver uses this namespace's pids. Only the first shows the kernel's thread 2."""
    try:
        return (PROC / "2" / "comm").read_text().strip() == "kthreadd"
    except OSError:
        return False


def descends_from(pid: int, ancestor: int) -> bool:
    """Return whether ``pid`` is ``ancestor`` or a descendant of it."""
    while pid > 1:
        if pid == ancestor:
            return True
        pid = _parent(pid)
    return False


def _parent(pid: int) -> int:
    try:
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _process_text(pid: int, used_bytes: int | None) -> str:
    try:
        name = (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        name = "(name unknown)"
    return f"pid {pid} {name}, {format_bytes(used_bytes) if used_bytes is not None else 'unknown memory'}"


@dataclass
class Neighbours:
    """Processes of one GPU over a run. ``run_pid``: the process that all ranks descend from."""

    run_pid: int
    same_pids: bool = field(default_factory=in_initial_namespace)
    foreign: dict[int, str] = field(default_factory=dict)
    unidentified: set[int] = field(default_factory=set)

    def before_ranks(self, processes: dict[int, int | None]) -> None:
        """Note the processes that run before the run uses a GPU: all of them are foreign."""
        self.foreign |= {pid: _process_text(pid, used) for pid, used in processes.items()}

    def during_run(self, processes: dict[int, int | None]) -> None:
        """Decide by descent. In a container the driver may report the host's pids, which prove nothing."""
        for pid, used in processes.items():
            if pid in self.foreign or descends_from(pid, self.run_pid):
                continue
            if self.same_pids:
                self.foreign[pid] = _process_text(pid, used)
            else:
                self.unidentified.add(pid)


def listing() -> dict:
    """Return ``{"driver": ..., "cuda": ..., "gpus": [{index, name, uuid, total_bytes}]}``, or ``{"error": ...}``."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"error": reason_of(error)}
    try:
        gpus = [_listed(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return {"driver": pynvml.nvmlSystemGetDriverVersion(), "cuda": _cuda_of_driver(), "gpus": gpus}
    except pynvml.NVMLError as error:
        return {"error": reason_of(error)}
    finally:
        pynvml.nvmlShutdown()


def _cuda_of_driver() -> str | None:
    """Return the newest CUDA that the driver supports, which NVML codes as 1000 x major + 10 x minor."""
    code = optional(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return None if code is None else f"{code // 1000}.{code % 1000 // 10}"


def _listed(index: int) -> dict:
    try:
        gpu = Gpu(index)
        _, total, _ = gpu.memory()
    except pynvml.NVMLError as error:
        return {"index": index, "error": reason_of(error)}
    return {"index": index, "name": gpu.name, "uuid": gpu.uuid, "total_bytes": total}


if __name__ == "__main__":
    print(json.dumps(listing()))  # noqa: T201 (the answer)
