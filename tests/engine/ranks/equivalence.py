"""Each rank trains one step under every recompute setting of a shape and writes losses, gradients and peaks.

Usage: equivalence.py CASES.json OUT_DIR
CASES.json: {"cases": [{"name", "spec", "is_watched"}]}; the peak of one that is not watched is null.
Writes OUT_DIR/rank_N.json with one entry per case, and
OUT_DIR/<name>.rank_N.pt with the gradients under names that do not depend on the parallel layout.
"""

# ruff: noqa: E402 (transformer-engine is blocked before megatron is imported)
import json
import re
import sys
import zlib
from pathlib import Path

from harness.engine import cpu_backend

cpu_backend.block_transformer_engine()

import torch
import torch.distributed as dist
from megatron.core import parallel_state

cpu_backend.install()

from harness.engine import rank_run
from harness.engine.config import transformer_config
from harness.engine.model import build_chunks, wrap_ddp
from harness.engine.rank_run import read_back
from harness.engine.tracing.ledger import watched_peak_bytes
from harness.engine.training import Trainer
from harness.experiment.experiment import ExperimentSpec


def canonical_name(name, modules):
    """The parameter's name in an unsplit model: global layer number, no wrapper prefixes."""
    name = re.sub(r"^(module\.)*", "", name)
    match = re.search(r"^(decoder\.layers\.)(\d+)(\..*)$", name)
    if match:
        layer = modules[next(m for m in modules if m.endswith(f"decoder.layers.{match[2]}"))]
        name = f"{match[1]}{layer.layer_number - 1}{match[3]}"
    return name


def canonical_init(chunks, spec):
    """The same weights for every pipeline layout: each tensor is seeded by its canonical name."""
    tp, rank = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_rank()
    for chunk in chunks:
        modules = dict(chunk.named_modules())
        for name, parameter in chunk.named_parameters():
            if "norm" in name or "bias" in name:
                continue
            seed = zlib.crc32(f"{canonical_name(name, modules)}/{rank if tp > 1 else 0}".encode())
            generator = torch.Generator().manual_seed(seed)
            parameter.data.copy_(torch.empty(parameter.shape).normal_(0, 0.02, generator=generator))


def train(spec, *, is_watched):
    config = transformer_config(spec)
    rank_run.seed_all(spec)
    chunks = build_chunks(spec, config)
    canonical_init(chunks, spec)
    chunks = wrap_ddp(spec, config, chunks)
    trainer = Trainer(spec, config, chunks, torch.device("cpu"))
    rank_run.seed_all(spec)
    losses = trainer.forward_backward_once()
    gradients = {
        canonical_name(name, dict(chunk.named_modules())): parameter.main_grad.detach().clone()
        for chunk in chunks
        for name, parameter in chunk.named_parameters()
        if parameter.requires_grad
    }
    peak = watched_peak_bytes(trainer.forward_backward_once) if is_watched else None
    return [float(entry["lm loss"]) for entry in losses], gradients, peak, read_back(chunks)


def main():
    request, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    dist.init_process_group("gloo")
    results, first = {}, None
    for case in request["cases"]:
        spec = ExperimentSpec.model_validate_json(json.dumps(case["spec"]))
        if spec.parallelism != first:
            if first is not None:
                parallel_state.destroy_model_parallel()
            rank_run.join_model_parallel(spec)
            first = spec.parallelism
        losses, gradients, peak, layers = train(spec, is_watched=case["is_watched"])
        torch.save(gradients, out / f"{case['name']}.rank_{dist.get_rank()}.pt")
        results[case["name"]] = {"losses": losses, "peak": peak, "layers": layers.model_dump()}
    (out / f"rank_{dist.get_rank()}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
