"""GPU types and precisions, as tables."""

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from harness.units import GB, GIB, MIB, TERA

SPARE = 0.02
"""Share of the memory that stays free beside what lies outside torch's allocator, unless `--margin` says otherwise."""

PeakKey = Literal["fp32", "bf16", "fp8", "fp4"]


@dataclass(frozen=True)
class Precision:
    """One `--compute_dtype`. ``transformer_config``: MCore 0.16 names; ``min_capability``: CUDA's (major, minor)."""

    name: str
    title: str
    peak: PeakKey
    params_dtype: Literal["fp32", "bf16", "fp16"]
    min_capability: tuple[int, int] | None
    transformer_config: dict[str, str | bool | int] = field(default_factory=dict)
    fp8_param_gather: bool = False
    min_transformer_engine: str | None = None
    source: str = "Megatron-Bridge mixed_precision.py; megatron-core fp8_utils.py"

    @property
    def params_bytes(self) -> int:
        return 4 if self.params_dtype == "fp32" else 2

    @property
    def weight_bytes(self) -> float:
        """The least bytes of one element of a layer's weight: a quantised weight replaces one in ``params_dtype``."""
        if self.transformer_config.get("fp4_param"):
            return 0.5
        return 1.0 if self.transformer_config.get("fp8_param") else self.params_bytes


_PUBLISHED = (
    Precision("fp32", "FP32 (CPU runs)", "fp32", "fp32", None, source="no GPU recipe uses it"),
    Precision("bf16", "BF16", "bf16", "bf16", (8, 0)),
    Precision("fp16", "FP16 with a loss scale", "bf16", "fp16", (7, 0), {"fp16": True}),
    Precision(
        "fp8_cs", "FP8 current scaling", "fp8", "bf16", (8, 9),
        {"fp8": "hybrid", "fp8_recipe": "tensorwise", "fp8_param": True}, True, "2.2.0",
    ),
    Precision(
        "fp8_ds", "FP8 delayed scaling", "fp8", "bf16", (8, 9),
        {"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_amax_history_len": 1024, "fp8_amax_compute_algo": "max",
         "fp8_param": True}, True, "1.0.0",
    ),
    Precision(
        "fp8_sc", "FP8 block-wise (sub-channel) scaling", "fp8", "bf16", (9, 0),
        {"fp8": "hybrid", "fp8_recipe": "blockwise"}, False, "2.3.0",
    ),
    Precision(
        "fp8_mx", "MXFP8", "fp8", "bf16", (10, 0),
        {"fp8": "e4m3", "fp8_recipe": "mxfp8", "fp8_param": True}, True, "2.1.0",
    ),
    Precision(
        "nvfp4", "NVFP4", "fp4", "bf16", (10, 0),
        {"fp4": "e2m1", "fp4_recipe": "nvfp4", "fp4_param": True}, False, "2.7.0",
    ),
)  # fmt: skip


def _other_weights(row: Precision) -> Precision:
    """Return the same recipe with its weights kept the other way: in FP8, or in BF16 with FP8 copies beside them."""
    fields = {name: value for name, value in row.transformer_config.items() if name != "fp8_param"}
    kept = "bf16" if row.fp8_param_gather else "fp8"
    return replace(
        row,
        name=f"{row.name}_{kept}_weights",
        title=f"{row.title}, weights in {kept.upper()}",
        transformer_config=fields | ({"fp8_param": True} if kept == "fp8" else {}),
        fp8_param_gather=kept == "fp8",
        source="Megatron-LM --fp8-format, with or without --fp8-param-gather",
    )


PRECISIONS: dict[str, Precision] = {
    row.name: row for row in (*_PUBLISHED, *(_other_weights(row) for row in _PUBLISHED if row.peak == "fp8"))
}


# Data sheets round: memory is what nvidia-smi reports. Of that, errors of torch name this much less as the capacity:
# H100 79.20 GiB, H200 139.80, B200 178.35, B300 267.69, GB200 184.31, GB300 276.50, H20 and GH200 95.0.
_DRIVER_BYTES = 8 * GIB // 10


@dataclass(frozen=True)
class Links:
    """Bytes/s in one direction of a GPU: in its NVLink (or PCIe) domain of ``domain_gpus``, and over the network."""

    nvlink: float
    network: float
    domain_gpus: int
    source: str


