"""Activations (csrc/extensions/activation.cpp): gated ones halve the width."""

from transformer_engine_torch.quantizing import create
from transformer_engine_torch.tensors import empty, shape_of

_GATED = ("glu", "swiglu", "geglu", "reglu", "qgeglu", "sreglu", "clamped_swiglu")
_PLAIN = ("gelu", "relu", "qgelu", "srelu", "silu")


def _halved(input, quantizer, *_options, **_more):
    *rows, width = shape_of(input)
    return create(quantizer, (*rows, width // 2), input.dtype)


def _same(input, quantizer, *_options, **_more):
    return create(quantizer, shape_of(input), input.dtype)


def _backward(grad, fwd_input, quantizer, *_options, **_more):
    return create(quantizer, shape_of(fwd_input), fwd_input.dtype)


def _backward_with_bias(grad, fwd_input, quantizer):
    return [empty((shape_of(fwd_input)[-1],), fwd_input.dtype), _backward(grad, fwd_input, quantizer)]


ACTIVATIONS = {
    **dict.fromkeys(_GATED, _halved),
    **dict.fromkeys(_PLAIN, _same),
    **dict.fromkeys([f"d{name}" for name in (*_GATED, *_PLAIN)], _backward),
    "clamped_dswiglu": _backward,
    **{f"dbias_d{name}": _backward_with_bias for name in _PLAIN},
}
