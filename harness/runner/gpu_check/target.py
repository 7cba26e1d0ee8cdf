"""What is checked: this machine's GPU, or its processor in a rehearsal."""

from dataclasses import dataclass

from harness.errors import BadRequestError
from harness.launch.devices import detect_gpus
from harness.launch.environment import Host
from harness.runner.machine import settled_gpu
from harness.units import GB

# Full-width shapes train in this much; less takes the recipes' `small` variant.
LARGE_BYTES = {"dense": 40 * GB, "moe": 75 * GB, "mla": 45 * GB}


@dataclass(frozen=True)
class Target:
    """``gpu`` is the row of `-g`, ``device`` the product's name, ``total_bytes`` its memory (None on a processor)."""

    host: Host
    gpu: str
    device: str
    driver: str | None = None
    total_bytes: int | None = None

    @property
    def is_rehearsal(self) -> bool:
        """Whether checks that need a GPU are left out."""
        return self.gpu == "cpu"

    def variant(self, shape: str) -> str | None:
        """The recipe variant that fits this GPU; None for full width, and in a rehearsal."""
        if self.total_bytes is None or self.total_bytes >= LARGE_BYTES[shape]:
            return None
        return "small"


def find_target(host: Host, *, rehearse: bool) -> Target:
    """The first GPU of this machine. BadRequestError without one, or for a product that no row knows."""
    if rehearse:
        return Target(host, "cpu", "processor")
    found = detect_gpus(host)
    present = [gpu for gpu in found.gpus if gpu.name]
    if not present:
        raise BadRequestError(
            f"no NVIDIA GPU on this machine ({found.error or 'NVML lists none'})",
            remedy="run it where the GPU is, or add --rehearse to go through the same steps on the processor",
        )
    gpu, _ = settled_gpu("", host)
    first = present[0]
    return Target(host, gpu, first.name or gpu, found.driver, first.total_bytes)
