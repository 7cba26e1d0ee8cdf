"""What no trace says: memory outside of the model and speed of the hardware, built in or calibrated."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from harness.planning.hardware import LIKELY, Efficiency
from harness.planning.ledger import StageMemory
from harness.records.calibration import FittedConstant
from harness.units import GIB, MIB

# What a rank takes of a GPU beside torch's allocator: a CUDA context with its kernels is about half a GiB, NCCL's
# communicators as much again. A run records the real figure: peak_device_bytes less peak_reserved_bytes.
OUTSIDE_ALLOCATOR_BYTES = 1_000_000_000

EFFICIENCIES = ("gemm_bf16", "gemm_low_precision", "attention", "memory", "link")

# Between which values a calibration may move a constant. Beyond them it is not the constant that is wrong: kernels reach
# neither a tenth nor all of a data sheet's peak, and memory that a rank takes beside its model is a few GiB at most.
BOUNDS: dict[str, tuple[float, float]] = {
    "allocator_bytes": (-256 * MIB, 4 * GIB),
    "outside_allocator_bytes": (0, 8 * GIB),
    **dict.fromkeys(EFFICIENCIES, (0.1, 0.98)),
}


@dataclass(frozen=True)
class Constants:
    """``allocator_bytes``: in torch's allocator beside everything modelled. ``outside_allocator_bytes``: context, NCCL.

    ``time_spread``: by which share a step may take more or less; None: the range of efficiencies built in.
    ``origin``: what they were calibrated on, empty for those built in.
    """

    allocator_bytes: int = 0
    outside_allocator_bytes: int = OUTSIDE_ALLOCATOR_BYTES
    likely: Efficiency = LIKELY
    time_spread: float | None = None
    origin: str = ""

    def value_of(self, name: str) -> float:
        """The constant called ``name``, one of :data:`BOUNDS`."""
        value: float = getattr(self.likely if name in EFFICIENCIES else self, name)
        return value

    def added_to(self, stage: StageMemory) -> StageMemory:
        """The ledger of a stage with what the allocator holds beside it."""
        more = self.allocator_bytes
        if not more:
            return stage
        peaks = {name: peak + more for name, peak in stage.peaks.items()}
        passes = {name: peak + more for name, peak in stage.passes.items()}
        return replace(stage, overhead=stage.overhead + more, total=stage.total + more, peaks=peaks, passes=passes)


BUILT_IN = Constants()


def calibrated(fitted: Iterable[FittedConstant], time_spread: float | None = None, origin: str = "") -> Constants:
    """The built-in constants with those of ``fitted`` that were determined."""
    found = {constant.name: constant.value for constant in fitted if constant.value is not None}
    speeds = {name: value for name, value in found.items() if name in EFFICIENCIES}
    sizes = {name: round(value) for name, value in found.items() if name not in EFFICIENCIES}
    return Constants(
        **sizes, likely=replace(LIKELY, **speeds), time_spread=time_spread if speeds else None, origin=origin
    )
