"""The software and hardware of this machine."""

import platform
import runpy
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import TypeVar

from pydantic import ValidationError

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.frozen import Frozen
from harness.experiment.gpu import GPUS, GpuType, gpu_named
from harness.experiment.software import ASSUMED_TRANSFORMER_ENGINE, Software, parse_assume
from harness.launch.environment import SAFE_PATH, Host
from harness.records.redact import quoted_error
from harness.units import counted, parse_version

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
        """Return the ``--gpu`` type that matches the product name; None for an unknown product."""
        return gpu_named(self.name) if self.name else None


class Detection(Frozen):
    """The GPUs of this machine. ``error``: why there are none; None and no GPUs: NVML found none.

    ``unanswered``: NVML could not be asked, so there may be GPUs. ``cuda``: the newest CUDA that the driver supports, e.g.
    ``12.8``.
    """

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
    command = (host.python, "-m", "harness.engine.nvml_device", "list")
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
    """Failed detection. Without NVML's Python binding, as on a login node, the machine counts as one without GPU."""
    return Detection(error=error, unanswered=NO_BINDING not in error)


TRAINING = {"torch": "2.6", "megatron-core": "0.16"}  # oldest supported releases, as in the extra `train`
# pip finds the installed harness and adds the packages of its extra `train`.
TRAIN_EXTRA = "pip install 'mbr-perf[train]', or use the environment that trains your models"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def declared_requirements() -> dict[str, tuple[str, ...]]:
    """Declared requirements of the packages that ranks import, from their metadata, without absent packages."""
    names = [name for name in (*TRAINING, "transformer-engine") if _version(name) is not None]
    return {name: tuple(metadata.requires(name) or ()) for name in names}


def installed_software() -> Software:
    """Return versions from package metadata, without importing the packages; the GPU type is left open.

    Apex only matters together with transformer-engine, so it is looked up only then.
    """
    transformer_engine = _version("transformer-engine")
    return Software(
        megatron_core=_version("megatron-core"),
        transformer_engine=transformer_engine,
        apex=find_spec("fused_weight_gradient_mlp_cuda") is not None if transformer_engine else None,
        torch=_version("torch"),
        python=platform.python_version(),
    )


def software_for(gpu: str, host: Host, assume: str | None = None) -> tuple[Software, tuple[str, ...]]:
    """Return the software that a run on ``gpu`` would find, and notes on assumed versions.

    Ranks on this machine find what is installed here. If this machine lacks the GPU, or NVML does not answer, the job may
    run elsewhere: then transformer-engine is assumed there. ``assume`` (`--assume`) replaces both.
    """
    found, notes = installed_software(), tuple[str, ...]()
    if _depends_on_gpus(gpu, found):
        found, notes = _seen_from(detect_gpus(host), gpu, found)
    if assume is None:
        return found, notes
    unnamed = notes if "transformer-engine" not in assume else ()
    return parse_assume(assume, found), (*unnamed, f"judged for {assume} (--assume)")


def _depends_on_gpus(gpu: str, installed: Software) -> bool:
    return not GPUS[gpu].is_cpu and installed.transformer_engine is None


def _seen_from(found: Detection, gpu: str, installed: Software) -> tuple[Software, tuple[str, ...]]:
    """Return the installed software if the GPUs are here, else with the assumed versions."""
    if _has(gpu, found):
        return installed, ()
    unsure = _unsure(found)
    where = (
        f"mbr-perf cannot tell whether this machine has {gpu} ({unsure})" if unsure else f"this machine has no {gpu}"
    )
    assumed = f"transformer-engine {ASSUMED_TRANSFORMER_ENGINE} is assumed where the job runs"
    note = f"{where}: {assumed} (change this with --assume of `mbr-perf check`)"
    return installed.model_copy(update={"transformer_engine": ASSUMED_TRANSFORMER_ENGINE}), (note,)


def _has(gpu: str, found: Detection) -> bool:
    return any(gpu_found.gpu_type is GPUS[gpu] for gpu_found in found.gpus)


def _unsure(found: Detection) -> str:
    """Say why there may be more GPUs than NVML named; empty if there are none."""
    return (found.error or "") if found.unanswered else next((gpu.error for gpu in found.gpus if gpu.error), "")


