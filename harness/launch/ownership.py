"""Which process fills a folder of results, and whether it still lives; what cannot be known is said to be unknown."""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import BadRequestError
from harness.launch.processes import PROC, Process, identify, is_alive
from harness.records.rank import OWNER, RELEASED, Owner
from harness.records.store import write_atomically
from harness.records.strict_json import read_document

_BOOT_ID = PROC / "sys" / "kernel" / "random" / "boot_id"
_NAMESPACE = PROC / "self" / "ns" / "pid"


@dataclass(frozen=True)
class Life:
    """Whether the process that filled a folder still lives, and how that is known."""

    state: Literal["alive", "dead", "unknown"]
    reason: str


def claim(folder: Path) -> None:
    """Write down that this process fills ``folder``; nothing where the system does not tell who this process is."""
    owner = this_process()
    if owner is not None:
        write_atomically(folder / OWNER, owner.model_dump_json(indent=1) + "\n")


def release(folder: Path) -> None:
    """Say that the process that claimed ``folder`` fills it no more; other nodes wait for that word."""
    owner = owner_of(folder)
    if owner is not None:
        with suppress(OSError):  # on a full disk the others lose patience instead
            write_atomically(folder / RELEASED, owner.model_dump_json(indent=1) + "\n")


def owner_of(folder: Path, name: str = OWNER) -> Owner | None:
    """Who claimed ``folder``, or with :data:`RELEASED` who let go of it last; None where nobody did."""
    return read_document(folder / name, Owner) if (folder / name).is_file() else None


def is_held(folder: Path) -> bool:
    """Whether somebody claimed ``folder`` and has not let go of it; a killed process never does."""
    owner = owner_of(folder)
    return owner is not None and owner_of(folder, RELEASED) != owner


def this_process() -> Owner | None:
    """None on a system without Linux's /proc."""
    process = identify(os.getpid())
    try:
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


def started_at(owner: Owner) -> float | None:
    """When the process was started, in seconds since the epoch; None for one of another machine or another boot."""
    here = this_process()
    if here is None or here.boot_id != owner.boot_id:
        return None
    told = next((line for line in (PROC / "stat").read_text().splitlines() if line.startswith("btime ")), None)
    return int(told.split()[1]) + owner.start_ticks / os.sysconf("SC_CLK_TCK") if told else None


def life_of(folder: Path) -> Life:
    """Whether the process that claimed ``folder`` lives; asked of this machine, never guessed for another."""
    if not (folder / OWNER).is_file():
        return Life("unknown", f"no {OWNER} says which process fills it")
    try:
        owner = read_document(folder / OWNER, Owner)
    except BadRequestError as error:
        return Life("unknown", error.message)
    here = this_process()
    if here is None:
        return Life("unknown", "this system does not tell which processes live")
    return _seen_from(here, owner)


def _seen_from(here: Owner, owner: Owner) -> Life:
    if owner.boot_id != here.boot_id and owner.hostname != here.hostname:
        return Life("unknown", f"process {owner.pid} of {owner.hostname}, which is not this machine")
    if owner.boot_id != here.boot_id:
        return Life("dead", f"{owner.hostname} was started anew since")
    if owner.pid_namespace != here.pid_namespace:
        return Life("unknown", f"process {owner.pid} of another container of this machine")
    if is_alive(Process(owner.pid, owner.start_ticks)):
        return Life("alive", f"process {owner.pid} is at work")
    return Life("dead", f"process {owner.pid} is gone")
