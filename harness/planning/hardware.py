"""How fast GPUs really are at what training does: shares of peak that kernels reach, and links between GPUs."""

from dataclasses import dataclass
from typing import Literal

from harness.experiment.experiment import ExperimentSpec

GIGA = 1e9

Group = Literal["tp", "cp", "ep", "etp", "dp", "edp"]


@dataclass(frozen=True)
class Efficiency:
    """Share of the data-sheet peak that is reached."""

    gemm_bf16: float
    gemm_low_precision: float
    attention: float
    memory: float
    link: float


# Fixed before any comparison. With the likely column, a 22B layer on A100 comes out at 19.16 ms where Korthikanti et al.
# 2022 (arXiv 2205.05198, table 4) measured 19.6, and at 26.36 for 27.2 with full recompute. Ratios between settings move
# by less than one point between the columns; absolute times do not deserve more trust than the columns are apart.
LIKELY = Efficiency(gemm_bf16=0.75, gemm_low_precision=0.65, attention=0.55, memory=0.80, link=0.80)
FAST = Efficiency(gemm_bf16=0.85, gemm_low_precision=0.75, attention=0.70, memory=0.90, link=0.90)
SLOW = Efficiency(gemm_bf16=0.55, gemm_low_precision=0.45, attention=0.40, memory=0.65, link=0.55)

# On Blackwell the 16 steps of a 12-layer Llama3-70B that SimuMax published for B200 took 1.5 to 2.3 times as long as the
# likely column says; kernels for it are young, so the range reaches as far. The likely column was left as it was fixed.
SLOW_BLACKWELL = Efficiency(gemm_bf16=0.33, gemm_low_precision=0.30, attention=0.20, memory=0.50, link=0.40)


def slowest(spec: ExperimentSpec) -> Efficiency:
    """What is rarely missed on the GPU of ``spec``."""
    return SLOW_BLACKWELL if spec.gpu_type.is_at_least(10) else SLOW


# From launch of one kernel to the next on the host, eager execution; only a doubt is drawn from it.
LAUNCH_S = 5e-6


@dataclass(frozen=True)
class Links:
    """Bytes/s in one direction of one GPU: inside its NVLink (or PCIe) domain of ``domain_gpus``, and over the network."""

    nvlink: float
    network: float
    domain_gpus: int
    source: str


_PCIE = Links(32 * GIGA, 12.5 * GIGA, 8, "PCIe 4.0 x16, 64 GB/s in both directions together; 100 Gb/s Ethernet")

LINKS: dict[str, Links] = {
    "a100": Links(
        300 * GIGA, 25 * GIGA, 8, "NVLink 3, half of 600 GB/s; HDR InfiniBand 200 Gb/s (DGX A100 data sheet)"
    ),
    "h100": Links(
        450 * GIGA, 50 * GIGA, 8, "NVLink 4, half of 900 GB/s; NDR InfiniBand 400 Gb/s (DGX H100 data sheet)"
    ),
    "h200": Links(
        450 * GIGA, 50 * GIGA, 8, "NVLink 4, half of 900 GB/s; NDR InfiniBand 400 Gb/s (DGX H200 data sheet)"
    ),
    "b200": Links(900 * GIGA, 50 * GIGA, 8, "NVLink 5, half of 1.8 TB/s; 400 Gb/s per GPU (DGX B200 data sheet)"),
    "b300": Links(900 * GIGA, 100 * GIGA, 8, "NVLink 5, half of 1.8 TB/s; 800 Gb/s per GPU (DGX B300 data sheet)"),
    "gb200": Links(900 * GIGA, 50 * GIGA, 72, "NVLink 5, half of 1.8 TB/s; 400 Gb/s per GPU (GB200 NVL72 data sheet)"),
    "gb300": Links(900 * GIGA, 100 * GIGA, 72, "NVLink 5, half of 1.8 TB/s; 800 Gb/s per GPU (GB300 NVL72 data sheet)"),
    "l40s": _PCIE,
}


def group_bandwidth(spec: ExperimentSpec, group: Group) -> float:
    """Bytes/s at which one rank sends to the others of its group, at 100 % efficiency.

    Ranks are numbered tp-cp-dp-pp and etp-ep-edp-pp (megatron-core `parallel_state`). What leaves the NVLink domain goes
    over the network, at a rate that the share of it lowers.
    """
    links = LINKS[spec.gpu]
    size, stride = _extent(spec, group)
    inside = max(1, min(size, links.domain_gpus // stride))
    if inside >= size:
        return links.nvlink
    crossing = 1 - inside / size
    return min(links.nvlink, links.network / crossing)


def group_size(spec: ExperimentSpec, group: Group) -> int:
    """Ranks in the group."""
    return _extent(spec, group)[0]


def _extent(spec: ExperimentSpec, group: Group) -> tuple[int, int]:
    """Size of a group, and the distance between its neighbours in rank numbers."""
    p = spec.parallelism
    tp, cp, ep, etp = (
        p.tensor_model_parallel_size, p.context_parallel_size, p.expert_model_parallel_size, p.expert_tensor_size,
    )  # fmt: skip
    per_stage = max(1, spec.num_gpus // p.pipeline_model_parallel_size)
    extents: dict[Group, tuple[int, int]] = {
        "tp": (tp, 1),
        "cp": (cp, tp),
        "ep": (ep, etp),
        "etp": (etp, 1),
        # gradients are reduced over data-parallel and context-parallel ranks together
        "dp": (max(1, per_stage // tp), tp),
        "edp": (max(1, per_stage // (etp * ep)), etp * ep),
    }
    return extents[group]
