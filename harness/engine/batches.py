"""Seeded mock data: micro-batches made once on the device; every chunk takes the tensors that it reads."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from inspect import signature
from itertools import cycle

import torch
from megatron.core import parallel_state
from megatron.core.utils import get_attr_wrapped_model, get_batch_on_this_cp_rank

from harness.experiment.experiment import ExperimentSpec

MicroBatch = dict[str, torch.Tensor | None]

LARGEST_POOL = 64
"""Different micro-batches at most; a step with more of them repeats them in order."""

# megatron-core 0.19 has a required parameter: whether the groups' sizes vary from sample to sample.
_PLAIN_CP = {"is_hybrid_cp": False} if "is_hybrid_cp" in signature(get_batch_on_this_cp_rank).parameters else {}


def causal_mask(spec: ExperimentSpec, device: torch.device) -> Callable[[], torch.Tensor | None]:
    """Return a function that makes the mask of megatron-core's own attention once, [1, 1, seq, seq]; None for the others."""

    @cache
    def mask() -> torch.Tensor | None:
        if spec.kernels.attention_backend != "unfused" or spec.kernels.transformer_impl != "local":
            return None
        seq = spec.batch.seq_length
        return torch.ones(1, 1, seq, seq, dtype=torch.bool, device=device).triu_(1)

    return mask


def batches_of_chunks(
    spec: ExperimentSpec, device: torch.device, chunks: Iterable[torch.nn.Module]
) -> list[Iterator[MicroBatch]]:
    """Return an endless iterator per chunk over the micro-batches of one step, the same in every step and on every chunk.

    They are on the device before the first step. A copy per micro-batch would make the host wait for the device.
    Chunks between the pipeline's ends read only the attention mask.
    """
    reads = [_reads_tokens(chunk) for chunk in chunks]
    pool = mock_batches(spec, device) if any(reads) else []
    mask = causal_mask(spec, device)
    return [_with_mask(pool if reads_tokens else [{}], mask) for reads_tokens in reads]


def _reads_tokens(chunk: torch.nn.Module) -> bool:
    gpt = get_attr_wrapped_model(chunk, "pre_process", return_model_obj=True)
    return gpt.pre_process or gpt.post_process or gpt.mtp_process


def _with_mask(pool: list[MicroBatch], mask: Callable[[], torch.Tensor | None]) -> Iterator[MicroBatch]:
    for micro_batch in cycle(pool):
        yield {**micro_batch, "attention_mask": mask()}


def mock_batches(spec: ExperimentSpec, device: torch.device) -> list[MicroBatch]:
    """Make the seeded random tokens [mbs, seq / CP] of one step: equal on all ranks of a model copy, different per copy."""
    generator = torch.Generator().manual_seed(spec.measure.seed + parallel_state.get_data_parallel_rank())
    seq = spec.batch.seq_length
    positions = torch.arange(seq, device=device)[None].expand(spec.batch.micro_batch_size, -1)
    pool = [_micro_batch(spec, generator, positions) for _ in range(min(spec.num_microbatches, LARGEST_POOL))]
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # megatron-core's full-iteration graphs read them on a stream of their own
    return [pool[index % len(pool)] for index in range(spec.num_microbatches)]


def _micro_batch(spec: ExperimentSpec, generator: torch.Generator, positions: torch.Tensor) -> MicroBatch:
    batch, seq = spec.batch.micro_batch_size, spec.batch.seq_length
    tokens = torch.randint(0, spec.model.vocab_size, (batch, seq + 1), generator=generator).to(positions.device)
    micro_batch: MicroBatch = {
        "tokens": tokens[:, :-1].contiguous(),
        "labels": tokens[:, 1:].contiguous(),
        "loss_mask": torch.ones(batch, seq, device=positions.device),
        "position_ids": positions,
    }
    if spec.parallelism.context_parallel_size > 1:
        return get_batch_on_this_cp_rank(micro_batch, cp_group=parallel_state.get_context_parallel_group(), **_PLAIN_CP)
    return micro_batch
