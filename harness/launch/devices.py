"""The GPUs of this machine, asked for in a child process: a driver that hangs must not hang the command line."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pydantic import ValidationError

from harness.experiment.gpu import Frozen, GpuType, gpu_named
from harness.launch.environment import SAFE_PATH, Host
from harness.records.process_error import quoted_error

TIMEOUT_S = 10.0
NO_BINDING = "No module named 'pynvml'"


class DetectedGpu(Frozen):
    """One GPU as NVML lists it; ``error`` instead of the rest when it cannot be talked to."""

    index: int
    name: str | None = None
    uuid: str | None = None
    total_bytes: int | None = None
    error: str | None = None

    @property
    def gpu_type(self) -> GpuType | None:
        """The row of ``-g`` that fits the product name; None for a product that no row knows."""
        return gpu_named(self.name) if self.name else None


class Detection(Frozen):
    """What this machine has. ``error`` says why there are no GPUs; None with no GPUs means that NVML found none.

    ``unanswered``: the question itself failed, so that there may be GPUs all the same. ``cuda`` is the newest CUDA that the driver supports, e.g. ``12.8``.
    """

    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[DetectedGpu, ...] = ()
    error: str | None = None
    unanswered: bool = False


_SEEN: ContextVar[dict[str, Detection] | None] = ContextVar("_SEEN", default=None)


@contextmanager
def one_look() -> Iterator[None]:
    """Inside, NVML is asked once: many runs are planned for what the machine has at one moment."""
    token = _SEEN.set({})
    try:
        yield
    finally:
        _SEEN.reset(token)


def detect_gpus(host: Host, timeout_s: float = TIMEOUT_S) -> Detection:
    """Ask NVML. Never raises for a machine without GPU, driver or library: that is what ``error`` says."""
    seen = _SEEN.get()
    if seen is None:
        return _detected(host, timeout_s)
    key = repr((host.python, sorted(host.shell.items())))
    if key not in seen:
        seen[key] = _detected(host, timeout_s)
    return seen[key]


def _detected(host: Host, timeout_s: float) -> Detection:
    command = (host.python, "-m", "harness.engine.nvml", "list")
    env = {**host.shell, **SAFE_PATH}
    try:
        asked = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return _unanswered(f"NVML did not answer within {timeout_s:g} s")
    if asked.returncode != 0:
        return _unanswered(f"asking NVML failed with exit code {asked.returncode}: {quoted_error(asked.stderr)}")
    try:
        return Detection.model_validate_json(asked.stdout)
    except ValidationError:
        return _unanswered(f"NVML's answer cannot be read: {asked.stdout[:200].decode(errors='replace')}")


def _unanswered(error: str) -> Detection:
    """An installation without NVML's Python binding, as on a login node, is taken for a machine without GPU."""
    return Detection(error=error, unanswered=NO_BINDING not in error)
