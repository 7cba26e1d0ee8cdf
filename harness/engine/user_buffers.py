"""transformer-engine's user buffers, which overlap tensor-parallel communication with matrix products."""

from harness.experiment.experiment import ExperimentSpec


def make(spec: ExperimentSpec) -> None:
    """Register the buffers of ``spec`` with the ranks of every tensor-parallel group, if it uses any.

    Call it once, after megatron's process groups exist and before the first layer runs. The arguments are those of
    Megatron-LM (training/initialize.py) and Megatron-Bridge.
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


def destroy(spec: ExperimentSpec) -> None:
    """Free the buffers. Call it before the process groups end: their ranks free the buffers together."""
    if not spec.makes_user_buffers:
        return
    from transformer_engine.pytorch.module import base

    base.destroy_ub()
