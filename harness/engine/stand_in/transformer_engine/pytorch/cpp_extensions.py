"""Kernels that megatron-core calls by themselves."""

import torch

from transformer_engine.pytorch.formats import record_gemm


def general_gemm(A, B, out_dtype=None, layout="TN", **_options):  # noqa: N803 (transformer-engine's names)
    """Multiply as cuBLAS does, column-major: row-major it is ``B @ A``. T in ``layout``: transpose A, or B."""
    turns_a, turns_b = layout[0] == "T", layout[1] == "T"
    k, n = (A.shape[1], A.shape[0]) if turns_a else A.shape
    m = B.shape[1] if turns_b else B.shape[0]
    record_gemm((m, k, n), A, None)
    return [torch.empty((m, n), dtype=out_dtype or A.dtype, device=A.device), None, None, None]


def cast_to_fp8(*_args, **_options):
    """Only the optimizer casts weights."""
    raise NotImplementedError("weights are not cast in a trace")
