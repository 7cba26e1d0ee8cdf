"""Describes the buffers with which transformer-engine overlaps tensor-parallel communication and GEMMs."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from harness.errors import nearest
from harness.experiment.frozen import Frozen
from harness.experiment.model import Count


class BulkOverlap(Frozen):
    """Communication runs beside an independent GEMM. Defaults are transformer-engine's."""

    method: Literal["bulk"]
    num_sm: Count = 16
    cga_size: Count = 2
    set_sm_margin: bool = True


class RingExchangeOverlap(Frozen):
    """Point-to-point copies between GEMM chunks. Defaults are transformer-engine's."""

    method: Literal["ring_exchange"]
    num_sm: Count = 1
    cga_size: Count = 1
    set_sm_margin: bool = False
    aggregate: bool = False


class PipelineOverlap(Frozen):
    """A reduce-scatter in ``num_splits`` parts behind the GEMM. Defaults are transformer-engine's."""

    method: Literal["pipeline"]
    num_sm: Count = 16
    cga_size: Count = 2
    num_splits: Count = 4
    set_sm_margin: bool = True
    fp8_buf: bool = False


_Gather = RingExchangeOverlap
_Scatter = Annotated[PipelineOverlap | RingExchangeOverlap, Field(discriminator="method")]


class UserBuffers(Frozen):
    """The buffers of ``ub_cfgs`` in `initialize_ub`; a GEMM that is left out keeps transformer-engine's default.

    `qkv_dgrad` and `fc1_dgrad` are `bulk`: other methods need `tp_comm_overlap_rs_dgrad`, which Bridge leaves off.
    """

    qkv_fprop: _Gather | None = None
    qkv_dgrad: BulkOverlap | None = None
    qkv_wgrad: BulkOverlap | None = None
    proj_fprop: _Scatter | None = None
    proj_dgrad: _Gather | None = None
    fc1_fprop: _Gather | None = None
    fc1_dgrad: BulkOverlap | None = None
    fc1_wgrad: BulkOverlap | None = None
    fc2_fprop: _Scatter | None = None
    fc2_dgrad: _Gather | None = None

    @property
    def ub_cfgs(self) -> dict[str, dict[str, object]]:
        return self.model_dump(exclude_none=True)


def _tuned(bulk: tuple[int, int, int, int], proj_fprop: int | None, fc2_fprop: int | None) -> UserBuffers:
    """SMs of qkv_dgrad, qkv_wgrad, fc1_dgrad and fc1_wgrad; of the two pipelined GEMMs, or None for a ring exchange."""
    ring = RingExchangeOverlap(method="ring_exchange")
    names = ("qkv_dgrad", "qkv_wgrad", "fc1_dgrad", "fc1_wgrad")
    buffers: dict[str, Any] = dict.fromkeys(("qkv_fprop", "proj_dgrad", "fc1_fprop", "fc2_dgrad"), ring) | {
        name: BulkOverlap(method="bulk", num_sm=num_sm, set_sm_margin=False)
        for name, num_sm in zip(names, bulk, strict=True)
    }
    for name, sms in (("proj_fprop", proj_fprop), ("fc2_fprop", fc2_fprop)):
        wide = RingExchangeOverlap(method="ring_exchange", set_sm_margin=True)
        buffers[name] = wide if sms is None else PipelineOverlap(method="pipeline", num_sm=sms)
    return UserBuffers(**buffers)


NAMED: dict[str, UserBuffers] = {
    "userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192": _tuned((4, 24, 2, 4), 24, 16),
    "userbuffers_fp8_h100_h8192_tp4_mbs1_seqlen8192": _tuned((4, 24, 2, 4), None, None),
    "userbuffers_bf16_b200_h8192_tp2_mbs1_seqlen8192": _tuned((16, 24, 2, 4), 32, 16),
    "userbuffers_fp8_b200_h8192_tp2_mbs1_seqlen8192": _tuned((4, 24, 2, 4), None, None),
    "userbuffers_bf16_h100_h16384_tp8_cp2_mbs1_seqlen8192": _tuned((2, 24, 2, 2), 24, 8),
    "userbuffers_fp8_h100_h16384_tp8_cp2_mbs1_seqlen8192": _tuned((2, 24, 2, 2), None, None),
    "userbuffers_bf16_b200_h16384_tp4_cp2_mbs1_seqlen8192": _tuned((8, 24, 2, 2), 32, 8),
    "userbuffers_fp8_b200_h16384_tp4_cp2_mbs1_seqlen8192": _tuned((8, 32, 2, 8), None, None),
    "userbuffers_bf16_h100_h12288_tp4_mbs1_seqlen2048": _tuned((4, 4, 2, 4), 24, None),
}
"""Configurations under Megatron-Bridge's names (its training/comm_overlap.py at 067f987)."""


def _by_name(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in NAMED:
        raise ValueError(f"must be a mapping of GEMMs, or a known configuration; {nearest(value, NAMED, count=3)}")
    return NAMED[value]


UserBufferConfig = Annotated[UserBuffers, BeforeValidator(_by_name)]
"""A mapping, or the name of a row of ``NAMED``."""
