"""Runs megatron-core's fine-grained offloading without a GPU: its manager decides which tensors leave."""

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:  # adaptations come before megatron-core is imported
    from megatron.core.transformer.transformer_config import TransformerConfig

_MANAGER = "megatron.core.pipeline_parallel.fine_grained_activation_offload"


@dataclass(frozen=True)
class OnHost:
    """What makes a tensor again that was copied to the host, and its size, for which megatron-core asks."""

    shape: torch.Size
    dtype: torch.dtype

    def numel(self) -> int:
        """Return the number of elements."""
        return self.shape.numel()

    def element_size(self) -> int:
        """Return the bytes of one element."""
        return self.dtype.itemsize


class Event:
    """A CUDA event that has always happened."""

    def record(self, *_stream) -> None:
        """Nothing to wait for."""

    wait = synchronize = record


def install() -> None:
    """Replace the functions that move bytes; releases without the manager have none."""
    if importlib.util.find_spec(_MANAGER) is None:
        return
    manager = importlib.import_module(_MANAGER)
    torch.cuda.Event = lambda *_args, **_kwargs: Event()
    torch.Tensor.record_stream = lambda *_args: None
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_args: None
    manager.ChunkOffloadHandler.offload = _offload
    manager.ChunkOffloadHandler.reload = _reload
    manager.ChunkOffloadHandler._can_manage_tensor_for_offload = staticmethod(_is_no_parameter)  # not: is on cuda
    manager.print_offload_summary_table = lambda *_bytes, **_group: None  # a table gathered from all ranks


def forget() -> None:
    """Start as a new process does: the one manager of a process knows the chunks of its first step."""
    if importlib.util.find_spec(_MANAGER) is not None:
        importlib.import_module(_MANAGER).PipelineOffloadManager.OFFLOAD_MGR = None


def is_on(config: "TransformerConfig") -> bool:
    """Return whether modules are offloaded; older releases do not know the setting."""
    return getattr(config, "fine_grained_activation_offloading", False)


def end_step() -> None:
    """Do what schedules do after a step. After the first, megatron-core decides which groups stay on the device."""
    importlib.import_module(_MANAGER).PipelineOffloadManager.get_instance().reset()


def reloaded_bytes() -> int:
    """Return the bytes of all copies that return to the device; a tensor that two operations save returns twice."""
    manager = importlib.import_module(_MANAGER).PipelineOffloadManager.get_instance()
    return sum(group.total_offload_bytes for chunk in manager._cached_chunks_forward for group in chunk.offload_groups)


def _is_no_parameter(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is no parameter; newer releases ask."""
    return not isinstance(tensor, torch.nn.Parameter)


_View = tuple[torch.Size, tuple[int, ...], int]  # size, stride, offset in the storage


def _offload(handler, tensor: torch.Tensor, pin_memory=True, use_cpu_pool=True) -> tuple:  # noqa: ARG001, FBT002
    """Copy as `ChunkOffloadHandler.offload` does: a view is made contiguous, or moves with its storage."""
    view: _View | None = None
    if _goes_with_its_storage(handler, tensor):
        view = tensor.size(), tensor.stride(), tensor.storage_offset()
        tensor = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    whole = tensor.contiguous()
    return whole.device, OnHost(whole.shape, whole.dtype), use_cpu_pool, view


def _goes_with_its_storage(handler, tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` is a view of most of its storage; some releases gather every view."""
    share = getattr(handler, "BASE_OFFLOAD_MIN_COVERAGE", None)
    if share is None or tensor.is_contiguous():
        return False
    size, storage = tensor.element_size(), tensor.untyped_storage().nbytes()
    return storage % size == 0 and tensor.numel() * size >= share * storage


def _reload(_handler, state: tuple, non_blocking=None) -> torch.Tensor:  # noqa: ARG001
    device, away, _use_cpu_pool, view = state
    back = torch.empty(away.shape, dtype=away.dtype, device=device)
    return back if view is None else back.as_strided(*view)
