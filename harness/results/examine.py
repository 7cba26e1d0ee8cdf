"""Checks what this machine can run, and what it lacks."""

import os
import shutil
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import ExitCode
from harness.experiment.gpu import GPUS
from harness.experiment.software import Software
from harness.launch.detection import DetectedGpu, Detection, detect_gpus
from harness.launch.environment import LATE, LATE_REMEDY, Host, inherited, output_of
from harness.launch.machine import TRAIN_EXTRA, TRAINING, installed_software
from harness.records.disk import free_bytes
from harness.records.store import write_atomically
from harness.show import page
from harness.show.json import Document
from harness.units import GIB, counted, format_bytes, parse_version

SHARED_MEMORY_BYTES = GIB
RESULTS_BYTES = GIB
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (NCCL and torch put shared memory there)
OLDEST_PYTHON = (3, 11)
IMPORT_S = 120.0

NEWEST_MEGATRON_CORE = "0.21.0dev0"  # exclusive; as rule ENV02

_NO_LIBRARY = "NVML Shared Library Not Found"
State = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Line:
    """The result of one check. ``remedy``: what to do if the state is not ok."""

    name: str
    state: State
    found: str
    remedy: str = ""


class MachineDocument(Document):
    """``mbr-perf doctor --json``."""

    lines: tuple[Line, ...]
    exit_code: int


def examine(host: Host, results: Path, gpus: Detection | None = None) -> tuple[Line, ...]:
    """Return the lines of all checks. ``gpus``: the GPUs if known; otherwise NVML lists them."""
    software, gpus = installed_software(), detect_gpus(host) if gpus is None else gpus
    parts: tuple[Iterator[Line], ...] = (
        python_line(sys.version_info[:2]),
        software_lines(software, gpus),
        gpu_lines(gpus),
        import_line(host, software, gpus),
        compiler_line(software, gpus, host.shell, Path(sysconfig.get_path("include"))),
        results_line(results),
        shared_memory_line(SHARED_MEMORY),
    )
    return tuple(line for part in parts for line in part)


def exit_code(lines: tuple[Line, ...]) -> ExitCode:
    """Return 2 for a problem, 6 for a warning, else 0."""
    states = {line.state for line in lines}
    if "problem" in states:
        return ExitCode.BAD_REQUEST
    return ExitCode.INCONCLUSIVE if "warning" in states else ExitCode.OK


def python_line(version: tuple[int, ...]) -> Iterator[Line]:
    """Check the Python interpreter, which ranks use too."""
    found = f"{'.'.join(map(str, version))} at {sys.executable}"
    yield Line("Python", "ok" if version >= OLDEST_PYTHON else "problem", found, "use Python 3.11 or newer")


def software_lines(software: Software, gpus: Detection) -> Iterator[Line]:
    """Check torch and megatron-core; on a machine with GPUs also whether transformer-engine is there."""
    yield _at_least("torch", software.torch)
    version = software.megatron_core
    if version and parse_version(version) >= parse_version(NEWEST_MEGATRON_CORE):
        found = f"{version} is newer than the releases that the rules cover (0.16 to 0.20)"
        remedy = "pip install 'megatron-core<0.21', or do not rely on missing findings"
        yield Line("megatron-core", "warning", found, remedy)
    else:
        yield _at_least("megatron-core", version)
    if gpus.gpus and software.transformer_engine is None:
        found = "not installed: only megatron-core's local layers run, without FP8"
        remedy = "pip install --no-build-isolation 'transformer-engine[pytorch]'"
        yield Line("transformer-engine", "warning", found, remedy)
    elif gpus.gpus:
        yield Line("transformer-engine", "ok", software.transformer_engine or "")


def _at_least(name: str, version: str | None) -> Line:
    least = TRAINING[name]
    if version is None:
        found = "not installed: this machine can check and judge, but cannot plan or train"
        return Line(name, "warning", found, TRAIN_EXTRA)
    if parse_version(version) < parse_version(least):
        return Line(name, "problem", f"{version} is older than {least}", f"pip install '{name}>={least}'")
    return Line(name, "ok", version)


def gpu_lines(found: Detection) -> Iterator[Line]:
    """Check the driver and each GPU; without a GPU, say whether there is none or NVML failed."""
    if not found.gpus:
        yield _without_gpu(found.error)
        return
    driver = f"{found.driver or 'unknown'}{f', for CUDA up to {found.cuda}' if found.cuda else ''}"
    yield Line("NVIDIA driver", "ok" if found.driver else "warning", driver, "update the driver")
    for gpu in found.gpus:
        yield _gpu(gpu)


def _without_gpu(error: str | None) -> Line:
    if error is None or _NO_LIBRARY in error:
        return Line("GPU", "ok", f"none ({error or 'NVML lists none'}): runs use --gpu cpu")
    remedy = "if this machine has NVIDIA GPUs, nvidia-smi must list them"
    return Line("GPU", "warning", f"none found (NVML failed: {error})", remedy)


