"""Judges whether the installed software fits together."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from typing import Literal, Self

from harness.experiment.software import Software
from harness.launch.detection import Detection
from harness.launch.machine import TRAIN_EXTRA, TRAINING
from harness.units import parse_version

State = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Line:
    """The result of one check. ``remedy``: what to do if the state is not ok."""

    name: str
    state: State
    found: str
    remedy: str = ""


CPU_BUILD = "cpu"
NEWEST_MEGATRON_CORE = "0.21.0dev0"  # exclusive; as rule ENV02

_RANGE = re.compile(r"(?P<name>[\w.-]+)\s*(?:\[[^\]]*\])?\s*\(?(?P<bounds>[^;)]*)")
_BOUND = re.compile(r"(>=|<)\s*([\w.]+)")
_LOCAL_CUDA = re.compile(r"\+cu(\d+)(\d)$")
_RUNTIME = re.compile(r"(?:nvidia-cuda-runtime(?:-cu\d+)?|cuda-toolkit)(?:\[[^\]]*\])?\s*==\s*(\d+\.\d+)")


@dataclass(frozen=True)
class Declared:
    """Requirements that installed packages declare in their metadata: package -> PEP 508 strings."""

    requirements: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def here(cls) -> Self:
        """Read those of the packages that ranks import, without absent packages."""
        found: dict[str, tuple[str, ...]] = {}
        for name in (*TRAINING, "transformer-engine"):
            with suppress(metadata.PackageNotFoundError):
                found[name] = tuple(metadata.requires(name) or ())
        return cls(found)

    def bounds(self, package: str, of: str) -> tuple[str | None, str | None]:
        """Lowest and first excluded version of ``of`` that ``package`` declares; None if it declares none."""
        for requirement in self.requirements.get(package, ()):
            match = _RANGE.match(requirement)
            if match and match["name"].lower() == of:
                found = dict(_BOUND.findall(match["bounds"]))
                return found.get(">="), found.get("<")
        return None, None


def software_lines(software: Software, declared: Declared, gpus: Detection) -> Iterator[Line]:
    """Check torch and megatron-core; on a machine with GPUs also transformer-engine and CUDA."""
    needed, _ = declared.bounds("megatron-core", "torch")
    yield _at_least("torch", software.torch, max(needed or TRAINING["torch"], TRAINING["torch"], key=parse_version))
    yield _megatron_core(software.megatron_core)
    if gpus.gpus:
        yield _transformer_engine(software.transformer_engine, declared)
        if software.torch:
            yield cuda_line(software.torch, cuda_of(software.torch, declared.requirements.get("torch", ())), gpus.cuda)


def _at_least(name: str, version: str | None, least: str) -> Line:
    if version is None:
        found = "not installed: this machine can check and judge, but cannot plan or train"
        return Line(name, "warning", found, TRAIN_EXTRA)
    if parse_version(version) < parse_version(least):
        return Line(name, "problem", f"{version} is older than {least}", f"pip install '{name}>={least}'")
    return Line(name, "ok", version)


def _megatron_core(version: str | None) -> Line:
    name = "megatron-core"
    if version and parse_version(version) >= parse_version(NEWEST_MEGATRON_CORE):
        found = f"{version} is newer than the releases that the rules cover (0.16 to 0.20)"
        return Line(name, "warning", found, f"pip install '{name}<0.21', or do not rely on missing findings")
    return _at_least(name, version, TRAINING[name])


def _transformer_engine(version: str | None, declared: Declared) -> Line:
    name = "transformer-engine"
    low, end = declared.bounds("megatron-core", name)
    low, end = low or "2.9.0a0", end or "2.12.0"  # what megatron-core 0.16 declares
    remedy = f"pip install --no-build-isolation '{name}[pytorch]>={low},<{end}'"
    if version is None:
        found = "not installed: only megatron-core's local layers run, without FP8"
        return Line(name, "warning", found, remedy)
    if not parse_version(low) <= parse_version(version) < parse_version(end):
        return Line(
            name, "warning", f"{version} is outside {low} to before {end}, which megatron-core declares", remedy
        )
    return Line(name, "ok", version)


def cuda_of(torch_version: str, requirements: Iterable[str]) -> str | None:
    """The CUDA release that torch is built for (``12.8``), ``cpu`` for a CPU build, None if metadata do not show it.

    PyTorch's own index writes it into the version (``2.9.1+cu128``); the wheels of PyPI require the CUDA runtime.
    """
    if torch_version.endswith("+cpu"):
        return CPU_BUILD
    if local := _LOCAL_CUDA.search(torch_version):
        return f"{local[1]}.{local[2]}"
    runtime = next((match[1] for text in requirements if (match := _RUNTIME.match(text))), None)
    return None if "+" in torch_version else runtime


def cuda_line(torch_version: str, built_for: str | None, driver: str | None) -> Line:
    """Check whether the driver supports the CUDA release that torch is built for.

    A driver runs every CUDA release of its own major version and of older ones (NVIDIA, CUDA Compatibility, minor
    version compatibility).
    """
    up_to = (
        f"the driver supports CUDA up to {driver}" if driver else "the driver does not report which CUDA it supports"
    )
    if built_for == CPU_BUILD:
        remedy = "pip install --force-reinstall torch, which on Linux is a build for CUDA"
        return Line("CUDA", "problem", f"torch {torch_version} cannot use the GPUs of this machine", remedy)
    if built_for is None:
        return Line("CUDA", "ok", f"torch {torch_version} does not report which CUDA it is built for; {up_to}")
    found = f"torch is built for {built_for}; {up_to}"
    if driver is None:
        return Line("CUDA", "ok", found)
    needed, supported = parse_version(built_for), parse_version(driver)
    if needed.release[0] > supported.release[0]:
        remedy = f"update the driver, or install torch for CUDA {supported.release[0]}"
        return Line("CUDA", "problem", found, remedy)
    by_compatibility = ", which suffices by minor version compatibility" if needed > supported else ""
    return Line("CUDA", "ok", found + by_compatibility)
