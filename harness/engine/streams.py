"""The CUDA streams on which megatron's own launcher builds a model, without which its graphs cannot be captured."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from harness.spec.experiment import ExperimentSpec
from harness.spec.graphs import captures_iteration


def leave_default(spec: ExperimentSpec) -> None:
    """Work on another stream than CUDA's default one where transformer-engine captures graphs; before the groups are made.

    As Megatron-LM and Megatron-Bridge do: a stream that captures must not depend on the default stream.
    """
    if spec.cuda_graph.impl == "transformer_engine":
        torch.cuda.set_stream(torch.cuda.Stream())


@contextmanager
def building_ddp(spec: ExperimentSpec) -> Iterator[None]:
    """Megatron's DDP is built on a side stream, in order with the current one; on a processor nothing changes.

    DDP keeps AccumulateGrad nodes, which belong to the stream of their making. On the default stream a graph's capture
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
    """megatron-core from 0.18 captures the whole step on one shared stream, and DDP belongs on it."""
    if captures_iteration(spec.cuda_graph):
        from megatron.core import full_cuda_graph

        if hasattr(full_cuda_graph, "get_shared_capture_stream"):
            return full_cuda_graph.get_shared_capture_stream()
    return torch.cuda.Stream()
