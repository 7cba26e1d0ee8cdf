"""CUDA streams for building a model, as megatron's own launcher uses them; graph capture needs them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from harness.experiment.effective import captures_iteration
from harness.experiment.experiment import ExperimentSpec


def leave_default(spec: ExperimentSpec) -> None:
    """Leave CUDA's default stream if transformer-engine captures graphs. Call it before the groups are made.

    Megatron-LM and Megatron-Bridge do the same: a capturing stream must not depend on the default stream.
    """
    if spec.cuda_graph.impl == "transformer_engine":
        torch.cuda.set_stream(torch.cuda.Stream())


@contextmanager
def building_ddp(spec: ExperimentSpec) -> Iterator[None]:
    """Build megatron's DDP on a side stream, in order with the current one; on a CPU nothing changes.

    DDP keeps AccumulateGrad nodes, which belong to the stream that created them. On the default stream a graph's capture
    would depend on work outside of it.
    """
    if spec.gpu_type.is_cpu:
        yield
        return
    side = _side_stream(spec)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream().wait_stream(side)


def _side_stream(spec: ExperimentSpec) -> torch.cuda.Stream:
    """Return the stream for DDP: from megatron-core 0.18 on, the shared one that captures the whole step."""
    if captures_iteration(spec.cuda_graph):
        from megatron.core import full_cuda_graph

        if hasattr(full_cuda_graph, "get_shared_capture_stream"):
            return full_cuda_graph.get_shared_capture_stream()
    return torch.cuda.Stream()
