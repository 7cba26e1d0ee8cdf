"""Where the traced tensors live, and which machine's kernels they stand for."""

from dataclasses import dataclass
from typing import Literal

import torch


@dataclass
class Place:
    """``device``: meta, or cpu for a check on real tensors. ``target``: whose kernels decide what is saved."""

    device: torch.device
    target: Literal["cpu", "cuda"] = "cuda"

    @property
    def is_real(self) -> bool:
        """Whether tensors have data."""
        return self.device.type == "cpu"

    @property
    def stands_for_cuda(self) -> bool:
        """Whether the kernels of a GPU are imitated."""
        return self.target == "cuda"


# One per process: megatron asks for the device from many places, none of which can be handed an argument.
PLACE = Place(torch.device("meta"))