def software_here(gpu: str, host: Host) -> Software:
    """Return the software that a run on this machine finds.

    BadRequestError if that depends on the GPUs and NVML does not answer. A plan for a machine without GPUs would differ
    from the next plan, and their runs would not be comparable.
    """
    software = installed_software()
    if not _depends_on_gpus(gpu, software):
        return software
    found = detect_gpus(host)
    if not _has(gpu, found) and (unsure := _unsure(found)):
        raise BadRequestError(
            f"mbr-perf cannot tell whether this machine has {gpu}: {unsure}",
            remedy="try again once nvidia-smi lists the GPUs; `plan`, `check` and --dryrun do not need NVML",
        )
    return _seen_from(found, gpu, software)[0]


def settled_gpu(asked: str, host: Host) -> tuple[str, str]:
    """The GPU type to run on, and the reason in one line: the requested type, else the type that NVML names, else cpu.

    BadRequestError for an unknown GPU, for GPUs of several types, and for GPUs that do not answer: mbr-perf guesses none.
    """
    if asked:
        return asked.lower(), "--gpu"
    found = detect_gpus(host)
    names = sorted({gpu.name for gpu in found.gpus if gpu.name})
    unsure = _unsure(found)
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


_BRIDGE_SINCE = "0.3.0"  # the first release with callbacks


def bridge_version(host: Host) -> str:
    """Return the version of Megatron-Bridge that ranks of this Python will import, without importing it.

    BadRequestError if there is none, or one without callbacks.
    """
    found = find_spec("megatron.bridge") if find_spec("megatron") else None
    folders = list(found.submodule_search_locations or ()) if found else []
    if not folders:
        raise BadRequestError(
            f"--engine bridge: megatron.bridge is not installed in {host.python}, which would run the ranks",
            remedy="run mbr-perf inside the container of Megatron-Bridge, with its Python, or install megatron-bridge there",
        )
    version = str(runpy.run_path(str(Path(folders[0]) / "package_info.py"))["__version__"])
    if parse_version(version) < parse_version(_BRIDGE_SINCE):
        raise BadRequestError(
            f"--engine bridge: Megatron-Bridge {version} has no callbacks, by which mbr-perf measures",
            remedy=f"use Megatron-Bridge {_BRIDGE_SINCE} or later",
        )
    return version


def require_machine(spec: ExperimentSpec, host: Host, num_local_ranks: int, planned: Software | None = None) -> None:
    """Raise BadRequestError unless ranks of ``spec`` can start here: with packages, and a GPU of that type per rank.

    ``planned``: the versions that the run was judged for, if any.
    """
    missing = [name for name, module in (("torch", "torch"), ("megatron-core", "megatron")) if not find_spec(module)]
    if missing:
        raise BadRequestError(f"{' and '.join(missing)} not installed in {host.python}", remedy=TRAIN_EXTRA)
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
        unsure = _unsure(found)
        why = f" ({unsure or found.error})" if unsure or found.error else ""
        again = "try again once nvidia-smi lists the GPUs, or " if unsure else ""
        raise BadRequestError(
            f"{counted(num_local_ranks, 'rank')} on this node {'needs a GPU' if num_local_ranks == 1 else 'need as many GPUs'}; it has {len(present)}{why}",
            remedy=f"{again}run on a machine with GPUs, or use --gpu cpu for the scaled-down point, or --dryrun to see the plan",
        )
    others = sorted({gpu.name for gpu in present if gpu.name and gpu.gpu_type is not spec.gpu_type})
    if others:
        raise BadRequestError(
            f"--gpu {spec.gpu}, but this machine has {', '.join(others)}",
            remedy=f"give --gpu the type of this machine; --point_gpu {spec.gpu} still uses that operating point",
        )


Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def side_by_side(ask: Callable[[Asked], Answer], asked: Sequence[Asked], num_threads: int, stop: Event) -> list[Answer]:
    """Call ``ask`` for each item, at most ``num_threads`` at once. Return the answers in order.

    Any error, also Ctrl-C, sets ``stop`` and drops calls that have not begun. Leaving the pool waits for running calls, so
    ``ask`` must check ``stop`` now and then.
    """
    with ThreadPoolExecutor(max(1, num_threads)) as pool:
        try:
            return list(pool.map(ask, asked))
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
