"""Compute precisions as rows: the megatron-core settings behind each `--compute_dtype`."""

from dataclasses import dataclass, field
from typing import Literal

PeakKey = Literal["fp32", "bf16", "fp8", "fp4"]


@dataclass(frozen=True)
class Precision:
    """One `--compute_dtype`. ``transformer_config`` holds MCore 0.16 field names; ``min_capability`` a CUDA (major, minor)."""

    name: str
    title: str
    peak: PeakKey
    params_dtype: Literal["fp32", "bf16"]
    min_capability: tuple[int, int] | None
    transformer_config: dict[str, str | bool | int] = field(default_factory=dict)
    fp8_param_gather: bool = False
    min_transformer_engine: str | None = None
    source: str = "Megatron-Bridge mixed_precision.py; megatron-core fp8_utils.py"

    @property
    def params_bytes(self) -> int:
        """Bytes of one element of ``params_dtype``."""
        return 4 if self.params_dtype == "fp32" else 2


PRECISIONS: dict[str, Precision] = {
    row.name: row
    for row in (
        Precision("fp32", "FP32 (CPU runs)", "fp32", "fp32", None, source="no GPU recipe uses it"),
        Precision("bf16", "BF16", "bf16", "bf16", (8, 0)),
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
    )
}  # fmt: skip