def _gpu(gpu: DetectedGpu) -> Line:
    name = f"GPU {gpu.index}"
    if gpu.error or gpu.name is None:
        remedy = "run nvidia-smi for details; the GPU may need a reset"
        return Line(name, "problem", gpu.error or "NVML gives no name", remedy)
    if gpu.gpu_type is None:
        remedy = f"name the most similar GPU with --gpu: {', '.join(row for row in GPUS if row != 'cpu')}"
        return Line(name, "warning", f"{gpu.name}: mbr-perf does not know this GPU", remedy)
    size = format_bytes(gpu.total_bytes) if gpu.total_bytes else "unknown memory"
    return Line(name, "ok", f"{gpu.name}, {size}: --gpu {gpu.gpu_type.name}")


def import_line(host: Host, software: Software, gpus: Detection, timeout_s: float = IMPORT_S) -> Iterator[Line]:
    """Import what ranks import, with their variables; no line without GPUs. Metadata show no missing library."""
    if not gpus.gpus or software.torch is None:
        return
    modules = ", ".join(("torch", "transformer_engine.pytorch") if software.transformer_engine else ("torch",))
    command = (host.python, "-c", f"import {modules}; print(torch.cuda.device_count())")
    environment = {variable.name: variable.value for variable in inherited(host.shell)}
    out, why = output_of(command, timeout_s, environment)
    if why:
        remedy = "install a build for this torch and CUDA, or put its libraries on LD_LIBRARY_PATH"
        yield Line("imports", "problem", f"{modules}: {why}", LATE_REMEDY if why.startswith(LATE) else remedy)
        return
    count = int(out.split()[-1])
    found = f"{modules}; torch {software.torch} finds {count} of {counted(len(gpus.gpus), 'GPU')}"
    state: State = "ok" if count else "problem"
    yield Line("imports", state, found, "install a torch for this driver, or check CUDA_VISIBLE_DEVICES")


def compiler_line(software: Software, gpus: Detection, shell: Mapping[str, str], headers: Path) -> Iterator[Line]:
    """Check what Triton and output-discarding recompute (K18) compile with; no line if runs compile nothing."""
    path = shell.get("PATH", os.defpath)
    by_triton = bool(gpus.gpus) and software.torch is not None
    by_recompute = parse_version(software.megatron_core or "0") >= parse_version("0.17")
    has_cc = bool(shell.get("CC")) or any(shutil.which(tool, path=path) for tool in ("gcc", "clang"))
    header = ["Python.h"] * (not (headers / "Python.h").is_file())
    of_triton = [*["C compiler"] * (not has_cc), *header] * by_triton
    of_recompute = [*(tool for tool in ("c++", "ninja") if not shutil.which(tool, path=path)), *header]
    if missing := of_triton or (of_recompute if by_recompute else []):
        what = "the first step of every GPU run fails" if of_triton else "output-discarding recompute fails"
        remedy = "on every node: apt-get install g++ ninja-build python3-dev, or similar"
        state: State = "problem" if of_triton else "warning"
        yield Line("compiler", state, f"no {' and no '.join(missing)}: {what}", remedy)
    elif by_triton or by_recompute:
        yield Line("compiler", "ok", "compilers and Python.h")


def results_line(results: Path) -> Iterator[Line]:
    """Check that a file can be written, flushed and renamed there, as records are."""
    name, other = "results folder", "name a writable folder with --results_dir"
    there = next(folder for folder in (results.absolute(), *results.absolute().parents) if folder.exists())
    try:
        probe = there / f".doctor-{os.getpid()}"
        write_atomically(probe, "probe\n")
        probe.unlink()
        free = free_bytes(there)
    except OSError as error:
        yield Line(name, "problem", f"{results}: {error.strerror}", other)
        return
    state: State = "ok" if free >= RESULTS_BYTES else "warning"
    found = f"{results}: fsync and atomic rename work, {format_bytes(free)} free"
    yield Line(name, state, found, f"keep {format_bytes(RESULTS_BYTES)} free, or {other}")


def shared_memory_line(folder: Path) -> Iterator[Line]:
    """Check shared memory. A container has 64 MiB by default, with which NCCL fails with a bus error."""
    remedy = "in a container: --shm-size=8g or --ipc=host"
    if not folder.is_dir():
        yield Line("shared memory", "warning", f"no {folder}, which NCCL needs within a node", remedy)
        return
    size = shutil.disk_usage(folder).total
    state: State = "ok" if size >= SHARED_MEMORY_BYTES else "warning"
    yield Line("shared memory", state, f"{format_bytes(size)} at {folder}", remedy)


_INDENT = 9  # after the state
_STYLES: dict[State, page.Style] = {"ok": "good", "warning": "doubt", "problem": "failed"}


def machine_page(lines: Iterable[Line]) -> page.Page:
    """Return all lines, with the remedy of each problem and warning."""
    blocks, found = [], tuple(lines)
    for line in found:
        state = page.Span(f"{line.state:<8}", _STYLES[line.state])
        blocks.append(page.Line((state, f" {line.name}: {line.found}"), hang=_INDENT))
        if line.state != "ok" and line.remedy:
            blocks.append(page.Line(f"{' ' * _INDENT}{line.remedy}", hang=_INDENT))
    counts = Counter(line.state for line in found if line.state != "ok")
    return page.Page(tuple(blocks), answer=", ".join(counted(n, word) for word, n in counts.items()) or "All is well.")
