"""Peak memory of a job: the worst rank, never a sum, never the first one found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.records.rank import MemoryRecord, RankRecord
from harness.records.run import NodeSample


@dataclass(frozen=True)
class Peak:
    """Bytes of the worst rank and its pipeline stage. ``missing_ranks`` could not say, so the true peak may be higher."""

    value: int
    rank: int
    stage: int
    missing_ranks: tuple[int, ...] = ()


def worst_rank(ranks: Sequence[RankRecord], world_size: int, read: Callable[[RankRecord], int | None]) -> Peak | None:
    """The largest reading over ranks (the lowest rank of equals); None when no rank has one."""
    readings = {rank.rank: value for rank in ranks if (value := read(rank)) is not None}
    if not readings:
        return None
    worst = max(sorted(readings), key=lambda rank: readings[rank])
    stages = {rank.rank: rank.coordinates.pp for rank in ranks}
    missing = tuple(rank for rank in range(world_size) if rank not in readings)
    return Peak(readings[worst], worst, stages[worst], missing)


def allocated(rank: RankRecord) -> int | None:
    """Peak bytes in live tensors."""
    return rank.memory.max_allocated_bytes if rank.memory else None


def reserved(rank: RankRecord) -> int | None:
    """Peak bytes held by the caching allocator."""
    return rank.memory.max_reserved_bytes if rank.memory else None


def device_used(nodes: Sequence[NodeSample]) -> Callable[[RankRecord], int | None]:
    """Reader of peak bytes in use on a rank's device by anyone, joined with the NVML samples by GPU UUID."""
    sampled = {
        bare_uuid(device.uuid): device.max_used_bytes
        for node in nodes
        for device in node.devices
        if device.num_samples > 0
    }

    def read(rank: RankRecord) -> int | None:
        own = (rank.memory or MemoryRecord(meter="none")).max_device_used_bytes
        if own is not None or rank.device is None or rank.device.uuid is None:
            return own
        return sampled.get(bare_uuid(rank.device.uuid))

    return read


def bare_uuid(uuid: str) -> str:
    """NVML prints ``GPU-<uuid>``; torch prints the same UUID without the prefix."""
    return uuid.lower().removeprefix("gpu-")
