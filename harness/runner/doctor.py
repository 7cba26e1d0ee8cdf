"""Is this machine fit: software, GPUs, compiler, disk, clock, port; each with its remedy."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import ExitCode
from harness.launch.devices import Detection, detect_gpus
from harness.launch.disk import free_bytes
from harness.launch.environment import Host
from harness.launch.rendezvous import free_port
from harness.records.atomic import write_atomically
from harness.runner.machine import TRAIN_EXTRA, installed_software
from harness.spec.gpu import GPUS
from harness.spec.software import Software, parse_version
from harness.units import GIB, format_bytes

State = Literal["ok", "warning", "problem"]

SHARED_MEMORY_BYTES = GIB
RESULTS_BYTES = GIB
EARLIEST_PLAUSIBLE_S = 1_735_689_600  # 2025-01-01: a clock before this release is wrong


@dataclass(frozen=True)
class Line:
    """One examination. ``remedy`` is what to do unless the state is ok."""

    name: str
    state: State
    found: str
    remedy: str = ""


def examine(host: Host, results: Path) -> tuple[Line, ...]:
    """Every line, whatever the others say."""
    software = installed_software()
    gpus = detect_gpus(host)
    parts: tuple[Iterator[Line], ...] = (
        _python(),
        _packages(software, has_gpu=bool(gpus.gpus)),
        _gpus(gpus),
        _compiler(software),
        _results(results),
        _shared_memory(),
        _clock(),
        _port(),
    )
    return tuple(line for part in parts for line in part)


def exit_code(lines: tuple[Line, ...]) -> ExitCode:
    """2 for a problem, 6 for a warning, else 0."""
    states = {line.state for line in lines}
    if "problem" in states:
        return ExitCode.BAD_REQUEST
    return ExitCode.INCONCLUSIVE if "warning" in states else ExitCode.OK


def _python() -> Iterator[Line]:
    found = f"{sys.version.split()[0]} at {sys.executable}"
    yield Line("Python", "ok" if sys.version_info >= (3, 11) else "problem", found, "use Python 3.11 or newer")


def _packages(software: Software, *, has_gpu: bool) -> Iterator[Line]:
    yield _package("torch", software.torch, "2.6", TRAIN_EXTRA)
    yield _package("megatron-core", software.megatron_core, "0.16", TRAIN_EXTRA)
    if not has_gpu:
        return
    te, remedy = software.transformer_engine, "pip install 'transformer-engine[pytorch]>=2.9,<2.12'"
    if te is None:
        yield Line(
            "transformer-engine",
            "warning",
            "not installed: local layers run, FP8 and MLA or MoE kernels do not",
            remedy,
        )
    elif not parse_version("2.9.0a0") < parse_version(te) < parse_version("2.12.0"):
        yield Line(
            "transformer-engine", "warning", f"{te}: outside 2.9 to 2.11, which megatron-core 0.16 declares", remedy
        )
    else:
        yield Line("transformer-engine", "ok", te)


def _package(name: str, version: str | None, at_least: str, remedy: str) -> Line:
    if version is None:
        return Line(name, "warning", "not installed: this machine plans and judges, it cannot train", remedy)
    if parse_version(version) < parse_version(at_least):
        return Line(name, "problem", f"{version} is older than {at_least}", f"pip install '{name}>={at_least}'")
    return Line(name, "ok", version)


def _gpus(found: Detection) -> Iterator[Line]:
    if not found.gpus:
        yield Line("GPU", "ok", f"none ({found.error or 'NVML lists none'}): runs use --gpu cpu")
        return
    yield Line("NVIDIA driver", "ok" if found.driver else "warning", found.driver or "unknown", "update the driver")
    for gpu in found.gpus:
        name = f"GPU {gpu.index}"
        if gpu.error or gpu.name is None:
            yield Line(name, "problem", gpu.error or "NVML gives no name", "nvidia-smi says more; it may need a reset")
        elif gpu.gpu_type is None:
            yield Line(name, "warning", f"{gpu.name}: no row of mbr-perf", f"name one with --gpu: {', '.join(GPUS)}")
        else:
            size = format_bytes(gpu.total_bytes) if gpu.total_bytes else "unknown memory"
            yield Line(name, "ok", f"{gpu.name}, {size}: --gpu {gpu.gpu_type.name}")


def _compiler(software: Software) -> Iterator[Line]:
    """From 0.17 on, output-discarding recompute compiles an extension in the first backward."""
    if software.megatron_core is None or parse_version(software.megatron_core) < parse_version("0.17"):
        return
    missing = [tool for tool in ("c++", "ninja") if shutil.which(tool) is None]
    if missing:
        yield Line(
            "compiler", "warning",
            f"no {' and no '.join(missing)}: layernorm, moe_act and mla_up_proj recompute fail in the first backward",
            "install a C++ compiler and ninja on every node",
        )  # fmt: skip
    else:
        yield Line("compiler", "ok", "c++ and ninja")


def _results(results: Path) -> Iterator[Line]:
    try:
        results.mkdir(parents=True, exist_ok=True)
        probe = results / f".doctor-{os.getpid()}"
        write_atomically(probe, "probe\n")
        probe.unlink()
        free = free_bytes(results)
    except OSError as error:
        yield Line(
            "results folder", "problem", f"{results}: {error.strerror}", "name a writable one with --results_dir"
        )
        return
    state: State = "ok" if free >= RESULTS_BYTES else "warning"
    found = f"{results}: fsync and atomic rename work, {format_bytes(free)} free"
    yield Line("results folder", state, found, f"keep {format_bytes(RESULTS_BYTES)} free")


def _shared_memory() -> Iterator[Line]:
    path = Path("/dev/shm")  # noqa: S108 (where NCCL and torch put shared memory)
    if not path.is_dir():
        yield Line("shared memory", "warning", "no /dev/shm", "NCCL within a node needs it")
        return
    size = shutil.disk_usage(path).total
    yield Line("shared memory", "ok" if size >= SHARED_MEMORY_BYTES else "warning", format_bytes(size),
               "in a container: --shm-size=8g or --ipc=host")  # fmt: skip


def _clock() -> Iterator[Line]:
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    yield Line("clock", "ok" if now > EARLIEST_PLAUSIBLE_S else "warning", stamp, "set the clock: run folders carry it")


def _port() -> Iterator[Line]:
    yield _attempt("port", lambda: f"{free_port()} is free on the loopback interface", "ranks meet on a TCP port")


def _attempt(name: str, probe: Callable[[], str], remedy: str) -> Line:
    try:
        return Line(name, "ok", probe())
    except OSError as error:
        return Line(name, "problem", str(error), remedy)
