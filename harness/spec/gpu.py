"""GPU types as rows: dense peaks, memory, GPUs per node, and where each figure comes from."""

import re
from dataclasses import dataclass

from harness.spec.precision import PeakKey
from harness.units import GB, GIB, TERA


@dataclass(frozen=True)
class GpuType:
    """One `-g`. Peaks are dense (no sparsity), FLOP/s; bandwidth bytes/s; ``name_pattern`` matches NVML's product name.

    ``timing_threshold`` and ``memory_threshold`` are the default gates. They are wider or tighter than 5 % only where
    repeated runs were measured to need it.
    """

    name: str
    title: str
    peak_flops: dict[PeakKey, float]
    memory_bytes: int
    memory_bandwidth: float
    capability: tuple[int, int] | None
    gpus_per_node: int
    default_compute_dtype: str
    name_pattern: str | None
    source: str
    timing_threshold: float = 0.05
    memory_threshold: float = 0.05

    @property
    def is_cpu(self) -> bool:
        """Whether ranks run on the host processor through gloo."""
        return self.capability is None

    def is_at_least(self, major: int) -> bool:
        """Whether it is of this compute capability or a later one; 9 is Hopper, 10 Blackwell. The CPU is of none."""
        return self.capability is not None and self.capability[0] >= major


def _peaks(bf16: float, fp8: float | None = None, fp4: float | None = None) -> dict[PeakKey, float]:
    peaks: dict[PeakKey, float] = {"bf16": bf16 * TERA}
    if fp8:
        peaks["fp8"] = fp8 * TERA
    if fp4:
        peaks["fp4"] = fp4 * TERA
    return peaks


GPUS: dict[str, GpuType] = {
    row.name: row
    for row in (
        GpuType("a100", "A100 80GB SXM", _peaks(312), 80 * GIB, 2.039e12, (8, 0), 8, "bf16", r"\bA100\b.*80GB",
                "NVIDIA A100 data sheet"),
        GpuType("h100", "H100 80GB SXM", _peaks(989.4, 1978.9), 80 * GIB, 3.35e12, (9, 0), 8, "bf16", r"\bH100\b(?! PCIe| NVL)",
                "NVIDIA H100 data sheet (halved: it prints sparse figures)"),
        GpuType("h200", "H200 141GB SXM", _peaks(989.4, 1978.9), 141 * GB, 4.8e12, (9, 0), 8, "bf16", r"\bH200\b(?! NVL)",
                "NVIDIA H200 data sheet (halved)"),
        GpuType("b200", "HGX B200", _peaks(2250, 4500, 9000), 180 * GB, 7.7e12, (10, 0), 8, "bf16", r"\bB200\b",
                "NVIDIA HGX B200 data sheet, per GPU at 1,000 W"),
        GpuType("b300", "HGX B300", _peaks(2250, 4500, 13125), 270 * GB, 7.7e12, (10, 3), 8, "bf16", r"\bB300\b",
                "NVIDIA HGX B300 data sheet, per GPU"),
        GpuType("gb200", "GB200 NVL72", _peaks(2500, 5000, 10000), 186 * GB, 8.0e12, (10, 0), 4, "bf16", r"\bGB200\b",
                "NVIDIA GB200 NVL72 data sheet / 72 GPUs"),
        GpuType("gb300", "GB300 NVL72", _peaks(2500, 5000, 15000), 279 * GB, 8.0e12, (10, 3), 4, "bf16", r"\bGB300\b",
                "NVIDIA GB300 NVL72 data sheet / 72 GPUs"),
        GpuType("l40s", "L40S 48GB PCIe", _peaks(362.05, 733), 48 * GB, 0.864e12, (8, 9), 8, "bf16", r"\bL40S\b",
                "NVIDIA L40S data sheet"),
        GpuType("cpu", "this machine's processor, gloo", {}, 0, 0.0, None, 8, "fp32", None,
                "thresholds: identical CPU runs differ by 4 to 12 % in time and by some KiB in memory",
                timing_threshold=0.15, memory_threshold=0.005),
    )
}  # fmt: skip


def gpu_named(product_name: str) -> GpuType | None:
    """The row whose pattern matches NVML's product name (`NVIDIA H100 80GB HBM3`); None for an unknown product."""
    for row in GPUS.values():
        if row.name_pattern and re.search(row.name_pattern, product_name):
            return row
    return None
