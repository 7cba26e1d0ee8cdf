"""Trains one rank with parameters gathered through the gradient buffer, as MXFP8 does; writes what became of them.

Usage: mxfp8_gather.py OUT.json. DDP, distributed optimizer and training step are the real ones. transformer-engine's
MXFP8 tensors need a Blackwell GPU, so bf16 parameters stand for them: megatron-core asks `is_mxfp8tensor` which
parameters share the gradient buffer, and from 0.19 on `_param_uses_quantized_storage` which keep storage of their own.
"""

# ruff: noqa: E402 (megatron-core must be imported after transformer-engine is blocked)
import json
import sys
from pathlib import Path

from harness.engine import cpu_backend

cpu_backend.before_megatron()

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import param_and_grad_buffer

cpu_backend.install()
param_and_grad_buffer.is_mxfp8tensor = lambda _parameter: True
if hasattr(param_and_grad_buffer, "_param_uses_quantized_storage"):
    param_and_grad_buffer._param_uses_quantized_storage = lambda _parameter: True

from harness.engine.config import transformer_config
from harness.engine.model import build_chunks, wrap_ddp
from harness.engine.training import Trainer
from harness.experiment.experiment import DdpSpec
from tests.engine import shapes


def main():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    ddp = DdpSpec(grad_reduce_in_fp32=False, overlap_grad_reduce=True, overlap_param_gather=True)
    plain = shapes.experiment(shapes.DENSE, dtype="bf16").model_copy(update={"ddp": ddp})
    spec = plain.model_copy(update={"compute_dtype": "fp8_mx"})
    config = transformer_config(plain)
    chunks = wrap_ddp(spec, config, build_chunks(plain, config))
    trainer = Trainer(spec, config, chunks, torch.device("cpu"))
    steps = []
    for index in range(4):
        result = trainer.step(index=index)
        largest = [float(parameter.detach().abs().max()) for chunk in chunks for parameter in chunk.parameters()]
        steps.append({"loss": result.loss, "zero": sum(size == 0 for size in largest), "of": len(largest)})
    Path(sys.argv[1]).write_text(json.dumps(steps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
