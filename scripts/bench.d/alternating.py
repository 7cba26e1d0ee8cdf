"""A rank that takes steps of two kinds in turn, on one model and one optimizer.

Started under the harness's launcher: ``alternating.py RUN_DIR PAIRS``, with ``RUN_DIR/spec.json``: the harness's steps and
those of a bare megatron-core loop, which is what Megatron's own examples do. Neighbouring steps share the process, its
memory and the state of the machine, so only the harness differs.
"""

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.engine import cpu_backend
from harness.engine.rank_log import RankLog
from harness.experiment.experiment import ExperimentSpec
from harness.records.store import write_atomically

if TYPE_CHECKING:  # torch is imported once transformer-engine is out of the way
    import torch

    from harness.engine.training import Trainer

    Kinds = dict[str, Callable[[int], float]]
    Loss = tuple[torch.Tensor, dict[str, torch.Tensor]]


def main() -> None:
    """Write ``RUN_DIR/seconds_N.json``: the seconds of every step of either kind."""
    run_dir, num_pairs = Path(sys.argv[1]), int(sys.argv[2])
    spec = ExperimentSpec.model_validate_json((run_dir / "spec.json").read_text())
    warnings.simplefilter("ignore")
    if spec.gpu_type.is_cpu:
        cpu_backend.block_transformer_engine()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with RankLog(run_dir, rank, world_size) as log:
        seconds = train(spec, log, num_pairs)
    write_atomically(run_dir / f"seconds_{rank}.json", json.dumps(seconds))


def train(spec: ExperimentSpec, log: RankLog, num_pairs: int) -> dict[str, list[float]]:
    """Run ``num_pairs`` steps of either kind, in the order A B B A; return their seconds by kind."""
    import torch.distributed as dist

    from harness.engine import rank_run

    device = rank_run.join(spec, log)
    trainer = rank_run.build(spec, log, device)
    measured = partial(rank_run.measured_step, log, trainer, device)
    bare = bare_step(spec, trainer, device)
    kinds: Kinds = {"harness": measured, "bare": lambda _index: bare()}
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    log.enter("step")
    for index in range(num_pairs):
        for name in list(kinds) if index % 2 == 0 else reversed(kinds):
            seconds[name].append(kinds[name](index))
    dist.barrier()
    dist.destroy_process_group()
    return seconds


def bare_step(spec: ExperimentSpec, trainer: "Trainer", device: "torch.device") -> Callable[[], float]:
    """Return a step of a plain megatron-core loop, which returns its seconds between device synchronisations."""
    import torch
    from megatron.core.pipeline_parallel import get_forward_backward_func

    synchronize: Callable[[], None] = (lambda: None) if spec.gpu_type.is_cpu else torch.cuda.synchronize
    chunk, optimizer = trainer.chunks[0], trainer.optimizer
    forward_backward, batches = get_forward_backward_func(), tokens(spec, device)

    def step() -> float:
        synchronize()
        began = time.perf_counter()
        chunk.zero_grad_buffer()
        optimizer.zero_grad()
        forward_backward(
            forward_step_func=forward_step, data_iterator=batches, model=chunk,
            num_microbatches=spec.num_microbatches, seq_length=spec.batch.seq_length,
            micro_batch_size=spec.batch.micro_batch_size, forward_only=False,
        )  # fmt: skip
        optimizer.step()
        synchronize()
        return time.perf_counter() - began

    return step


def tokens(spec: ExperimentSpec, device: "torch.device") -> "Iterator[tuple[torch.Tensor, ...]]":
    """Yield random tokens without end."""
    import torch

    batch, seq = spec.batch.micro_batch_size, spec.batch.seq_length
    positions, mask = torch.arange(seq, device=device)[None].expand(batch, -1), torch.ones(batch, seq, device=device)
    while True:
        drawn = torch.randint(0, spec.model.vocab_size, (batch, seq + 1)).to(device)
        yield drawn[:, :-1].contiguous(), positions, drawn[:, 1:].contiguous(), mask


def forward_step(
    batches: "Iterator[tuple[torch.Tensor, ...]]", model: "torch.nn.Module"
) -> "tuple[torch.Tensor, partial[Loss]]":
    """Run one micro-batch forward; return the output and the mean loss."""
    drawn, positions, labels, mask = next(batches)
    output = model(drawn, positions, None, labels=labels, loss_mask=mask)
    return output, partial(mean_loss, mask)


def mean_loss(mask: "torch.Tensor", output: "torch.Tensor") -> "Loss":
    """Return the loss per token, and the values that the schedule returns."""
    loss = (output.float().view(-1) * mask.view(-1)).sum() / mask.sum()
    return loss, {"lm loss": loss.detach().clone()}


if __name__ == "__main__":
    main()
