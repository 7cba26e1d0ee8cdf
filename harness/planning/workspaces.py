"""Scratch memory that GEMM libraries take from torch's allocator and keep.

Sizes are those of torch's `CUDABlas.cpp` (parseChosenWorkspaceSize) and of transformer-engine's `cpp_extensions/gemm.py`
(get_cublas_workspace). Together they are what small published runs hold between steps beside their model states: 100.7 MB
on H100, 71.3 MB on A100 with `CUBLAS_WORKSPACE_CONFIG=:4096:8`, 21.2 MB on A100 without it. Nothing was fitted.
"""

import re

from harness.spec.experiment import ExperimentSpec
from harness.units import MIB

KIB = 1024

# The thread of the forward pass and autograd's own have a cuBLAS handle each, and each handle its workspace.
_TORCH_HANDLES = 2
_TORCH_BYTES = {True: 32 * MIB, False: 2 * 4 * MIB + 8 * 16 * KIB}

_TE_BYTES = {True: 32 * MIB, False: 4 * MIB}
_TE_GROUPED_STREAMS = 4
_TE_USER_BUFFER_STREAMS = 3

_PART = re.compile(r":(\d+):(\d+)")


def workspace_bytes(spec: ExperimentSpec, *, has_experts: bool) -> int:
    """Bytes on a rank of ``spec``; ``has_experts`` says whether the rank holds experts. None on a processor."""
    if spec.gpu_type.is_cpu:
        return 0
    return _torch(spec) + _transformer_engine(spec, has_experts=has_experts)


def _torch(spec: ExperimentSpec) -> int:
    """`CUBLAS_WORKSPACE_CONFIG` is a list of `:KiB:count`; without it torch has 32 MiB for Hopper and Blackwell.

    (Its older releases have it for Hopper alone.)
    """
    parts = _PART.findall(spec.env.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if parts:
        return _TORCH_HANDLES * sum(int(size) * KIB * int(count) for size, count in parts)
    return _TORCH_HANDLES * _TORCH_BYTES[spec.gpu_type.is_at_least(9)]


def _transformer_engine(spec: ExperimentSpec, *, has_experts: bool) -> int:
    """One for plain GEMMs, one per stream for grouped ones and for those that overlap tensor-parallel communication."""
    if spec.kernels.transformer_impl == "local":
        return 0
    moe, one = spec.model.moe, _TE_BYTES[spec.gpu_type.is_at_least(9)]
    overlaps = spec.kernels.tp_comm_overlap and spec.parallelism.tensor_model_parallel_size > 1
    grouped = moe is not None and moe.moe_grouped_gemm and has_experts
    return one * (1 + _TE_USER_BUFFER_STREAMS * overlaps + _TE_GROUPED_STREAMS * grouped)
