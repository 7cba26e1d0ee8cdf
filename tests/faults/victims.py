"""Finds the processes of a running sweep by kind, from their parents, command lines and descriptors."""

import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from harness.launch.processes import Process, descendants, identify

KINDS = ("harness", "agent", "rank", "warm parent", "sampler")


def victims(harness: int) -> dict[str, list[Process]]:
    """All that can be killed now, by kind."""
    found: dict[str, list[Process]] = defaultdict(list)
    below = descendants(harness)
    kinds = {process.pid: _kind(process.pid, harness) for process in below}
    for process in below:
        kind = kinds[process.pid]
        if kind == "forked":
            kind = "rank" if kinds.get(_parent(process.pid)) == "agent" else ""
        if kind:
            found[kind].append(process)
    itself = identify(harness)
    if itself is not None:
        found["harness"].append(itself)
    return found


def _kind(pid: int, harness: int) -> str:
    command = _command(pid)
    if "harness.engine.nvml" in command:
        return "sampler" if "sample" in command else ""
    if "harness.engine.agent" in command:
        played_rank = any("played_agent" in word for word in command) and _parent(pid) != harness
        return "forked" if played_rank else "agent"
    if "harness.engine.worker" in command:
        return "rank"
    if "harness.engine.warm_parent" not in command:
        return ""
    if _parent(pid) != harness:
        return "forked"
    return "warm parent" if _holds_channel(pid, command) else "agent"


def _holds_channel(pid: int, command: list[str]) -> bool:
    """The channel is a Unix socket, which an agent closes as it is forked."""
    with suppress(OSError, ValueError):
        link = Path(f"/proc/{pid}/fd/{int(command[command.index('--channel') + 1])}").readlink()
        inode = str(link).removeprefix("socket:[").removesuffix("]")
        sockets = Path("/proc/net/unix").read_text().splitlines()[1:]
        return any(line.split()[6] == inode for line in sockets)
    return False


def _command(pid: int) -> list[str]:
    with suppress(OSError):
        return [os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
    return []


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
