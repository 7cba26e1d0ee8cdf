"""A training loop with megatron-core and nothing else: no heartbeats, no records, no supervision.

Started by torchrun for the overhead benchmark: ``bare_loop.py SPEC OUT``. The model and its settings are built by the
harness, so that both sides train the same; the loop is what Megatron's own examples do.
"""

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.engine import cpu_backend
from harness.spec.experiment import ExperimentSpec

if TYPE_CHECKING:  # torch is imported once transformer-engine is out of the way
    import torch

    Loss = tuple[torch.Tensor, dict[str, torch.Tensor]]


def main() -> None:
    """Train ``measure.max_steps`` steps and write the seconds of each to ``OUT/rank_N.json``."""
    spec = ExperimentSpec.model_validate_json(Path(sys.argv[1]).read_text())
    warnings.simplefilter("ignore")
    if spec.gpu_type.is_cpu:
        cpu_backend.block_transformer_engine()
    seconds = train(spec)
    (Path(sys.argv[2]) / f"rank_{int(os.environ['RANK'])}.json").write_text(json.dumps(seconds))  # noqa: TID251 (a rank)


def train(spec: ExperimentSpec) -> list[float]:
    """Seconds of every step, between device synchronisations."""
    import torch
    import torch.distributed as dist
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.optimizer import get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func

    from harness.engine.config import optimizer_config, transformer_config
    from harness.engine.model import build_chunks, wrap_ddp
    from harness.engine.rank_run import join_model_parallel, seed_all

    device, synchronize = torch.device("cpu"), lambda: None
    if spec.gpu_type.is_cpu:
        cpu_backend.install()
    else:
        device, synchronize = torch.device("cuda", int(os.environ["LOCAL_RANK"])), torch.cuda.synchronize  # noqa: TID251
        torch.cuda.set_device(device)
        if spec.kernels.transformer_impl == "local":
            cpu_backend.install_local()
    dist.init_process_group("gloo" if spec.gpu_type.is_cpu else "nccl")
    join_model_parallel(spec)
    seed_all(spec)
    config = transformer_config(spec)
    chunks = wrap_ddp(spec, config, build_chunks(spec, config))
    optimizer = get_megatron_optimizer(optimizer_config(spec), chunks, use_gloo_process_groups=False)
    config.grad_scale_func, config.finalize_model_grads_func = optimizer.scale_loss, finalize_model_grads
    config.no_sync_func = chunks[0].no_sync
    forward_backward, batches = get_forward_backward_func(), tokens(spec, device)
    seconds = []
    for _ in range(spec.measure.max_steps):
        synchronize()
        began = time.perf_counter()
        chunks[0].zero_grad_buffer()
        optimizer.zero_grad()
        forward_backward(
            forward_step_func=forward_step, data_iterator=batches, model=chunks[0],
            num_microbatches=spec.num_microbatches, seq_length=spec.batch.seq_length,
            micro_batch_size=spec.batch.micro_batch_size, forward_only=False,
        )  # fmt: skip
        optimizer.step()
        synchronize()
        seconds.append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    return seconds


def tokens(spec: ExperimentSpec, device: "torch.device") -> "Iterator[tuple[torch.Tensor, ...]]":
    """Random tokens without end."""
    import torch

    batch, seq = spec.batch.micro_batch_size, spec.batch.seq_length
    positions, mask = torch.arange(seq, device=device)[None].expand(batch, -1), torch.ones(batch, seq, device=device)
    while True:
        drawn = torch.randint(0, spec.model.vocab_size, (batch, seq + 1)).to(device)
        yield drawn[:, :-1].contiguous(), positions, drawn[:, 1:].contiguous(), mask


def forward_step(
    batches: "Iterator[tuple[torch.Tensor, ...]]", model: "torch.nn.Module"
) -> "tuple[torch.Tensor, partial[Loss]]":
    """One micro-batch forward; the mean loss."""
    drawn, positions, labels, mask = next(batches)
    output = model(drawn, positions, None, labels=labels, loss_mask=mask)
    return output, partial(mean_loss, mask)


def mean_loss(mask: "torch.Tensor", output: "torch.Tensor") -> "Loss":
    """Loss per token, and what the schedule hands back."""
    loss = (output.float().view(-1) * mask.view(-1)).sum() / mask.sum()
    return loss, {"lm loss": loss.detach().clone()}


if __name__ == "__main__":
    main()
