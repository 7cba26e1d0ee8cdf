"""Softmax of attention that keeps its scores (csrc/extensions/softmax.cpp); backward writes over the gradient."""

import torch


def scaled_softmax_forward(input, _scale):
    """A new tensor."""
    return torch.empty_like(input)


def scaled_masked_softmax_forward(input, _mask, _scale):
    """A new tensor."""
    return torch.empty_like(input)


def scaled_softmax_backward(output_grad, _softmax_results, _scale):
    """The gradient that came in."""
    return output_grad


scaled_upper_triang_masked_softmax_forward = scaled_aligned_causal_masked_softmax_forward = scaled_softmax_forward
scaled_upper_triang_masked_softmax_backward = scaled_aligned_causal_masked_softmax_backward = scaled_softmax_backward
scaled_masked_softmax_backward = scaled_softmax_backward
