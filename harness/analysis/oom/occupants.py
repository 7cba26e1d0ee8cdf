"""Who holds the device: this process, the others, and in a container, which of the listed ones this process is."""

from dataclasses import dataclass, replace

from harness.analysis.oom.figures import AllocatorFigures, ProcessMemory
from harness.analysis.oom.thresholds import threshold


@dataclass(frozen=True, slots=True)
class Occupants:
    """Bytes on the device. ``this_process`` is None where nothing tells; ``others`` then holds what is listed.

    ``unlisted``: in use, by nobody on the list. ``recognised_pid``: the number under which the list has this process,
    where it is known by its size only: inside a container the driver counts processes otherwise.
    """

    this_process_bytes: int | None
    others: tuple[ProcessMemory, ...]
    unlisted_bytes: int
    recognised_pid: int | None = None

    @property
    def foreign_bytes(self) -> int:
        """What is not this process's, as far as the text tells; a gap below the threshold is the driver's own."""
        listed = sum(process.used_bytes or 0 for process in self.others)
        return listed + (self.unlisted_bytes if self.unlisted_bytes >= threshold("foreign_bytes") else 0)


def occupants(figures: AllocatorFigures) -> Occupants:
    """Share the memory in use out among processes."""
    listed = tuple(process for process in figures.processes if process.used_bytes is not None)
    me = None if figures.this_process_bytes is not None else _this_process(figures, listed)
    this_bytes = figures.this_process_bytes if me is None else me.used_bytes
    others = tuple(process for process in listed if process is not me)
    found = Occupants(this_bytes, others, unlisted_bytes=0, recognised_pid=me.pid if me else None)
    if this_bytes is None or figures.total_bytes is None or figures.free_bytes is None:
        return found
    told = this_bytes + sum(process.used_bytes or 0 for process in others)
    return replace(found, unlisted_bytes=max(0, figures.total_bytes - figures.free_bytes - told))


def _this_process(figures: AllocatorFigures, listed: tuple[ProcessMemory, ...]) -> ProcessMemory | None:
    """The listed process that must be this one.

    If all listed were others, they and what this process's allocator holds would have to fit into what is in use. Where
    they do not, this process is the one whose size is nearest above its allocator's.
    """
    reserved = figures.reserved_bytes
    if reserved is None or figures.total_bytes is None or figures.free_bytes is None:
        return None
    rounding = threshold("rounding_bytes")
    in_use = figures.total_bytes - figures.free_bytes
    if sum(process.used_bytes or 0 for process in listed) + reserved <= in_use + rounding:
        return None
    large_enough = [process for process in listed if (process.used_bytes or 0) >= reserved - rounding]
    return min(large_enough, key=lambda process: process.used_bytes or 0, default=None)
