"""Locks of the extensions that megatron-core compiles at first use: whoever is killed meanwhile leaves one behind.

torch waits for such a lock as long as it is there and says nothing, so that a run seems to hang. Nothing is deleted here:
a home may be shared with a machine that compiles right now.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from harness.launch.processes import PROC
from harness.runner.examination import Line
from harness.spec.software import Software, parse_version

LOCK = "lock"  # torch.utils.cpp_extension, beside what is compiled
CACHED = "share_storage_ext"  # of recompute that discards outputs, since megatron-core 0.17 (rule K18)


def lock_lines(software: Software, shell: Mapping[str, str], now_s: float) -> Iterator[Line]:
    """A line per lock that ranks started from this shell would meet; none where there is none."""
    if software.megatron_core is None:
        return
    folders = [_built_in_package()]  # of ddp.nccl_ub
    if parse_version(software.megatron_core) >= parse_version("0.17"):
        folders += _cached(shell)
    for folder in folders:
        with suppress(OSError):
            lock = folder / LOCK
            yield _line(lock, now_s - lock.stat().st_mtime, tuple(_holders(lock)))


def _built_in_package() -> Path:
    return Path(str(metadata.distribution("megatron-core").locate_file("megatron/core/build")))


def _cached(shell: Mapping[str, str]) -> Iterable[Path]:
    """As torch finds it: the named folder, else a folder for every Python and CUDA in the user's cache."""
    if "TORCH_EXTENSIONS_DIR" in shell:
        return [Path(shell["TORCH_EXTENSIONS_DIR"]) / CACHED]
    cache = Path(shell["XDG_CACHE_HOME"]) if "XDG_CACHE_HOME" in shell else Path(shell.get("HOME", "/")) / ".cache"
    return sorted((cache / "torch_extensions").glob(f"*/{CACHED}"))


def _line(lock: Path, age_s: float, holders: tuple[int, ...]) -> Line:
    name = f"extension {lock.parent.name}"
    if holders:
        return Line(name, "ok", f"process {holders[0]} has been compiling it for {_age(age_s)}: {lock}")
    found = f"{lock}: left {_age(age_s)} ago, and no process of this machine holds it: runs that need it wait for ever"
    return Line(
        name, "warning", found, f"unless another machine with this folder compiles it: rm {shlex.quote(str(lock))}"
    )


def _holders(lock: Path) -> Iterator[int]:
    """Processes that have the file open, as torch has while it compiles; those of other users cannot be seen."""
    wanted = str(lock.resolve())
    for process in PROC.glob("[0-9]*"):
        with suppress(OSError):
            if any(str(opened.readlink()) == wanted for opened in (process / "fd").iterdir()):
                yield int(process.name)


def _age(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
