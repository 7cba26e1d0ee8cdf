"""What is known from one snapshot, as values; all bytes, and bounded however large the file was."""

from typing import Literal

from harness.spec.frozen import Frozen


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
    """A pool of its own, as CUDA graphs have; its free blocks serve nobody else."""

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
        """Of all private pools."""
        return sum(pool.reserved_bytes for pool in self.private_pools)


class SnapshotSummary(Frozen):
    """One snapshot, device by device: those with memory or a history."""

    file: str
    file_bytes: int
    devices: tuple[DeviceMemory, ...]
