"""The name of this machine's processor, as ranks and the harness both record it."""

import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def processor_name() -> str:
    """The kernel's model name, else the architecture."""
    if not _CPUINFO.is_file():
        return platform.machine()
    names = [
        line.partition(":")[2].strip() for line in _CPUINFO.read_text().splitlines() if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()
