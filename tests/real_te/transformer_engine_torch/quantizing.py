"""Quantisers: which tensors each recipe allocates (csrc/quantizer.cpp `create_tensor`, csrc/extensions/cast.cpp)."""

import math

import torch
from stood_for import STOOD_FOR
from torch.utils._python_dispatch import _disable_current_modes

from transformer_engine_torch.tensors import empty, shape_of, torch_dtype

_PER_TENSOR = ("Float8Quantizer", "Float8CurrentScalingQuantizer")
# Kinds whose splits share one allocation per direction (`bulk_allocate_*`), with the attributes of a part.
_BULK = ("Float8BlockQuantizer", "MXFP8Quantizer", "NVFP4Quantizer")
_PARTS = {
    "rowwise": ("rowwise_data", "rowwise_scale_inv"),
    "columnwise": ("columnwise_data", "columnwise_scale_inv"),
}


class FP8TensorMeta:
    """Scales and histories of delayed scaling."""


def create(quantizer, shape, dtype):
    """`Quantizer::create_tensor`: an output for a kernel, in high precision without a quantiser."""
    shape, dtype = tuple(shape), torch_dtype(dtype)
    if quantizer is None:
        return empty(shape, dtype)
    if kind_of(quantizer) in _PER_TENSOR:
        return _per_tensor(quantizer, shape, dtype)
    tensor = quantizer.make_empty(shape, dtype=dtype, device=STOOD_FOR.device)
    return _storage_of(tensor) if quantizer.internal else tensor


def kind_of(quantizer):
    """The name of its class, by which the extension tells quantisers apart; "NoneType" for none."""
    return type(quantizer).__name__


def quantize(tensor, quantizer, output=None, noop=None):
    """Into a new tensor, or into ``output``, whose missing parts are allocated and whose unwanted ones are dropped."""
    if output is None:
        return create(quantizer, shape_of(tensor), tensor.dtype)
    if kind_of(quantizer) in _PER_TENSOR:
        _refill_per_tensor(output, quantizer)
    else:
        _refill_blocks(output, quantizer, tensor)
    return output


def dequantize(input, otype):
    """In high precision."""
    return empty(shape_of(input), otype)


def bgrad_quantize(input, quantizer):
    """Gradient of the bias, and the quantised input."""
    return empty((input.shape[-1],), input.dtype), create(quantizer, shape_of(input), input.dtype)


def multi_tensor_quantize(tensor_list, quantizer_list):
    """One after the other."""
    return [quantize(*pair) for pair in zip(tensor_list, quantizer_list, strict=True)]


def split_quantize(tensor, split_sections, quantizer_list, *_options, **_more):
    """Rows of ``tensor`` by sections, each by its own quantiser; block formats share one buffer per direction."""
    shapes = [(rows, *tensor.shape[1:]) for rows in split_sections]
    if not all(kind_of(quantizer) in _BULK for quantizer in quantizer_list):
        return [create(q, shape, tensor.dtype) for q, shape in zip(quantizer_list, shapes, strict=True)]
    with _disable_current_modes():  # sizes only: nothing of these parts is allocated
        parts = [_storage_of(q.make_empty(shape, dtype=tensor.dtype, device=STOOD_FOR.device))
                 for q, shape in zip(quantizer_list, shapes, strict=True)]  # fmt: skip
    for direction, names in _PARTS.items():
        _share_buffer(parts, [*names, f"amax_{direction}"])
    return parts


def fp8_transpose(input, dtype, *, out=None):
    """Last dimension first."""
    return empty((input.shape[-1], *input.shape[:-1]), torch.uint8) if out is None else out


def create_empty_quantized_tensor(quantizer, shape, dtype, device, pin_memory=False):
    """From 2.19 on the extension makes empty tensors for Python."""
    return create(quantizer, shape, dtype)


def compute_amax(input, amax):
    """Written in place."""


def fused_amax_and_scale_update_after_reduction(*_arguments):
    """Histories, amax and scales, in place."""


def multi_tensor_compute_scale_and_scale_inv(*_arguments):
    """Scales, in place."""


def swap_first_dims(tensor, *, out=None):
    """Copied, unless ``out`` is given."""
    return empty((tensor.shape[1], tensor.shape[0], *tensor.shape[2:]), tensor.dtype) if out is None else out


def _storage_of(tensor):
    """What autograd functions keep internally: the same parts in a class that is no tensor."""
    return type(tensor).__bases__[0](**tensor.get_metadata())


def _usage(quantizer):
    """Whether a per-tensor format gets row data and a transposed copy; one copy does where GEMMs read both ways."""
    any_layout = STOOD_FOR.multiplies_any_layout
    return quantizer.rowwise_usage or any_layout, quantizer.columnwise_usage and not any_layout


def _per_tensor(quantizer, shape, dtype):
    from transformer_engine.pytorch.tensor.float8_tensor import Float8Tensor

    rows, columns = _usage(quantizer)
    parts = {
        "data": empty(shape, torch.uint8) if rows else None,
        "fp8_scale_inv": empty((1,), torch.float32),
        "fp8_dtype": quantizer.dtype,
        "data_transpose": empty((shape[-1], *shape[:-1]), torch.uint8) if columns else None,
        "quantizer": quantizer,
    }
    if not quantizer.internal:
        return Float8Tensor(shape=shape, dtype=dtype, **parts)
    fake = {"fake_dtype": dtype} if STOOD_FOR.release >= (2, 19) else {}
    return Float8Tensor.__bases__[0](**parts, **fake)


def _refill_per_tensor(output, quantizer):
    rows, columns = _usage(quantizer)
    shape = shape_of(output)
    if rows and output._data is None:
        output._data = empty(shape, torch.uint8)
    elif not rows:
        output._data = None
    if columns and output._transpose is None:
        output._transpose = empty((shape[-1], *shape[:-1]), torch.uint8)
    elif not columns:
        output._transpose = None
    output._transpose_invalid = not columns


def _refill_blocks(output, quantizer, tensor):
    with _disable_current_modes():
        fresh = quantizer.make_empty(shape_of(tensor), dtype=tensor.dtype, device=STOOD_FOR.device)
    for direction, names in _PARTS.items():
        wanted = getattr(quantizer, f"{direction}_usage")
        for name in (f"_{name}" for name in names):
            if not wanted:
                setattr(output, name, None)
            elif getattr(output, name) is None:
                like = getattr(fresh, name)
                setattr(output, name, empty(like.shape, like.dtype))


def _share_buffer(parts, names):
    """Every named part becomes a slice of one buffer, data on 256 bytes and scales on 16 (`make_torch_view`)."""
    places, size = [], 0
    for index, name in enumerate(f"_{name}" for name in names):
        for part in parts:
            tensor = getattr(part, name, None)
            if tensor is not None:
                unit = 16 if index else 256
                start = -(-size // unit) * unit
                size = start + math.prod(tensor.shape) * tensor.element_size()
                places.append((part, name, tensor, start))
    if not places:
        return
    buffer = empty((size,), torch.uint8)
    for part, name, tensor, start in places:
        # no views: the buffer goes with the last part that is let go, as with `from_blob`
        slice_ = torch.empty(0, dtype=tensor.dtype, device=STOOD_FOR.device)
        slice_.set_(buffer.untyped_storage(), start // tensor.element_size(), tensor.shape)
        setattr(part, name, slice_)
