"""The GPU and the release that this double imitates; `loading.prepare` sets both before the rest is imported."""

from dataclasses import dataclass, field

import torch


@dataclass
class StoodFor:
    """``capability``: compute capability of the GPU. ``release``: of transformer-engine, as (2, 11)."""

    capability: tuple[int, int] = (9, 0)
    release: tuple[int, int] = (2, 11)
    device: torch.device = field(default_factory=lambda: torch.device("meta"))

    @property
    def multiplies_any_layout(self):
        """Whether FP8 GEMMs read operands along either dimension (`nvte_is_non_tn_fp8_gemm_supported`)."""
        return self.capability >= (10, 0)


STOOD_FOR = StoodFor()
