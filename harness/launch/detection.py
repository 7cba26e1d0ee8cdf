"""The GPUs of this machine, as NVML lists them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pydantic import ValidationError

from harness.experiment.frozen import Frozen
from harness.experiment.gpu import GpuType, gpu_named
from harness.launch.environment import Host, output_of

TIMEOUT_S = 60.0  # without persistence mode the driver first initializes every GPU of the server, each for seconds
NO_BINDING = "No module named 'pynvml'"


class DetectedGpu(Frozen):
    """One GPU as NVML lists it; only ``error`` if the GPU does not answer."""

    index: int
    name: str | None = None
    uuid: str | None = None
    total_bytes: int | None = None
    error: str | None = None

    @property
    def gpu_type(self) -> GpuType | None:
        return gpu_named(self.name) if self.name else None


class Detection(Frozen):
    """The GPUs of this machine. ``unanswered``: NVML could not be asked. ``cuda``: the driver's newest (``12.8``)."""

    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[DetectedGpu, ...] = ()
    error: str | None = None
    unanswered: bool = False


_SEEN: ContextVar[dict[str, Detection] | None] = ContextVar("_SEEN", default=None)


@contextmanager
def one_look() -> Iterator[None]:
    """Ask NVML only once inside the block, so that many runs are planned for the same state of the machine."""
    token = _SEEN.set({})
    try:
        yield
    finally:
        _SEEN.reset(token)


def detect_gpus(host: Host, timeout_s: float = TIMEOUT_S) -> Detection:
    """Ask NVML. Never raises for a machine without GPU, driver or library; ``error`` holds the reason."""
    seen = _SEEN.get()
    if seen is None:
        return _detected(host, timeout_s)
    key = repr((host.python, sorted(host.shell.items())))
    if key not in seen:
        seen[key] = _detected(host, timeout_s)
    return seen[key]


def _detected(host: Host, timeout_s: float) -> Detection:
    """Without NVML's Python binding, as on a login node, the machine counts as one without GPU."""
    command = (host.python, "-m", "harness.engine.nvml_device", "list")
    answer, why = output_of(command, timeout_s, host.shell)
    try:
        found = None if why else Detection.model_validate_json(answer)
    except ValidationError:
        found, why = None, f"the answer cannot be read: {answer[:200].decode(errors='replace')}"
    return found or Detection(error=f"asking NVML: {why}", unanswered=NO_BINDING not in why)
