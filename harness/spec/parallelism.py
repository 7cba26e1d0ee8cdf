"""How the model is cut over GPUs, and how one step is cut into micro-batches."""

from typing import Annotated

from pydantic import Field

from harness.spec.frozen import Former, Frozen
from harness.spec.model import Count, Size


class ParallelismSpec(Frozen):
    """Parallel sizes in megatron-core's names. ``expert_tensor_parallel_size`` None means equal to TP.

    ``defer_embedding_wgrad_compute`` moves the output layer's weight gradients into the pipeline's flush, at most
    ``wgrad_deferral_limit`` micro-batches of them (0: all).
    """

    tensor_model_parallel_size: Count = 1
    pipeline_model_parallel_size: Count = 1
    virtual_pipeline_model_parallel_size: Count | None = None
    context_parallel_size: Count = 1
    expert_model_parallel_size: Count = 1
    expert_tensor_parallel_size: Count | None = None
    sequence_parallel: bool = False
    pipeline_model_parallel_layout: str | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    num_layers_in_first_pipeline_stage: Count | None = None
    num_layers_in_last_pipeline_stage: Count | None = None
    microbatch_group_size_per_vp_stage: Count | None = None
    defer_embedding_wgrad_compute: Annotated[bool, Former(False)] = False
    wgrad_deferral_limit: Annotated[Size, Former(0)] = 0

    @property
    def model_parallel_size(self) -> int:
        """GPUs that hold one copy of the dense model: TP x PP x CP."""
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size

    @property
    def expert_tensor_size(self) -> int:
        """`expert_tensor_parallel_size`, which megatron-core defaults to TP."""
        return self.expert_tensor_parallel_size or self.tensor_model_parallel_size

    @property
    def num_virtual_stages(self) -> int:
        """Model chunks per pipeline rank (1 without interleaving)."""
        return self.virtual_pipeline_model_parallel_size or 1

    def data_parallel_size(self, num_gpus: int) -> int:
        """Copies of the dense model on ``num_gpus`` GPUs; 0 when not even one fits."""
        return num_gpus // self.model_parallel_size


class BatchSpec(Frozen):
    """Samples per micro-batch and GPU, samples per step over all GPUs, tokens per sample."""

    micro_batch_size: Count
    global_batch_size: Count
    seq_length: Annotated[int, Field(ge=2)]

    def num_microbatches(self, data_parallel_size: int) -> int:
        """Micro-batches of one step on one GPU: GBS / (MBS x DP); 0 where not one model copy fits."""
        if data_parallel_size == 0:
            return 0
        return self.global_batch_size // (self.micro_batch_size * data_parallel_size)