@dataclass(frozen=True)
class GpuType:
    """One `-g`. Peaks are dense (no sparsity), FLOP/s; bandwidth bytes/s; ``name_pattern`` matches NVML's product name.

    ``capability``: CUDA's (major, minor); None for a processor, which has no ``links`` either. ``multiprocessors``:
    those that compute, of NVIDIA's architecture white papers. ``host_bandwidth``: bytes/s between the GPU and its host,
    each way; ``host_memory_bytes``: of a node, None where the data sheet states none. ``driver_bytes``: of
    ``memory_bytes``, what no program can have.
    ``timing_threshold`` and ``memory_threshold`` are the default gates. They are wider or tighter than 5 % only where
    repeated runs were measured to need it.
    """

    name: str
    title: str
    peak_flops: dict[PeakKey, float]
    memory_bytes: int
    memory_bandwidth: float
    capability: tuple[int, int] | None
    multiprocessors: int
    links: Links | None
    name_pattern: str | None
    source: str
    gpus_per_node: int = 8
    default_compute_dtype: str = "bf16"
    driver_bytes: int = _DRIVER_BYTES
    host_bandwidth: float | None = None
    host_memory_bytes: int | None = None
    timing_threshold: float = 0.05
    memory_threshold: float = 0.05

    @property
    def usable_bytes(self) -> int:
        return self.memory_bytes - self.driver_bytes

    @property
    def is_cpu(self) -> bool:
        return self.capability is None

    @property
    def is_rack(self) -> bool:
        """Tell GPUs whose NVLink reaches beyond the node."""
        return self.links is not None and self.links.domain_gpus > self.gpus_per_node

    def has_capacity(self, size: float) -> bool:
        """Return whether torch may state this capacity of the GPU: the GB of its data sheet as GiB, less 1.1 %."""
        stated = self.memory_bytes if self.driver_bytes else self.memory_bytes / GB * GIB
        return not self.is_cpu and abs(size / (stated * 0.989) - 1) < 0.008

    def is_at_least(self, major: int) -> bool:
        """Compare the compute capability with ``major``: 9 is Hopper, 10 Blackwell. A CPU has none."""
        return self.capability is not None and self.capability[0] >= major


def _peaks(bf16: float, fp8: float = 0, fp4: float = 0) -> dict[PeakKey, float]:
    peaks: dict[PeakKey, float] = {"bf16": bf16 * TERA, "fp8": fp8 * TERA, "fp4": fp4 * TERA}
    return {key: value for key, value in peaks.items() if value}


# 16 lanes, each way: data sheets state the sum of both ways.
_PCIE_4, _PCIE_5 = 32e9, 64e9
# NVLink-C2C of a superchip, 900 GB/s in both directions, and of Vera, 1.8 TB/s (NVL72: 65 TB/s), by its two GPUs.
_GRACE_C2C, _VERA_C2C = 225e9, 450e9
# Of a node, as delivered: DGX A100 640 GB, H100, H200, B200 and B300 data sheets; LPDDR5X of a Grace processor, two of
# which are in a node of GB200 and GB300 NVL72.
_DGX_BYTES, _GRACE_BYTES = 2000 * GB, 480 * GB
_NVLINK_4 = "NVLink 4, half of 900 GB/s; NDR InfiniBand 400 Gb/s"
_NVLINK_5 = "NVLink 5, half of 1.8 TB/s"


_RUBIN = GpuType(
    "vr200", "Vera Rubin NVL72", _peaks(4000, 17500, 35000), 288 * GB, 22e12, (10, 7), 224,
    Links(1800e9, 200e9, 72, "NVLink 6, half of 3.6 TB/s; ConnectX-9, 1.6 Tb/s per GPU"),
    r"\bVR200\b", "NVIDIA Vera Rubin NVL72 data sheet (preliminary) / 72 GPUs, FP4 as in training", gpus_per_node=4,
    host_bandwidth=_VERA_C2C,
)  # fmt: skip


