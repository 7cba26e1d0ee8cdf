"""Norms (csrc/extensions/normalization.cpp): outputs, row statistics, and the unquantised output where one is needed."""

import os

import torch

from transformer_engine_torch.quantizing import create, kind_of
from transformer_engine_torch.tensors import empty, matrix_of, shape_of


def rmsnorm_fwd(input, weight, eps, ln_out, quantizer, otype, sm_margin, zero_centered_gamma):
    """Output, no mean, reciprocal deviation."""
    return _forward(input, ln_out, quantizer, otype, has_mean=False)


def layernorm_fwd(input, weight, bias, eps, ln_out, quantizer, otype, sm_margin, zero_centered_gamma):
    """Output, mean, reciprocal deviation."""
    return _forward(input, ln_out, quantizer, otype, has_mean=True)


def rmsnorm_bwd(dz, x, rsigma, gamma, sm_margin, zero_centered_gamma):
    """Gradients of input and weight."""
    return empty(shape_of(x), x.dtype), torch.empty_like(gamma)


def rmsnorm_bwd_add(dz, x, add, rsigma, gamma, sm_margin, zero_centered_gamma):
    """Likewise, the sum with ``add``."""
    return empty(shape_of(x), x.dtype), torch.empty_like(gamma)


def layernorm_bwd(dz, x, mu, rsigma, gamma, sm_margin, zero_centered_gamma):
    """Gradients of input, weight and bias."""
    return empty(shape_of(x), x.dtype), torch.empty_like(gamma), torch.empty_like(gamma)


def _forward(x, out, quantizer, dtype, *, has_mean):
    rows, columns = matrix_of(x)
    mean = empty((rows,), torch.float32) if has_mean else None
    deviation = empty((rows,), torch.float32)
    if out is None:
        out = create(quantizer, shape_of(x), dtype)
    if not _is_fused(quantizer, rows, columns):
        empty(shape_of(x), dtype)  # the unquantised output, freed at once
    return out, mean, deviation


def _is_fused(quantizer, rows, columns):
    """Whether the kernel writes quantised data without an output in high precision."""
    if kind_of(quantizer) != "MXFP8Quantizer":
        return kind_of(quantizer) in ("NoneType", "Float8Quantizer")
    return os.environ.get("NVTE_NORM_FWD_USE_CUDNN", "0") == "1" and rows % 128 == columns % 128 == 0
