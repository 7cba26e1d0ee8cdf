"""Builds the tiny Llama with a plan's hook, as Megatron-Bridge does before it trains; two ranks under torchrun.

`by_plan.py` is what `mbr-perf recipes export --recompute "plan:1xfull+1xnone;2xmlp" --as python` prints.
"""

from importlib import import_module

import torch
from by_plan import pre_wrap_hook
from megatron.core import parallel_state, tensor_parallel
from sitecustomize import STARTS_UP
from tiny_llama import tiny_llama_config

from harness.engine import cpu_backend
from harness.engine.rank_run import read_back

EXPECTED = (
    {"num_layers": 2, "modules": {}, "full_layers": 1},
    {"num_layers": 2, "modules": {"mlp": 2}, "full_layers": 0},
)

if __name__ == "__main__":
    import_module(STARTS_UP)  # from then on torch's questions to CUDA get answers for a processor
    cpu_backend.install()
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=2)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    model = tiny_llama_config().model
    model.register_pre_wrap_hook(pre_wrap_hook)
    model.finalize()
    chunks = model.provide_distributed_model(wrap_with_ddp=False, use_cpu_initialization=True)
    found = read_back(chunks).model_dump(include={*EXPECTED[0]})
    assert found == EXPECTED[torch.distributed.get_rank()], found
    torch.distributed.destroy_process_group()
