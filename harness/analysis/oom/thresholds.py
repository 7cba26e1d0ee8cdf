"""The numbers that the classes hang on, each with its reason. None has been proved by reruns on a GPU yet."""

from dataclasses import dataclass

from harness.spec.gpu import GPUS
from harness.units import GIB


@dataclass(frozen=True, slots=True)
class Threshold:
    """One row. ``value`` is a share of the device's memory, or bytes."""

    name: str
    value: float
    why: str


THRESHOLDS: tuple[Threshold, ...] = (
    Threshold("fragmented_share", 0.05,
              "reserved but unallocated: below it even a card that is simply full keeps such remainders"),
    Threshold("slightly_fragmented_share", 0.02,
              "between the two the remainders may be the cause; below, a tiny request fails at the edge of a full card"),
    Threshold("pool_share", 0.05, "private pools below it would not have made room for long"),
    Threshold("sure_pool_share", 0.10, "pools above it are a decision about memory, not a by-product"),
    Threshold("outside_bytes", 4 * GIB,
              "CUDA context, NCCL buffers and library workspaces of one process together usually stay below it"),
    Threshold("outside_share", 0.05, "the same, on a device where 4 GiB are little"),
    Threshold("foreign_bytes", 1 * GIB, "less than a CUDA context and a few tensors: a monitor or a display, not a job"),
    Threshold("impossible_share", 2.0,
              "of the device, for one request: up to it a large tensor may be meant, above it its size is wrong"),
    Threshold("impossible_host_bytes", 64 * 1024 * GIB, "for one request of host memory: no node has that much"),
    Threshold("full_share", 0.80, "live tensors above it leave no doubt that the device is full"),
    Threshold("rounding_bytes", 0.02 * GIB, "sums of up to four figures that torch rounds to 0.01 GiB"),
)  # fmt: skip

_VALUES = {row.name: row.value for row in THRESHOLDS}


def threshold(name: str) -> float:
    """The value of a row; KeyError for a name that the table does not have."""
    return _VALUES[name]


def impossible_bytes() -> float:
    """More than any one request on a device of which nothing is known."""
    return threshold("impossible_share") * max(row.memory_bytes for row in GPUS.values() if not row.is_cpu)
