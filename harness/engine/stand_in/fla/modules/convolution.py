"""flash-linear-attention's causal convolution, which megatron-core 0.19 takes instead of causal_conv1d's."""

from causal_conv1d import causal_conv1d_fn


def causal_conv1d(x, weight, bias=None, **_options):
    """[b, s, channels] -> [b, s, channels], and no final state."""
    return causal_conv1d_fn(x, weight, bias), None
