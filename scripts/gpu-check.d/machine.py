"""The machine that is checked: its GPUs, or its CPU in a rehearsal; first whether it is fit."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import harness
from harness.errors import BadRequestError
from harness.experiment.software import Software
from harness.launch.detection import DetectedGpu, Detection, detect_gpus
from harness.launch.environment import Host
from harness.launch.machine import installed_software, settled_gpu
from harness.results.examine import examine
from harness.units import GB

# The first call into an idle driver can take tens of seconds; later calls are quick.
_NVML_TIMEOUT_S = 60.0
# Where the doctor's remedy is an option that gpu-check does not have.
_REMEDIES = {"results folder": "use a checkout that you may write to: gpu-check keeps its runs and results there"}

# Full-width shapes train in this much memory; a smaller GPU takes the recipes' `small` variant.
LARGE_BYTES = {"dense": 40 * GB, "moe": 75 * GB, "mla": 45 * GB}


@dataclass(frozen=True)
class Target:
    """``gpu`` is the row of `-g`, ``device`` the product name, ``total_bytes`` its memory (None on a CPU).

    ``uuids``: of the GPUs that ranks may use, in their order. ``code``: see :func:`code_of`.
    """

    host: Host
    gpu: str
    device: str
    driver: str | None = None
    total_bytes: int | None = None
    uuids: tuple[str, ...] = ()
    software: Software = field(default_factory=Software)
    code: str = ""

    @property
    def is_rehearsal(self) -> bool:
        """Return whether checks that need a GPU are left out."""
        return self.gpu == "cpu"

    @property
    def identity(self) -> dict[str, object]:
        """Device, software and code. Results are put together only where these are equal."""
        device = {"gpu": self.gpu, "device": self.device, "driver": self.driver, "total_bytes": self.total_bytes}
        return {**device, "software": self.software.model_dump(), "code": self.code}

    def variant(self, shape: str) -> str | None:
        """Return the recipe variant that fits this GPU: None for full width, and in a rehearsal."""
        return "small" if self.total_bytes is not None and self.total_bytes < LARGE_BYTES.get(shape, 0) else None


def find_target(host: Host, programs: Path, *, rehearse: bool) -> Target:
    """Return the first GPU that ranks would use. BadRequestError without one, or for a product that mbr-perf does not know."""
    software, code = installed_software(), code_of(programs)
    if rehearse:
        return Target(host, "cpu", "CPU", software=software, code=code)
    found = detect_gpus(host, timeout_s=_NVML_TIMEOUT_S)
    present = [gpu for gpu in found.gpus if gpu.name]
    if not present:
        raise BadRequestError(
            f"no NVIDIA GPU on this machine ({found.error or 'NVML lists none'})",
            remedy="run it where the GPU is, or add --rehearse to run the same stages on the CPU",
        )
    gpu, _ = settled_gpu(host)
    asked = host.shell.get("CUDA_VISIBLE_DEVICES", "").strip()
    visible = [_named(present, name.strip()) for name in asked.split(",")] if asked else present
    first, uuids = visible[0], tuple(each.uuid or f"GPU {each.index}" for each in visible)
    return Target(host, gpu, first.name or gpu, found.driver, first.total_bytes, uuids, software, code)


def _named(present: Sequence[DetectedGpu], name: str) -> DetectedGpu:
    """Return the GPU with this index, or whose UUID begins with it. BadRequestError where it names none, or several."""
    is_uuid = name and not name.isdigit()
    matching = [gpu for gpu in present if str(gpu.index) == name or (is_uuid and (gpu.uuid or "").startswith(name))]
    if len(matching) != 1:
        listed = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in present)
        raise BadRequestError(
            f"CUDA_VISIBLE_DEVICES: {name!r} is {'the beginning of several GPUs' if matching else 'no GPU'} of this machine",
            remedy=f"name one of {listed}; gpu-check cannot check a slice (MIG)",
        )
    return matching[0]


def require_fit(target: Target, results: Path) -> list[str]:
    """Ask the doctor. Return its warnings; BadRequestError with every problem and its remedy.

    A rehearsal uses no GPU, so the doctor is asked about a machine without one.
    """
    gpus = Detection() if target.is_rehearsal else detect_gpus(target.host, timeout_s=_NVML_TIMEOUT_S)
    lines = examine(target.host, results, gpus)
    wrong = (line for line in lines if line.state == "problem")
    if problems := [f"{line.name}: {line.found}\n  {_REMEDIES.get(line.name, line.remedy)}" for line in wrong]:
        raise BadRequestError("\n".join(["this machine is not fit (mbr-perf doctor):", *problems]))
    return [f"{line.name}: {line.found}; {line.remedy}" for line in lines if line.state == "warning"]


def code_of(programs: Path) -> str:
    """Return sixteen hex digits over the harness and the folder ``programs``, by file name and content.

    The commit does not serve: it moves when results are committed between two sittings, and an image may hold no git.
    """
    package = Path(harness.__file__).parent
    digest = hashlib.sha256()
    for folder, pattern in ((package, "**/*.py"), (programs, "*.*")):
        for path in sorted(path for path in folder.glob(pattern) if path.is_file()):
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
