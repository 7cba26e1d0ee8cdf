"""megatron-core's fine-grained offloading without a GPU: its manager decides, and what it moves leaves device memory.

Groups, minimum size, what stays and the order of reloads are megatron-core's own
(`pipeline_parallel/fine_grained_activation_offload.py`). A copy is done at once: streams and events are inert.
"""

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
    """What is needed to make a tensor again that was copied to the host."""

    shape: torch.Size
    dtype: torch.dtype


class Event:
    """A CUDA event that has always happened."""

    def record(self, *_stream) -> None:
        """Nothing to wait for."""

    wait = synchronize = record


def install() -> None:
    """Replace what moves bytes; releases without the manager have nothing to replace."""
    if importlib.util.find_spec(_MANAGER) is None:
        return
    manager = importlib.import_module(_MANAGER)
    torch.cuda.Event = lambda *_args, **_kwargs: Event()
    torch.Tensor.record_stream = lambda *_args: None
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_args: None
    manager.ChunkOffloadHandler.offload = _offload
    manager.ChunkOffloadHandler.reload = _reload
    manager.ChunkOffloadHandler._can_manage_tensor_for_offload = staticmethod(_is_no_parameter)  # not: is on cuda
    manager.print_offload_summary_table = lambda _bytes: None  # a table gathered from all ranks


def forget() -> None:
    """Start as a new process does: the manager is one per process, and knows the chunks of its first step."""
    if importlib.util.find_spec(_MANAGER) is not None:
        importlib.import_module(_MANAGER).PipelineOffloadManager.OFFLOAD_MGR = None


def is_on(config: "TransformerConfig") -> bool:
    """Whether modules are offloaded; older releases do not know the setting."""
    return getattr(config, "fine_grained_activation_offloading", False)


def end_step() -> None:
    """What schedules do after a step; the first one tells megatron-core which groups are to stay on the device."""
    importlib.import_module(_MANAGER).PipelineOffloadManager.get_instance().reset()


def _is_no_parameter(tensor: torch.Tensor) -> bool:
    """Asked by newer releases."""
    return not isinstance(tensor, torch.nn.Parameter)


def _offload(_handler, tensor: torch.Tensor, pin_memory=True, use_cpu_pool=True) -> tuple:  # noqa: ARG001, FBT002
    """Views are made whole before they are copied (`ChunkOffloadHandler.offload`)."""
    whole = tensor if tensor.is_contiguous() else tensor.contiguous()
    return whole.device, OnHost(whole.shape, whole.dtype), use_cpu_pool


def _reload(_handler, state: tuple, non_blocking=None) -> torch.Tensor:  # noqa: ARG001
    device, away, _use_cpu_pool = state
    return torch.empty(away.shape, dtype=away.dtype, device=device)
