"""Matrix products (csrc/extensions/gemm.cpp). cuBLAS has columns first: rows first, an output is ``B A``."""

import torch

from transformer_engine_torch.quantizing import create, kind_of
from transformer_engine_torch.tensors import empty, matrix_of, shape_of, torch_dtype


def generic_gemm(A, transA, B, transB, D, quantizer, output_dtype, bias, bias_type, gelu, gelu_in, grad, workspace,
                 workspace_size, accumulate, use_split_accumulator, comm_overlap=None, comm_type=None,
                 extra_output=None, bulk_overlap=False, alpha=1.0, beta=None):  # fmt: skip
    """Output, gradient of the bias, input of GELU, what the overlapped communication wrote."""
    shape = _output_shape(A, transA, B, transB)
    dtype = torch_dtype(_high_precision(A) if output_dtype is None else output_dtype)
    _check_gathered_operands(A, B, transA, transB)
    if D is None:
        D = create(quantizer, shape, dtype)
    if quantizer is not None and kind_of(quantizer) != "Float8Quantizer":
        empty(shape, dtype)  # the unquantised output, freed at once
    bias_grad = empty((matrix_of(B)[1],), dtype) if grad and bias is not None else None
    if gelu and not grad:
        gelu_in = empty(shape, torch_dtype(bias_type))
    return D, bias_grad, gelu_in if gelu else None, extra_output


def te_general_grouped_gemm(A, transa, B, transb, D, D_type, m_splits, bias, bias_type, single_output, pre_gelu_out,
                            grad, workspace, workspace_size, accumulate, use_split_accumulator, math_sm_count):  # fmt: skip
    """Written into ``D``."""
    return bias


def get_num_cublas_streams():
    """As built."""
    return 4


def _output_shape(A, transA, B, transB):
    m = matrix_of(A)[0 if transA else 1]
    return (matrix_of(B)[1], m) if transB else (*shape_of(B)[:-1], m)


def _check_gathered_operands(A, B, transA, transB):
    """Inner dimensions agree, or a gather did not happen."""
    inner = matrix_of(A)[1 if transA else 0], matrix_of(B)[0 if transB else 1]
    if inner[0] != inner[1]:
        raise ValueError(f"GEMM of {shape_of(A)} and {shape_of(B)}: inner dimensions {inner[0]} and {inner[1]}")


def _high_precision(tensor):
    dtype = getattr(tensor, "dtype", None) or getattr(tensor, "_dtype", None)
    return dtype if isinstance(dtype, torch.dtype) and dtype != torch.uint8 else torch.bfloat16
