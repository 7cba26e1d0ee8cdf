"""The memory that a setting may use: one figure for plans, sweeps, reports and diagnoses."""

import sys
from dataclasses import dataclass, field
from typing import Self

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import SPARE
from harness.predict.allocator_settings import asked_settings
from harness.predict.device import OUTSIDE_ALLOCATOR_BYTES, DeviceNeeds, device_needs
from harness.predict.prediction import Prediction
from harness.units import GIB, MIB


@dataclass(frozen=True)
class Limits:
    """The limits of a setting. ``capacity_bytes`` None: the memory is unknown, and nothing is judged.

    ``margin``: share of the memory that stays free. ``max_overhead``: share of the step time. ``beside_bytes``: memory
    beside the capacity: `--memory_limit` holds for torch's allocator alone. ``fraction``: the share of ``whole_bytes``
    that torch's allocator may have (`per_process_memory_fraction`).
    """

    capacity_bytes: int | None
    margin: float = SPARE
    max_overhead: float | None = None
    needs: DeviceNeeds = field(default_factory=DeviceNeeds)
    beside_bytes: int = 0
    fraction: float | None = None
    whole_bytes: int = 0

    @classmethod
    def of(cls, spec: ExperimentSpec, margin: float = SPARE, context_bytes: int = OUTSIDE_ALLOCATOR_BYTES) -> Self:
        """Return the limits of a rank of ``spec``: the same for plans, sweeps, reports and diagnoses."""
        needs = DeviceNeeds() if spec.gpu_type.is_cpu else device_needs(spec, context_bytes)
        beside = max(0, spec.gpu_type.usable_bytes - (spec.capacity_bytes or 0))
        fraction = None if spec.gpu_type.is_cpu else asked_settings(spec)[0].memory_fraction
        return cls(spec.capacity_bytes, margin, None, needs, beside, fraction, spec.gpu_type.usable_bytes)

    @property
    def outside_bytes(self) -> int:
        return max(0, self.needs.outside_bytes - self.beside_bytes)

    @property
    def budget_bytes(self) -> int | None:
        if self.capacity_bytes is None:
            return None
        return min(self._allowed_bytes, int(self.capacity_bytes * (1 - self.margin)) - self.outside_bytes)

    @property
    def _allowed_bytes(self) -> int:
        """Return the most that torch lets its allocator take (`setMemoryFraction`)."""
        return int(self.whole_bytes * self.fraction) if self.fraction is not None else sys.maxsize

    @property
    def usable_text(self) -> str:
        """Return ``71.81 GiB``, the first figure of ``text``."""
        return self.text.partition(" = ")[0]

    @property
    def text(self) -> str:
        """Return ``71.81 GiB = 79.20 - 5.81 outside torch's allocator - 1.58 margin (2 %)``; only for known memory."""
        unit, name = (GIB, "GiB") if (self.capacity_bytes or 0) >= GIB else (MIB, "MiB")
        size = self.capacity_bytes or 0
        if self.budget_bytes == self._allowed_bytes:
            whole, allowed = self.whole_bytes / unit, self._allowed_bytes / unit
            return f"{allowed:.2f} {name} = {self.fraction:g} of {whole:.2f} (per_process_memory_fraction)"
        capacity, outside, margin = (round(n / unit, 2) for n in (size, self.outside_bytes, size * self.margin))
        others = f" - {outside:.2f} outside torch's allocator" if outside else ""
        spare = f" - {margin:.2f} margin ({self.margin * 100:g} %)" if self.margin else ""
        return f"{capacity - outside - margin:.2f} {name} = {capacity:.2f}{others}{spare}"

    def device_bytes(self, found: Prediction) -> int:
        """Return what is predicted to be in use on the device."""
        return found.reserved_bytes + self.needs.outside_bytes