GPUS: dict[str, GpuType] = {
    row.name: row
    for row in (
        GpuType(
            "a100", "A100 80GB SXM", _peaks(312), 80 * GIB, 2.039e12, (8, 0), 108,
            Links(300e9, 25e9, 8, "NVLink 3, half of 600 GB/s; HDR InfiniBand 200 Gb/s (DGX A100 data sheet)"),
            r"\bA100\b.*80GB", "NVIDIA A100 data sheet", host_bandwidth=_PCIE_4, host_memory_bytes=_DGX_BYTES,
        ),
        GpuType(
            "h100", "H100 80GB SXM", _peaks(989.4, 1978.9), 80 * GIB, 3.35e12, (9, 0), 132,
            Links(450e9, 50e9, 8, f"{_NVLINK_4} (DGX H100 data sheet)"),
            r"\bH100\b(?! PCIe| NVL)", "NVIDIA H100 data sheet (halved: it prints sparse figures)",
            host_bandwidth=_PCIE_5, host_memory_bytes=_DGX_BYTES,
        ),
        GpuType(
            "h200", "H200 141GB SXM", _peaks(989.4, 1978.9), 143_771 * MIB, 4.8e12, (9, 0), 132,
            Links(450e9, 50e9, 8, f"{_NVLINK_4} (DGX H200 data sheet)"),
            r"\bH200\b(?! NVL)", "NVIDIA H200 data sheet (halved)", host_bandwidth=_PCIE_5,
            host_memory_bytes=_DGX_BYTES,
        ),
        GpuType(
            "b200", "HGX B200", _peaks(2250, 4500, 9000), 183_359 * MIB, 7.7e12, (10, 0), 148,
            Links(900e9, 50e9, 8, f"{_NVLINK_5}; 400 Gb/s per GPU (DGX B200 data sheet)"),
            r"\bB200\b", "NVIDIA HGX B200 data sheet, per GPU at 1,000 W", host_bandwidth=_PCIE_5,
            host_memory_bytes=_DGX_BYTES,
        ),
        GpuType(
            "b300", "HGX B300", _peaks(2250, 4500, 13125), 275_040 * MIB, 7.7e12, (10, 3), 148,
            Links(900e9, 100e9, 8, f"{_NVLINK_5}; 800 Gb/s per GPU (DGX B300 data sheet)"),
            r"\bB300\b", "NVIDIA HGX B300 data sheet, per GPU", host_bandwidth=_PCIE_5, host_memory_bytes=_DGX_BYTES,
        ),
        GpuType(
            "gb200", "GB200 NVL72", _peaks(2500, 5000, 10000), 189_471 * MIB, 8.0e12, (10, 0), 148,
            Links(900e9, 50e9, 72, f"{_NVLINK_5}; 400 Gb/s per GPU (GB200 NVL72 data sheet)"),
            r"\bGB200\b", "NVIDIA GB200 NVL72 data sheet / 72 GPUs", gpus_per_node=4,
            host_bandwidth=_GRACE_C2C, host_memory_bytes=2 * _GRACE_BYTES,
        ),
        GpuType(
            "gb300", "GB300 NVL72", _peaks(2500, 5000, 15000), 284_208 * MIB, 8.0e12, (10, 3), 148,
            Links(900e9, 100e9, 72, f"{_NVLINK_5}; 800 Gb/s per GPU (GB300 NVL72 data sheet)"),
            r"\bGB300\b", "NVIDIA GB300 NVL72 data sheet / 72 GPUs", gpus_per_node=4,
            host_bandwidth=_GRACE_C2C, host_memory_bytes=2 * _GRACE_BYTES,
        ),
        GpuType(
            "a800", "A800 80GB SXM", _peaks(312), 80 * GIB, 2.039e12, (8, 0), 108,
            Links(200e9, 25e9, 8, "NVLink 3, half of 400 GB/s (A800 data sheet); HDR InfiniBand 200 Gb/s as A100"),
            r"\bA800\b.*80GB", "NVIDIA A800 data sheet: an A100 with less NVLink", host_bandwidth=_PCIE_4,
        ),
        GpuType(
            "h800", "H800 80GB SXM", _peaks(989.4, 1978.9), 80 * GIB, 3.35e12, (9, 0), 132,
            Links(200e9, 50e9, 8, "NVLink 4, half of 400 GB/s (H800 data sheet); NDR InfiniBand 400 Gb/s as H100"),
            r"\bH800\b(?! PCIe| NVL)", "NVIDIA H800 data sheet: an H100 with less NVLink", host_bandwidth=_PCIE_5,
        ),
        GpuType(
            "h20", "H20 96GB SXM", _peaks(148, 296), 97_871 * MIB, 4.0e12, (9, 0), 78,
            Links(450e9, 50e9, 8, f"{_NVLINK_4} as H100"),
            r"\bH20\b(?!-3e)", "NVIDIA H20 data sheet (dense figures)", host_bandwidth=_PCIE_5,
        ),
        GpuType(
            "gh200", "GH200 96GB", _peaks(989.4, 1978.9), 97_871 * MIB, 4.0e12, (9, 0), 132,
            Links(450e9, 50e9, 1, "one GPU of a node: no NVLink between GPUs; NDR InfiniBand 400 Gb/s"),
            r"\bGH200\b(?! 144G)", "NVIDIA GH200 Grace Hopper data sheet (halved); NVLink-C2C, half of 900 GB/s",
            gpus_per_node=1, host_bandwidth=450e9, host_memory_bytes=_GRACE_BYTES,
        ),
        _RUBIN,
        replace(_RUBIN, name="r100", title="Rubin, one GPU a node", gpus_per_node=1, name_pattern=r"\bR100\b"),
        GpuType(
            "l40s", "L40S 48GB PCIe", _peaks(362.05, 733), 46_068 * MIB, 0.864e12, (8, 9), 142,
            Links(32e9, 12.5e9, 8, "PCIe 4.0 x16, 64 GB/s in both directions together; 100 Gb/s Ethernet"),
            r"\bL40S\b", "NVIDIA L40S data sheet", host_bandwidth=_PCIE_4,
        ),
        GpuType(
            "cpu", "this machine's processor, gloo", {}, 0, 0.0, None, 0, None, None,
            "thresholds: identical CPU runs differ by 4 to 12 % in time and by some KiB in memory",
            default_compute_dtype="fp32", driver_bytes=0, timing_threshold=0.15, memory_threshold=0.005,
        ),
    )
}  # fmt: skip


def gpu_named(product_name: str) -> GpuType | None:
    """The row whose pattern matches NVML's product name (`NVIDIA H100 80GB HBM3`); None for an unknown product."""
    for row in GPUS.values():
        if row.name_pattern and re.search(row.name_pattern, product_name):
            return row
    return None
