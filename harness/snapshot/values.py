"""Values of a snapshot, and the difference of two."""

from collections.abc import Callable, Iterable
from typing import Literal, TypeVar

from harness.experiment.frozen import Frozen

Of = TypeVar("Of")


class Holder(Frozen):
    """Live memory of one site: blocks whose stack leads there.

    ``live_bytes`` are blocks as rounded, when the snapshot was taken; ``peak_bytes`` are bytes as requested, at the
    highest point of the recorded history, None without a history.
    """

    module: str
    site: str
    live_bytes: int
    num_live: int
    peak_bytes: int | None = None
    num_peak: int | None = None


class PrivatePool(Frozen):
    """A private pool, as of CUDA graphs; only its owner can use its free blocks."""

    pool: str
    reserved_bytes: int
    allocated_bytes: int


class FailedRequest(Frozen):
    """The last request of the history that failed. ``*_then`` are levels at that moment, from the history.

    ``is_now``: nothing was allocated or freed between the failure and the snapshot, so that its blocks are those of
    that moment. ``device_free_bytes`` is what the driver had left.
    """

    request_bytes: int
    device_free_bytes: int | None
    allocated_then_bytes: int
    reserved_then_bytes: int
    is_now: bool


class Phase(Frozen):
    """An annotated span of time, in seconds since the history begins."""

    name: str
    start_s: float
    end_s: float


class Levels(Frozen):
    """Highest level of each interval. ``clock`` is ``s``, or ``events`` where the history has no times.

    ``allocated_bytes`` are as requested, which is what the history records; ``reserved_bytes`` are those of segments.
    """

    clock: Literal["s", "events"]
    interval: float
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_at: float
    num_events: int
    phases: tuple[Phase, ...] = ()


class DeviceMemory(Frozen):
    """One device. reserved = allocated + pending + releasable + stranded + private free.

    ``pending``: freed, but another stream may still use it. ``releasable``: `empty_cache` gives it back. ``stranded``:
    free inside segments that also hold something live. ``rounding_bytes``: allocated beyond what was requested, None
    where the snapshot does not say (torch before 2.1). ``largest_free_bytes`` leaves private pools out.
    ``history_problem``: why there are no levels although a history was recorded.
    """

    device: int
    num_segments: int
    num_blocks: int
    reserved_bytes: int
    allocated_bytes: int
    pending_bytes: int
    releasable_bytes: int
    stranded_bytes: int
    private_free_bytes: int
    rounding_bytes: int | None
    largest_free_bytes: int
    has_expandable_segments: bool
    private_pools: tuple[PrivatePool, ...] = ()
    holders: tuple[Holder, ...] = ()
    failure: FailedRequest | None = None
    num_failures: int = 0
    levels: Levels | None = None
    history_problem: str = ""

    @property
    def private_reserved_bytes(self) -> int:
        """Return the reserved bytes of all private pools."""
        return sum(pool.reserved_bytes for pool in self.private_pools)


class SnapshotSummary(Frozen):
    """One snapshot, device by device: those with memory or a history."""

    file: str
    file_bytes: int
    devices: tuple[DeviceMemory, ...]


class HeldMore(Frozen):
    """Bytes of one module or site in both; ``site`` is empty for a module as a whole."""

    module: str
    site: str
    before_bytes: int
    after_bytes: int

    @property
    def more_bytes(self) -> int:
        """Return the bytes that the second holds more; negative if it holds less."""
        return self.after_bytes - self.before_bytes


class SnapshotDifference(Frozen):
    """Rows that differ, the largest difference first. ``at_peak``: at the highest point of both histories, as requested.

    Otherwise rows are of the moment of the snapshots, as rounded.
    """

    at_peak: bool
    before_bytes: int
    after_bytes: int
    modules: tuple[HeldMore, ...]
    sites: tuple[HeldMore, ...]


def difference(before: DeviceMemory, after: DeviceMemory) -> SnapshotDifference:
    """Compare at the peaks if both have a history, else at the moments of the snapshots.

    Lines of code are matched by module, file and function: a site moves a few lines between releases.
    """
    at_peak = before.levels is not None and after.levels is not None

    def rows(key: Callable[[Holder], tuple[str, str]]) -> tuple[HeldMore, ...]:
        held = [held_by(device.holders, key, at_peak=at_peak) for device in (before, after)]
        found = [
            HeldMore(module=of[0], site=of[1], before_bytes=held[0].get(of, 0), after_bytes=held[1].get(of, 0))
            for of in {*held[0], *held[1]}
        ]
        changed = [row for row in found if row.more_bytes]
        return tuple(sorted(changed, key=lambda row: (-abs(row.more_bytes), row.module, row.site)))

    return SnapshotDifference(
        at_peak=at_peak,
        before_bytes=sum(held_by(before.holders, lambda _: "", at_peak=at_peak).values()),
        after_bytes=sum(held_by(after.holders, lambda _: "", at_peak=at_peak).values()),
        modules=rows(lambda holder: (holder.module, "")),
        sites=rows(lambda holder: (holder.module, site_without_line(holder.site))),
    )


def site_without_line(site: str) -> str:
    """Return ``megatron/core/transformer/mlp.py:101 forward`` without its ``:101``."""
    path, space, function = site.partition(" ")
    name, colon, line = path.rpartition(":")
    return f"{name}{space}{function}" if colon and line.isdecimal() else site


def held_by(holders: Iterable[Holder], key: Callable[[Holder], Of], *, at_peak: bool = False) -> dict[Of, int]:
    """Return the holders' bytes by key: bytes that live now, or with ``at_peak`` lived at the peak of the history."""
    sums: dict[Of, int] = {}
    for holder in holders:
        sums[key(holder)] = sums.get(key(holder), 0) + (holder.peak_bytes or 0 if at_peak else holder.live_bytes)
    return sums
