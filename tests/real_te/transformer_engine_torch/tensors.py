"""Tensors without data, as the kernels allocate them."""

import math

import torch
from stood_for import STOOD_FOR

from transformer_engine_torch.enumerations import DType

_TORCH = {
    DType.kByte: torch.uint8, DType.kInt32: torch.int32, DType.kFloat32: torch.float32, DType.kFloat16: torch.float16,
    DType.kBFloat16: torch.bfloat16, DType.kFloat8E4M3: torch.float8_e4m3fn, DType.kFloat8E5M2: torch.float8_e5m2,
}  # fmt: skip


def torch_dtype(dtype):
    """torch's name of a dtype of the extension."""
    return dtype if isinstance(dtype, torch.dtype) else _TORCH[DType(int(dtype))]


def empty(shape, dtype):
    """One allocation on the GPU."""
    return torch.empty(tuple(map(int, shape)), dtype=torch_dtype(dtype), device=STOOD_FOR.device)


def shape_of(tensor):
    """Of a tensor or of a quantised storage; where only per-tensor column data is left, its last dimension comes first."""
    transpose = getattr(tensor, "_transpose", None)
    if transpose is not None and tensor._data is None:
        return (*transpose.shape[1:], transpose.shape[0])
    if getattr(tensor, "_rowwise_data", tensor) is None and hasattr(tensor, "_amax_columnwise"):
        columns = tensor._columnwise_data.shape  # two values to a byte
        return (*columns[1:-1], columns[-1] * 2, columns[0])
    return tuple(tensor.size())


def matrix_of(tensor):
    """(rows, columns) of a tensor whose leading dimensions are rows."""
    shape = shape_of(tensor)
    return math.prod(shape[:-1]), shape[-1]
