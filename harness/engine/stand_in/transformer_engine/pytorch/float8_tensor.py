"""Types that megatron-core tests tensors for; the stand-in's parameters are plain tensors with a note of their size."""

import torch


class Float8Tensor(torch.Tensor):
    """Never instantiated."""
