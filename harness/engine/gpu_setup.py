"""What megatron's own launchers set up on a GPU: CUDA streams, and the user buffers of transformer-engine."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from harness.experiment.effective import captures_iteration
from harness.experiment.experiment import ExperimentSpec


def leave_default(spec: ExperimentSpec) -> None:
    """Leave CUDA's default stream, which a capture must not depend on, before the groups are made."""
    if spec.cuda_graph.impl == "transformer_engine":
        torch.cuda.set_stream(torch.cuda.Stream())


@contextmanager
def building_ddp(spec: ExperimentSpec) -> Iterator[None]:
    """Build megatron's DDP on a side stream, in order with the current one; on a CPU nothing changes.

    DDP keeps AccumulateGrad nodes, which belong to the stream that created them: a graph's capture would depend on work
    outside of it. Where the side stream lags, torch reserves more than on the default stream (DECISIONS.md, 34).
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


def make_user_buffers(spec: ExperimentSpec) -> None:
    """Register the buffers of ``spec``, if any, as Megatron-LM (training/initialize.py) and Megatron-Bridge do.

    Call it once, after megatron's process groups exist and before the first layer runs.
    """
    if not spec.makes_user_buffers:
        return
    from transformer_engine.pytorch.module import base

    modes = base.UserBufferQuantizationMode
    buffers = spec.kernels.tp_comm_overlap_cfg
    base.initialize_ub(
        shape=list(spec.user_buffer_shape),
        tp_size=spec.parallelism.tensor_model_parallel_size,
        quantization_modes=[modes.FP8 if spec.precision.peak == "fp8" else modes.NONE],
        ub_cfgs=buffers.ub_cfgs if buffers else {},
        bootstrap_backend="nccl",
    )


def destroy_user_buffers(spec: ExperimentSpec) -> None:
    """Free the buffers. Call it before the process groups end: their ranks free the buffers together."""
    if not spec.makes_user_buffers:
        return
    from transformer_engine.pytorch.module import base

    base.destroy_ub()
