"""User buffers (csrc/extensions/comm_gemm_overlap.cpp): they lie outside of torch's allocator, and check sizes as it does."""

import math

import torch
from stood_for import STOOD_FOR
from torch.utils._python_dispatch import _disable_current_modes


class CommOverlapHelper:
    """Bootstraps over the groups that it is given."""

    def __init__(self, world_group=None, intra_node_group=None):
        self.world_group, self.intra_node_group = world_group, intra_node_group


class CommOverlapCore:
    """One buffer of one GEMM."""

    def __init__(self, buffer_shape, buffer_dtype, helper, tp_size, *settings, **named):
        self.buffer_shape, self.buffer_dtype = tuple(buffer_shape), buffer_dtype
        self.helper, self.tp_size, self.settings = helper, tp_size, named
        self.comm_type = settings[0] if settings else None
        with _disable_current_modes():
            self._buffer = torch.empty(self.buffer_shape, dtype=buffer_dtype, device=STOOD_FOR.device)

    def copy_into_buffer(self, input, local_chunk=False):
        """Of the size of the buffer or of this rank's part."""
        self._check(input.shape, local_chunk)
        if input.element_size() != self._buffer.element_size():
            raise ValueError(f"user buffer of {self.buffer_dtype}: cannot take {input.dtype}")

    def get_buffer(self, local_chunk=False, shape=None):
        """The buffer or this rank's part, in the shape asked for."""
        rows, columns = self.buffer_shape
        shape = tuple(shape or ((rows // self.tp_size if local_chunk else rows), columns))
        self._check(shape, local_chunk)
        with _disable_current_modes():
            return self._buffer.view(-1)[: math.prod(shape)].view(shape)

    def is_fp8_ubuf(self):
        """Whether it holds one byte per element."""
        return self._buffer.element_size() == 1

    def is_atomic_gemm(self):
        """Whether it was made for atomic GEMMs."""
        return bool(self.settings.get("atomic_gemm", False))

    def is_p2p_overlap(self):
        """Whether ranks exchange parts in a ring."""
        return isinstance(self, CommOverlapP2PBase)

    def get_communication_stream(self):
        """The same one for sending and receiving."""
        return torch.cuda.current_stream(), torch.cuda.current_stream()

    def _check(self, shape, local_chunk):
        size = math.prod(self.buffer_shape) // (self.tp_size if local_chunk else 1)
        if math.prod(shape) != size:
            raise ValueError(f"user buffer of {size} elements: {tuple(shape)} asked for")


class CommOverlapBase(CommOverlapCore):
    """Pipelined or bulk."""


class CommOverlapP2PBase(CommOverlapCore):
    """In a ring."""


class CommOverlap(CommOverlapBase):
    """As Python makes it."""


class CommOverlapP2P(CommOverlapP2PBase):
    """As Python makes it."""


def bulk_overlap_ag_with_external_gemm(allgather_communicator, send_stream, recv_stream):
    """Starts the gather beside a GEMM."""


def device_supports_multicast(*_device):
    """NVSwitch of Hopper does."""
    return True


def ubuf_built_with_mpi():
    """Wheels are not."""
    return False


def get_stream_priority_range(*_device):
    """Lowest, highest."""
    return 0, -5
