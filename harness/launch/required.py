"""What ranks need of this machine before they start: packages, GPUs, Megatron-Bridge."""

import runpy
from importlib.util import find_spec
from pathlib import Path

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.software import Software
from harness.launch.detection import Detection, detect_gpus
from harness.launch.environment import Host
from harness.launch.machine import TRAIN_EXTRA, installed_software, unsure_of
from harness.units import parse_version

_BRIDGE_SINCE = "0.3.0"  # the first release with callbacks


def bridge_version(host: Host) -> str:
    """Return the version of the installed Megatron-Bridge. BadRequestError if there is none with callbacks."""
    found = find_spec("megatron.bridge") if find_spec("megatron") else None
    folders = list(found.submodule_search_locations or ()) if found else []
    if not folders:
        raise BadRequestError(
            f"--engine bridge: megatron.bridge is not installed in {host.python}, which would run the ranks",
            remedy="run mbr-perf with the Python of Megatron-Bridge's container, or install megatron-bridge there",
        )
    version = str(runpy.run_path(str(Path(folders[0]) / "package_info.py"))["__version__"])
    if parse_version(version) < parse_version(_BRIDGE_SINCE):
        raise BadRequestError(
            f"--engine bridge: Megatron-Bridge {version} has no callbacks, by which mbr-perf measures",
            remedy=f"use Megatron-Bridge {_BRIDGE_SINCE} or later",
        )
    return version


def require_machine(spec: ExperimentSpec, host: Host, num_local_ranks: int, planned: Software | None = None) -> None:
    """Raise BadRequestError unless ranks can start here. ``planned``: the versions that the run was judged for."""
    missing = [name for name, module in (("torch", "torch"), ("megatron-core", "megatron")) if not find_spec(module)]
    if missing:
        raise BadRequestError(f"{' and '.join(missing)} not installed in {host.python}", remedy=TRAIN_EXTRA)
    if spec.optimizer.is_muon and not find_spec("emerging_optimizers"):
        raise BadRequestError(
            f"{spec.optimizer.optimizer} needs emerging-optimizers, which is not installed in {host.python}",
            remedy="pip install 'emerging-optimizers>=0.3,<1', with Python 3.12 or later; or train with adam",
        )
    if spec.engine is not None and (here := bridge_version(host)) != spec.engine.version:
        raise BadRequestError(
            f"planned for Megatron-Bridge {spec.engine.version}, but {host.python} has {here}",
            remedy="start again, or install the release that it was planned for",
        )
    if spec.gpu_type.is_cpu:
        return
    _require_gpus(spec, detect_gpus(host), num_local_ranks)
    if planned and planned.transformer_engine and installed_software().transformer_engine is None:
        raise BadRequestError(
            f"planned for transformer-engine {planned.transformer_engine}, which is not installed in {host.python}",
            remedy="install it, or plan again: NVML did not answer when this run was planned",
        )


def _require_gpus(spec: ExperimentSpec, found: Detection, num_local_ranks: int) -> None:
    present = [gpu for gpu in found.gpus if gpu.name]
    if len(present) < num_local_ranks:
        why = unsure_of(found) or found.error
        raise BadRequestError(
            f"GPUs needed on this node: {num_local_ranks}; it has {len(present)}{f' ({why})' if why else ''}",
            remedy="run where nvidia-smi lists the GPUs, or use --gpu cpu for the scaled-down point, or --dryrun",
        )
    others = sorted({gpu.name for gpu in present if gpu.name and gpu.gpu_type is not spec.gpu_type})
    if others:
        raise BadRequestError(
            f"--gpu {spec.gpu}, but this machine has {', '.join(others)}",
            remedy=f"give --gpu the type of this machine; --point_gpu {spec.gpu} still uses that operating point",
        )
