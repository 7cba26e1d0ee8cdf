"""Builds each spec of a request with megatron-core's own DDP and optimizer, as rank 0 of groups that send nothing.

Usage: real_model_states.py REQUEST.json -> {name: {"built": N, "stepped": N, "copied": N, "stepping": N, "dense": N, "expert": N}}:
bytes that live before the first step and after it, of the gradients that a step copies, and at most inside a step of torch's
Adam that takes all parameters at once; parameters.
"""

# ruff: noqa: E402, T201 (torch's settings come before megatron)
import json
import sys
from pathlib import Path

from harness.engine import cpu_backend

cpu_backend.block_transformer_engine()

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch.testing._internal.distributed.fake_pg import FakeStore

from harness.engine import rank_run
from harness.engine.config import transformer_config
from harness.engine.memory import static_bytes
from harness.engine.model import build_chunks, wrap_ddp
from harness.engine.tracing.chunk import count
from harness.engine.tracing.ledger import watched_peak_bytes
from harness.engine.training import Trainer
from harness.experiment.experiment import ExperimentSpec


def measured(spec):
    dist.init_process_group("fake", rank=0, world_size=spec.num_gpus, store=FakeStore())
    rank_run.join_model_parallel(spec)
    rank_run.seed_all(spec)
    config = transformer_config(spec)
    chunks = wrap_ddp(spec, config, build_chunks(spec, config))
    trainer = Trainer(spec, config, chunks, torch.device("cpu"))
    built = static_bytes(chunks, trainer.optimizer)
    trainer.forward_backward_once()
    copied = sum(watched_peak_bytes(part._copy_model_grads_to_main_grads) for part in parts(trainer.optimizer))
    trainer.step(index=0)
    for part in parts(trainer.optimizer):
        for group in part.optimizer.param_groups:
            group["foreach"] = True  # torch's choice on CUDA
    trainer.forward_backward_once()
    stepping = watched_peak_bytes(trainer.optimizer.step)
    parameters = count(chunks[0].module)  # megatron's DDP hides the method of that name under a list of buffers
    found = {"built": built, "stepped": static_bytes(chunks, trainer.optimizer), "copied": copied, "stepping": stepping,
             "dense": parameters.dense, "expert": parameters.expert}  # fmt: skip
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    return found


def parts(optimizer):
    return getattr(optimizer, "chained_optimizers", [optimizer])


cpu_backend.install()
request = json.loads(Path(sys.argv[1]).read_text())
print(json.dumps({name: measured(ExperimentSpec.model_validate_json(spec)) for name, spec in request.items()}))
