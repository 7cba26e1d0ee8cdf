"""Enumerations of the compiled extension (csrc/extensions/pybind.cpp, common/util/pybind_helper.h)."""

import enum

from stood_for import STOOD_FOR


def _enum(name, members):
    return enum.IntEnum(name, {member: index for index, member in enumerate(members.split())})


DType = _enum("DType", "kByte kInt32 kFloat32 kFloat16 kBFloat16 kFloat8E4M3 kFloat8E5M2 kFloat4E2M1")
FP8FwdTensors = _enum(
    "FP8FwdTensors", " ".join(f"GEMM{g}_{w}" for g in (1, 2, 3) for w in ("INPUT", "WEIGHT", "OUTPUT"))
)
FP8BwdTensors = _enum("FP8BwdTensors", " ".join(f"GRAD_{w}{g}" for g in (1, 2, 3) for w in ("OUTPUT", "INPUT")))
CommOverlapType = _enum("CommOverlapType", "RS AG")
CommOverlapAlgo = _enum(
    "CommOverlapAlgo",
    "BULK_OVERLAP_AG BULK_OVERLAP_RS SPLIT_PIPELINED_AG_P2P SPLIT_PIPELINED_RS SPLIT_PIPELINED_RS_P2P ATOMIC_GEMM_RS "
    "ATOMIC_GEMM_AG_P2P ATOMIC_GEMM_RS_P2P EXTERNAL_BULK_OVERLAP_AG",
)
Float8BlockScaleTensorFormat = _enum("Float8BlockScaleTensorFormat", "GEMM_READY COMPACT")
NVTE_Fused_Attn_Backend = _enum(
    "NVTE_Fused_Attn_Backend",
    "NVTE_No_Backend NVTE_F16_arbitrary_seqlen NVTE_FP8"
    if STOOD_FOR.release >= (2, 19)
    else "NVTE_F16_max512_seqlen NVTE_F16_arbitrary_seqlen NVTE_FP8 NVTE_No_Backend",
)
NVTE_Bias_Type = _enum("NVTE_Bias_Type", "NVTE_NO_BIAS NVTE_PRE_SCALE_BIAS NVTE_POST_SCALE_BIAS NVTE_ALIBI")
NVTE_Mask_Type = _enum(
    "NVTE_Mask_Type",
    "NVTE_NO_MASK NVTE_PADDING_MASK NVTE_CAUSAL_MASK NVTE_PADDING_CAUSAL_MASK NVTE_CAUSAL_BOTTOM_RIGHT_MASK "
    "NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK",
)
NVTE_Softmax_Type = _enum("NVTE_Softmax_Type", "NVTE_VANILLA_SOFTMAX NVTE_OFF_BY_ONE_SOFTMAX NVTE_LEARNABLE_SOFTMAX")
NVTERoutingMapFormat = _enum("NVTERoutingMapFormat", "BYTEMAP BITMAP_U8")


class Member(int):
    """A value with its name."""

    def __new__(cls, value, kind, name):
        member = super().__new__(cls, value)
        member.kind, member.name = kind, name
        return member


class _AnyMember(type):
    """An enumeration of which only the names of members matter."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = Member(len(vars(cls)), cls.__name__, name)
        setattr(cls, name, value)
        return value


class NVTE_QKV_Layout(metaclass=_AnyMember):
    """How Q, K and V lie in memory."""


class NVTE_QKV_Format(metaclass=_AnyMember):
    """In which order their dimensions come."""
