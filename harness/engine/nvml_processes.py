"""Whose processes are on a GPU: those of this run, or somebody else's."""

from dataclasses import dataclass, field
from pathlib import Path

from harness.units import format_bytes

PROC = Path("/proc")


def in_initial_namespace() -> bool:
    """Whether pids mean the same here and to the driver; the kernel's thread 2 shows in the first namespace only."""
    try:
        return (PROC / "2" / "comm").read_text().strip() == "kthreadd"
    except OSError:
        return False


def descends_from(pid: int, ancestor: int) -> bool:
    """Whether ``pid`` is ``ancestor`` or one of its children, their children and so on."""
    while pid > 1:
        if pid == ancestor:
            return True
        pid = _parent(pid)
    return False


def _parent(pid: int) -> int:
    try:
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _told(pid: int, used_bytes: int | None) -> str:
    try:
        name = (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        name = "of unknown name"
    return f"pid {pid} {name}, {format_bytes(used_bytes) if used_bytes is not None else 'unknown memory'}"


@dataclass
class Neighbours:
    """Processes of one GPU over a run. ``run_pid``: the process that all ranks descend from."""

    run_pid: int
    same_pids: bool = field(default_factory=in_initial_namespace)
    foreign: dict[int, str] = field(default_factory=dict)
    unidentified: set[int] = field(default_factory=set)

    def before_ranks(self, processes: dict[int, int | None]) -> None:
        """Nothing of this run has touched a GPU yet: whoever is there is foreign, whatever number it goes by."""
        self.foreign |= {pid: _told(pid, used) for pid, used in processes.items()}

    def during_run(self, processes: dict[int, int | None]) -> None:
        """Told by descent; inside a container the driver's pid may be that of the host, and proves nothing."""
        for pid, used in processes.items():
            if pid in self.foreign or descends_from(pid, self.run_pid):
                continue
            if self.same_pids:
                self.foreign[pid] = _told(pid, used)
            else:
                self.unidentified.add(pid)
