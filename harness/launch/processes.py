"""Processes identified by pid and start time, never by name: children of this program, and owners of folders."""

import errno
import os
import signal
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import BadRequestError
from harness.records.launch import prctl
from harness.records.rank import OWNER, RELEASED, Owner
from harness.records.store import write_atomically
from harness.records.strict_json import read_document
from harness.units import grouped

PROC = Path("/proc")
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@dataclass(frozen=True)
class Process:
    """A process that cannot be mistaken for a later one of the same number: ``start_ticks`` is since boot."""

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class _Stat:
    process: Process
    parent_pid: int
    state: str


def adopt_orphans() -> None:
    """Let grandchildren whose parent was killed become children of this process, so that it can end them."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def identify(pid: int) -> Process | None:
    """Read the start time, which tells a process from a later one of the same number; None if it has ended."""
    stat = _stat(pid)
    return stat.process if stat else None


def is_alive(process: Process) -> bool:
    """Return whether it still runs; a zombie does not."""
    stat = _stat(process.pid)
    return stat is not None and stat.process == process and stat.state not in "ZX"


def descendants(*root_pids: int) -> tuple[Process, ...]:
    """Return all descendants of ``root_pids`` without zombies, in one pass over ``/proc``, which may hold thousands."""
    every = (_stat(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdecimal())
    children = grouped((stat.parent_pid, stat) for stat in every if stat is not None)
    found: list[Process] = []
    pending = [*root_pids]
    while pending:
        for stat in children.pop(pending.pop(), ()):
            pending.append(stat.process.pid)
            if stat.state not in "ZX":
                found.append(stat.process)
    return tuple(found)


def adopted(marker: str) -> tuple[Process, ...]:
    """Return children of this process that were started with ``marker``, a ``NAME=value``, in their environment."""
    found = []
    for process in descendants(os.getpid()):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            environment = (PROC / str(process.pid) / "environ").read_bytes().split(b"\0")
            stat = _stat(process.pid)
            if stat is not None and stat.parent_pid == os.getpid() and marker.encode() in environment:
                found.append(process)
    return tuple(found)


def send(process: Process, number: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone. A process that took over its number is left alone."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError as error:
        if error.errno == errno.ESRCH:
            return False
        raise
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def catches(process: Process, number: signal.Signals) -> bool:
    """Return whether it has a handler for the signal, whose default would end it (`/proc/<pid>/status`, man 5 proc)."""
    with suppress(OSError):
        for line in (PROC / str(process.pid) / "status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def bury(processes: Iterable[Process]) -> None:
    """Collect the exit status of adopted processes. Do not pass children of a Popen."""
    for process in processes:
        if identify(process.pid) == process:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def _stat(pid: int) -> _Stat | None:
    """Fields of `/proc/<pid>/stat` (proc(5)); the name in the second one may hold spaces and brackets."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    after_name = text.rpartition(b")")[2].split()
    return _Stat(Process(pid, int(after_name[19])), int(after_name[1]), after_name[0].decode())


_BOOT_ID = PROC / "sys" / "kernel" / "random" / "boot_id"
_NAMESPACE = PROC / "self" / "ns" / "pid"


@dataclass(frozen=True)
class Life:
    """Whether the process that filled a folder still lives, and how that is known."""

    state: Literal["alive", "dead", "unknown"]
    reason: str


def claim(folder: Path) -> None:
    """Record that this process writes ``folder``; does nothing where the system hides which process this is."""
    if owner := this_process():
        write_atomically(folder / OWNER, owner)


def release(folder: Path) -> None:
    """Record that the process that claimed ``folder`` has finished with it; other nodes wait for this."""
    owner = owner_of(folder)
    if owner is not None:
        with suppress(OSError):  # on a full disk the others lose patience instead
            write_atomically(folder / RELEASED, owner)


def owner_of(folder: Path, name: str = OWNER) -> Owner | None:
    """Return the process that claimed ``folder``; with :data:`RELEASED` the last that released it."""
    return read_document(folder / name, Owner) if (folder / name).is_file() else None


def is_held(folder: Path) -> bool:
    """Return whether a process claimed ``folder`` and has not released it; a killed process never does."""
    owner = owner_of(folder)
    return owner is not None and owner_of(folder, RELEASED) != owner


def this_process() -> Owner | None:
    """Return this process; None where Linux's /proc is missing or restricted."""
    try:
        process = identify(os.getpid())
        boot_id, namespace = _BOOT_ID.read_text().strip(), str(_NAMESPACE.readlink())
    except OSError:
        return None
    if process is None:
        return None
    return Owner(
        hostname=socket.gethostname(),
        boot_id=boot_id,
        pid_namespace=namespace,
        pid=process.pid,
        start_ticks=process.start_ticks,
    )


def life_of(folder: Path) -> Life:
    """Return whether the process that claimed ``folder`` lives; unknown for another machine or container."""
    try:
        owner = owner_of(folder)
    except BadRequestError as error:
        return Life("unknown", error.message)
    here = this_process()
    if owner is None or here is None:
        restricted = "/proc is restricted here, so it is not known which processes run"
        return Life("unknown", restricted if owner else f"no {OWNER} names the process that writes it")
    if owner.boot_id != here.boot_id and owner.hostname == here.hostname:
        return Life("dead", f"{owner.hostname} was restarted since")
    if (owner.boot_id, owner.pid_namespace) != (here.boot_id, here.pid_namespace):
        return Life("unknown", f"process {owner.pid} of another machine or container, {owner.hostname}")
    if is_alive(Process(owner.pid, owner.start_ticks)):
        return Life("alive", f"process {owner.pid} is at work")
    return Life("dead", f"process {owner.pid} is gone")
