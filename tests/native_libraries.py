"""Shared libraries of `native/`, compiled by the `cc` that `scripts/check` asks for."""

import subprocess
from pathlib import Path

NATIVE = Path(__file__).with_name("native")


def compiled(source: str, library: Path, *options: str) -> Path:
    """``library``, of a source in `native/`. CalledProcessError or FileNotFoundError: nothing would be tested without."""
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(NATIVE / source), *options]
    subprocess.run(command, check=True, capture_output=True)
    return library


def scripted_nvml(folder: Path) -> Path:
    """``folder``, with the scripted ``libnvidia-ml.so.1`` in it."""
    compiled("fake_nvml.c", folder / "libnvidia-ml.so.1", "-Wl,-soname,libnvidia-ml.so.1", "-lpthread")
    return folder
