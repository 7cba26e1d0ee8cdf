"""The quantisation recipes by name; what they save is in ``pytorch/formats.py``."""

from enum import Enum


class Format(Enum):
    """Number formats of forward and backward tensors."""

    E4M3 = "e4m3"
    E5M2 = "e5m2"
    HYBRID = "hybrid"


class Recipe:
    """Keeps what it is given; megatron-core asks only for the kind."""

    def __init__(self, *_args, **settings) -> None:
        self.settings = settings

    def delayed(self) -> bool:
        """Return whether scales come from earlier steps."""
        return isinstance(self, DelayedScaling)


class DelayedScaling(Recipe):
    """One scale per tensor, from the history of its largest values."""


class Float8CurrentScaling(Recipe):
    """One scale per tensor, from its own values."""


class Float8BlockScaling(Recipe):
    """One scale per 128 elements of activations and per 128 x 128 of weights."""


class MXFP8BlockScaling(Recipe):
    """One scale of a byte per 32 elements."""


class NVFP4BlockScaling(Recipe):
    """Four-bit elements, one scale of a byte per 16."""
