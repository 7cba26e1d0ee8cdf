"""Activations moved to the host, layer by layer (2.11 `cpu_offload.py`); composition decides when each layer moves."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from math import prod

import torch

# megatron-core's fine-grained offloading sets it around the modules that it offloads.
CPUOffloadEnabled = False


class Away:
    """A tensor on the host: the facts needed to make it again."""

    def __init__(self, tensor: torch.Tensor, layer: "LayerOffload") -> None:
        self._shape, self._dtype, self._layer = tensor.shape, tensor.dtype, layer
        self.storage = tensor.untyped_storage()._cdata

    def back(self) -> torch.Tensor:
        """Return the tensor, which came back together with all others of its layer."""
        self._layer.reload()
        return self._layer.buffers[self.storage].view(self._dtype).as_strided(self._shape, _strides(self._shape))


def _strides(shape: torch.Size) -> list[int]:
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


class LayerOffload:
    """The tensors that autograd saves in one layer's forward pass. Those that share a storage move together."""

    def __init__(self) -> None:
        self._held: dict[int, torch.Tensor] = {}
        self._sizes: dict[int, int] = {}
        self.buffers: dict[int, torch.Tensor] = {}

    def keep(self, tensor: torch.Tensor) -> torch.Tensor | Away:
        """Parameters stay, and views that are not contiguous (`OffloadableLayerState._check_if_offload`)."""
        stays = isinstance(tensor, torch.nn.Parameter) or getattr(tensor, "_TE_do_not_offload", False)
        if stays or tensor.device.type == "cpu" or not tensor.is_contiguous() or tensor.storage_offset():
            return tensor
        away = Away(tensor, self)
        self._held[away.storage] = tensor
        self._sizes[away.storage] = tensor.untyped_storage().nbytes()
        self._device = tensor.device
        return away

    def leave(self) -> None:
        """The forward pass is over."""
        self._held.clear()

    def reload(self) -> None:
        """Everything at once; it stays until the next layer's backward pass, in a trace of one layer until the end."""
        if not self.buffers:
            sizes = self._sizes.items()
            self.buffers = {key: torch.empty(n, dtype=torch.uint8, device=self._device) for key, n in sizes}


class OffloadContext:
    """Around the forward pass of each layer."""

    inside_context = False  # megatron-core's own linear layers ask; they follow 2.11's older offloading only

    def __enter__(self) -> None:
        self._layer = LayerOffload()
        torch._C._autograd._push_saved_tensors_default_hooks(
            self._layer.keep, lambda kept: kept.back() if isinstance(kept, Away) else kept
        )

    def __exit__(self, *_exc_info) -> None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        self._layer.leave()


def get_cpu_offload_context(
    enabled=False, *_sizes, **_options,  # noqa: FBT002
) -> tuple[AbstractContextManager, Callable]:  # fmt: skip
    """Return a context for every layer, and the function that each layer's output passes through."""
    return (OffloadContext() if enabled else nullcontext()), lambda hidden_states: hidden_states
