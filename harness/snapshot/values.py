"""Values of a snapshot."""

from collections.abc import Iterable

from harness.experiment.frozen import Frozen
from harness.units import grouped


class Holder(Frozen):
    """Live memory of one site: blocks as rounded whose stack leads there."""

    module: str
    site: str
    live_bytes: int
    num_live: int


class FailedRequest(Frozen):
    """The last request that failed. ``*_then``: levels of that moment. ``is_now``: nothing has changed since."""

    request_bytes: int
    device_free_bytes: int
    allocated_then_bytes: int
    reserved_then_bytes: int
    is_now: bool


class DeviceMemory(Frozen):
    """One device. reserved = allocated + pending + releasable + stranded + private free.

    ``releasable``: `empty_cache` gives it back. ``stranded``: free inside segments that also hold something live.
    ``history_problem``: why no failed request is known although the history has one.
    """

    device: int
    num_segments: int
    num_blocks: int
    reserved_bytes: int
    allocated_bytes: int
    pending_bytes: int
    releasable_bytes: int
    stranded_bytes: int
    private_reserved_bytes: int
    private_free_bytes: int
    rounding_bytes: int
    largest_free_bytes: int
    has_expandable_segments: bool
    holders: tuple[Holder, ...] = ()
    failure: FailedRequest | None = None
    has_history: bool = False
    history_problem: str = ""


class Question(Frozen):
    """Settings of PYTORCH_CUDA_ALLOC_CONF and modules to replay beside what was recorded, on which device."""

    settings: tuple[str, ...] = ()
    device_bytes: int | None = None
    without: tuple[str, ...] = ()


class FirstFailure(Frozen):
    """The first request that fails. ``number``: in the history, from 1; 0 for a block from before it."""

    number: int
    request_bytes: int
    allocated_then_bytes: int
    reserved_then_bytes: int
    module: str
    site: str


class WhatIfRow(Frozen):
    """The recorded requests under some settings, ``without`` modules. ``fits_bytes``: the smallest device, or none."""

    settings: str
    allocated_bytes: int
    reserved_bytes: int
    fits_bytes: int | None
    failure: FirstFailure | None
    without: str = ""


class WhatIf(Frozen):
    """The history of the fullest device, replayed: first under the recorded settings, then under those asked about."""

    device_bytes: int | None
    num_requests: int
    recorded_reserved_bytes: int
    rows: tuple[WhatIfRow, ...]
    notes: tuple[str, ...]


class SnapshotSummary(Frozen):
    """The devices with memory or a history. ``predicted``: setting and stage of a step that no job has run."""

    file: str
    file_bytes: int
    devices: tuple[DeviceMemory, ...]
    what_if: WhatIf | None = None
    predicted: str = ""

    @property
    def fullest(self) -> DeviceMemory | None:
        return max(self.devices, key=lambda device: (device.reserved_bytes, device.has_history), default=None)


def by_module(holders: Iterable[Holder]) -> list[tuple[str, int]]:
    """Return each module and its live bytes, the largest first."""
    sizes = grouped((holder.module, holder.live_bytes) for holder in holders)
    sums = ((module, sum(each)) for module, each in sizes.items())
    return sorted(sums, key=lambda row: (-row[1], row[0]))
