"""Names that megatron-core annotates with; the operation fuser is off unless asked for."""

import torch


class FusibleOperation(torch.nn.Module):
    """Never instantiated."""


class Sequential(torch.nn.Sequential):
    """Never instantiated."""
