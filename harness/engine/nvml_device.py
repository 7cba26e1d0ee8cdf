"""One GPU as NVML tells it: every value is read or absent with a reason, never zero."""

from collections.abc import Callable
from typing import Literal

import pynvml

_NO_SUCH_API = (
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
)


def reason_of(error: pynvml.NVMLError) -> str:
    """An NVML error for people, with its number: ``GPU is lost (NVML 15)``."""
    return f"{error} (NVML {error.value})"


def optional(read: Callable, *arguments):
    """What ``read`` returns, or None where this driver, GPU or user may not know."""
    try:
        return read(*arguments)
    except pynvml.NVMLError:
        return None


class Gpu:
    """A device handle. NVMLError from the constructor: the device is there but cannot be talked to."""

    def __init__(self, index: int):
        self.index = index
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid: str = pynvml.nvmlDeviceGetUUID(self._handle)
        self.name: str = pynvml.nvmlDeviceGetName(self._handle)
        self.memory_api: Literal["v1", "v2"] = "v2"

    def memory(self) -> tuple[int, int, int | None]:
        """Bytes used, total, and reserved by the driver (None with v1, where ``used`` includes them)."""
        if self.memory_api == "v2":
            try:
                info = pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2)
            except pynvml.NVMLError as error:
                if error.value not in _NO_SUCH_API:
                    raise
                self.memory_api = "v1"
            else:
                return info.used, info.total, info.reserved
        info = pynvml.nvmlDeviceGetMemoryInfo(self._handle)
        return info.used, info.total, None

    def power_w(self) -> float | None:
        """Watts drawn now."""
        milliwatts = optional(pynvml.nvmlDeviceGetPowerUsage, self._handle)
        return None if milliwatts is None else milliwatts / 1000

    def sm_clock_mhz(self) -> int | None:
        """Clock of the streaming multiprocessors now."""
        return optional(pynvml.nvmlDeviceGetClockInfo, self._handle, pynvml.NVML_CLOCK_SM)

    def clock_reasons(self) -> int | None:
        """Bits of why the clock is what it is; older drivers know them by their older name."""
        bits = optional(pynvml.nvmlDeviceGetCurrentClocksEventReasons, self._handle)
        return optional(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, self._handle) if bits is None else bits

    def processes(self) -> dict[int, int | None] | None:
        """Compute processes on this GPU by pid with the bytes they use, where NVML says."""
        found = optional(pynvml.nvmlDeviceGetComputeRunningProcesses, self._handle)
        return None if found is None else {process.pid: process.usedGpuMemory for process in found}
