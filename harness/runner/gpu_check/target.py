"""What is checked: this machine's GPU, or its processor in a rehearsal."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.errors import BadRequestError
from harness.launch.devices import DetectedGpu, detect_gpus
from harness.launch.environment import SAFE_PATH, Host
from harness.records.redact import redact
from harness.runner.machine import installed_software, settled_gpu
from harness.spec.software import Software
from harness.units import GB

# A driver that nothing has used for a while takes its time to start, and every later question is quick.
_NVML_TIMEOUT_S = 60.0

# Full-width shapes train in this much; less takes the recipes' `small` variant.
LARGE_BYTES = {"dense": 40 * GB, "moe": 75 * GB, "mla": 45 * GB}


@dataclass(frozen=True)
class Target:
    """``gpu`` is the row of `-g`, ``device`` the product's name, ``total_bytes`` its memory (None on a processor).

    ``code``: what it is measured with, as :func:`code_of` names it.
    """

    host: Host
    gpu: str
    device: str
    driver: str | None = None
    total_bytes: int | None = None
    uuid: str | None = None
    software: Software = field(default_factory=Software)
    code: str = ""

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
    """The first GPU that ranks would see. BadRequestError without one, or for a product that no row knows."""
    if rehearse:
        return Target(host, "cpu", "processor", software=installed_software())
    found = detect_gpus(host, timeout_s=_NVML_TIMEOUT_S)
    present = [gpu for gpu in found.gpus if gpu.name]
    if not present:
        raise BadRequestError(
            f"no NVIDIA GPU on this machine ({found.error or 'NVML lists none'})",
            remedy="run it where the GPU is, or add --rehearse to go through the same steps on the processor",
        )
    gpu, _ = settled_gpu("", host)
    first = _first_visible(present, host.shell)
    return Target(host, gpu, first.name or gpu, found.driver, first.total_bytes, first.uuid, installed_software())


def _first_visible(present: Sequence[DetectedGpu], shell: Mapping[str, str]) -> DetectedGpu:
    """That of CUDA_VISIBLE_DEVICES, by number or the beginning of its UUID. BadRequestError where that is no GPU, or several."""
    asked = shell.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if not asked:
        return present[0]
    named = [
        gpu
        for gpu in present
        if str(gpu.index) == asked or (not asked.isdigit() and (gpu.uuid or "").startswith(asked))
    ]
    if len(named) != 1:
        listed = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in present)
        raise BadRequestError(
            f"CUDA_VISIBLE_DEVICES: {asked} is {'the beginning of several GPUs' if named else 'no GPU'} of this machine",
            remedy=f"name one of {listed}; a slice (MIG) cannot be checked",
        )
    return named[0]


_TORCH = "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.device_count())"
_TORCH_TIMEOUT_S = 120.0


def require_torch(target: Target) -> None:
    """BadRequestError where torch cannot use the GPU that NVML lists; nothing would come of any stage then."""
    if target.is_rehearsal:
        return
    command = (target.host.python, "-c", _TORCH)
    try:
        done = subprocess.run(
            command, env={**target.host.shell, **SAFE_PATH}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_TORCH_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BadRequestError(f"torch did not start within {_TORCH_TIMEOUT_S:.0f} s") from error
    words = done.stdout.split()[-3:]
    if done.returncode != 0 or len(words) < 3:
        raise BadRequestError(f"torch cannot be imported: {redact(' '.join(done.stderr.strip().splitlines()[-1:]))}")
    version, cuda, count = words
    if not int(count):
        what = "is built without CUDA" if cuda == "None" else f"with CUDA {cuda} finds no GPU"
        raise BadRequestError(
            f"NVML lists {target.device}, driver {target.driver}, but torch {version} {what}",
            remedy="install a torch for this driver, look at CUDA_VISIBLE_DEVICES, or add --rehearse",
        )
