"""Scratch memory that GEMM libraries take and keep: from torch's allocator, and user buffers outside of it.

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

# GEMMs with a user buffer, by what goes through it (transformer-engine 2.9 to 2.19, `initialize_ub`).
_GATHERED = ("qkv_fprop", "qkv_dgrad", "proj_dgrad", "proj_wgrad", "fc1_fprop", "fc1_dgrad", "fc2_dgrad", "fc2_wgrad")
_SCATTERED = ("proj_fprop", "fc2_fprop", "qkv_wgrad", "fc1_wgrad")
_BF16_BYTES = 2

_PART = re.compile(r":(\d+):(\d+)")


def workspace_bytes(spec: ExperimentSpec, *, has_experts: bool) -> int:
    """Bytes on a rank of ``spec``; ``has_experts`` says whether the rank holds experts. None on a processor."""
    if spec.gpu_type.is_cpu:
        return 0
    return _torch(spec) + _transformer_engine(spec, has_experts=has_experts)


def user_buffer_bytes(spec: ExperimentSpec) -> int:
    """Bytes of a rank's user buffers, which lie outside of torch's allocator (CommOverlapBase, CommOverlapP2PBase).

    Llama3-70B, 4096 tokens, TP 4, bf16, defaults: 12 buffers of 4096 x 8192 x 2 bytes are 805,306,368.
    """
    if not spec.makes_user_buffers:
        return 0
    tokens, width = spec.user_buffer_shape
    tp = spec.parallelism.tensor_model_parallel_size
    gathered_bytes = 1 if spec.precision.peak == "fp8" else _BF16_BYTES
    total = 0
    for gemm in (*_GATHERED, *_SCATTERED):
        method, fp8_buf = _settings(spec, gemm)
        is_scattered = gemm in _SCATTERED
        element = gathered_bytes if fp8_buf or not is_scattered else _BF16_BYTES
        ring_of_parts = is_scattered and method == "ring_exchange"  # and each of the others' parts once more
        total += tokens * width * element * (2 * tp - 1 if ring_of_parts else tp) // tp
    return total


def _settings(spec: ExperimentSpec, gemm: str) -> tuple[str | None, bool]:
    """Return the recipe's method for a GEMM, if it sets one, and whether it asks for an FP8 buffer."""
    named = spec.kernels.tp_comm_overlap_cfg
    buffer = getattr(named, gemm, None)
    if buffer is None:
        return None, False
    return buffer.method, getattr(buffer, "fp8_buf", False)


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
    overlaps = spec.makes_user_buffers
    grouped = moe is not None and moe.moe_grouped_gemm and has_experts
    return one * (1 + _TE_USER_BUFFER_STREAMS * overlaps + _TE_GROUPED_STREAMS * grouped)
