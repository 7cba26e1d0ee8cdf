"""Types that megatron-core tests tensors for."""

import torch


class QuantizedTensor(torch.Tensor):
    """Never instantiated."""
