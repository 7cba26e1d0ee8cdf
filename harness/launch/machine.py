"""The software and the GPU type of this machine."""

import platform
from importlib import metadata
from importlib.util import find_spec

from harness.errors import BadRequestError
from harness.experiment.gpu import GPUS
from harness.experiment.software import ASSUMED_TRANSFORMER_ENGINE, Software, parse_assume
from harness.launch.detection import Detection, detect_gpus
from harness.launch.environment import Host

TRAINING = {"torch": "2.6", "megatron-core": "0.16"}  # oldest supported releases, as in the extra `train`
# pip finds the installed harness and adds the packages of its extra `train`.
TRAIN_EXTRA = "pip install 'mbr-perf[train]', or use the environment that trains your models"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def installed_software() -> Software:
    """Return versions from package metadata; Apex only beside transformer-engine. The GPU type is left open."""
    transformer_engine = _version("transformer-engine")
    return Software(
        megatron_core=_version("megatron-core"),
        transformer_engine=transformer_engine,
        apex=find_spec("fused_weight_gradient_mlp_cuda") is not None if transformer_engine else None,
        torch=_version("torch"),
        python=platform.python_version(),
    )


def software_for(
    gpu: str, host: Host, assume: str | None = None, *, must_answer: bool = False
) -> tuple[Software, tuple[str, ...]]:
    """Return the software that a run on ``gpu`` finds: here, or assumed elsewhere. ``must_answer``: NVML has to."""
    found, notes = installed_software(), tuple[str, ...]()
    seen = None if GPUS[gpu].is_cpu or found.transformer_engine is not None else detect_gpus(host)
    if seen and not any(each.gpu_type is GPUS[gpu] for each in seen.gpus):
        where, unsure = f"this machine has no {gpu}", unsure_of(seen)
        if unsure and must_answer:
            raise BadRequestError(
                f"mbr-perf cannot tell whether this machine has {gpu}: {unsure}",
                remedy="try again once nvidia-smi lists the GPUs; `plan`, `check` and --dryrun do not need NVML",
            )
        if unsure:
            where = f"mbr-perf cannot tell whether this machine has {gpu} ({unsure})"
        assumed = f"transformer-engine {ASSUMED_TRANSFORMER_ENGINE} is assumed where the job runs"
        found = found.model_copy(update={"transformer_engine": ASSUMED_TRANSFORMER_ENGINE, "assumed": True})
        notes = (f"{where}: {assumed} (change this with --assume)",)
    if assume is None:
        return found, notes
    unnamed = notes if "transformer-engine" not in assume else ()
    return parse_assume(assume, found), (*unnamed, f"judged for {assume} (--assume)")


def unsure_of(found: Detection) -> str:
    """Say why there may be more GPUs than NVML named; empty if there are none."""
    return (found.error or "") if found.unanswered else next((gpu.error for gpu in found.gpus if gpu.error), "")


def settled_gpu(host: Host) -> tuple[str, str]:
    """Return the GPU type that NVML names, else cpu, and why. BadRequestError for an unknown GPU, or several types."""
    found = detect_gpus(host)
    names = sorted({gpu.name for gpu in found.gpus if gpu.name})
    unsure = unsure_of(found)
    if not names and unsure:
        raise BadRequestError(
            f"mbr-perf cannot tell which GPUs this machine has: {unsure}",
            remedy="name the type with --gpu, or use --gpu cpu",
        )
    if not names:
        return "cpu", f"no NVIDIA GPU on this machine ({found.error or 'NVML lists none'})"
    rows = {gpu.gpu_type.name if gpu.gpu_type else None for gpu in found.gpus if gpu.name}
    row = next(iter(rows))
    if len(rows) > 1 or row is None:
        raise BadRequestError(
            f"this machine has {', '.join(names)}: unknown to mbr-perf, or of several types",
            remedy="name the type with --gpu",
        )
    return row, f"this machine has {names[0]} (NVML)"
