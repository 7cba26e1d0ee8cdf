"""Runs megatron-core's own pipeline schedules on one rank with tensors counted. argv: a JSON list of sizes as `passes` takes them.

A chunk is a function that keeps nothing, messages are made up, so the hidden states that are alive beside the inputs of
micro-batches in flight are those that the schedule itself holds.
"""

import json
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.pipeline_parallel import schedules
from megatron.core.process_groups_config import ProcessGroupCollection
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore

MADE: list[StorageWeakRef] = []
PASSES: list[tuple[str, int, int]] = []


class OnHost(TorchFunctionMode):
    """The schedule makes one counter on cuda."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


def hidden(**how) -> torch.Tensor:
    tensor = torch.zeros(4, **how)
    MADE.append(StorageWeakRef(tensor.untyped_storage()))
    return tensor


def num_alive() -> int:
    MADE[:] = [storage for storage in MADE if not storage.expired()]
    return len(MADE)


class Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, received, weight, chunk, last):
        ctx.chunk, ctx.has_input = chunk, received is not None
        PASSES.append(("forward", chunk, num_alive()))
        return weight.sum() if last else hidden()

    @staticmethod
    def backward(ctx, grad):
        PASSES.append(("backward", ctx.chunk, num_alive()))
        return hidden() if ctx.has_input else None, torch.zeros(4), None, None


class ChunkModel(torch.nn.Module):
    def __init__(self, config, chunk, last):
        super().__init__()
        self.config, self.chunk, self.last = config, chunk, last
        self.model_type = None
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.input_tensor = None

    def set_input_tensor(self, tensor):
        self.input_tensor = tensor[0] if isinstance(tensor, list) else tensor

    def forward(self):
        return Layer.apply(self.input_tensor, self.weight, self.chunk, self.last)


def as_asked(shape, tensor):
    """A tensor for one shape, a list for a list of shapes, as without interleaving."""
    return [tensor] if isinstance(shape[0], tuple) else tensor


class Messages:
    """Point-to-point communication with nobody: what is received is new."""

    def __init__(self, vp_size, config):
        self.pp_group = dist.group.WORLD
        self.virtual_pipeline_model_parallel_size, self.config = vp_size, config
        self.current_stage, self.total_stages = dist.get_rank(), dist.get_world_size()
        self.is_pp_first_stage, self.is_pp_last_stage = (
            self.current_stage == 0,
            self.current_stage == self.total_stages - 1,
        )

    def recv_forward(self, shape, is_first_stage):
        return as_asked(shape, None if is_first_stage else hidden(requires_grad=True))

    def recv_backward(self, shape, is_last_stage):
        return as_asked(shape, None if is_last_stage else hidden())

    def send_forward_recv_forward(self, output, recv_prev, tensor_shape, overlap_p2p_comm=False):
        received = hidden(requires_grad=True) if recv_prev else None
        return (received, {}) if overlap_p2p_comm else received

    def send_forward(self, output, is_last_stage):
        pass

    def send_backward(self, grad, is_first_stage):
        pass

    def send_forward_recv_backward(self, output, shape, is_last_stage):
        return self.recv_backward(shape, is_last_stage)

    def send_backward_recv_forward(self, grad, shape, is_first_stage):
        return self.recv_forward(shape, is_first_stage)

    def send_backward_recv_backward(self, grad, recv_next, tensor_shape, overlap_p2p_comm=False):
        received = hidden() if recv_next else None
        return (received, {}) if overlap_p2p_comm else received


def passes(pp_size: int, pp_rank: int, vp_size: int, num_microbatches: int, group: int) -> list[tuple[str, int, int]]:
    """Direction, chunk and number of living hidden states of every pass of one step."""
    PASSES.clear()
    MADE.clear()
    config = ModelParallelConfig(
        pipeline_model_parallel_size=pp_size,
        virtual_pipeline_model_parallel_size=vp_size if vp_size > 1 else None,
        pipeline_dtype=torch.float32, overlap_p2p_comm=vp_size > 1, batch_p2p_comm=False, deallocate_pipeline_outputs=True,
        microbatch_group_size_per_vp_stage=group,
    )  # fmt: skip
    config.hidden_size, config.cuda_graph_impl, config.fine_grained_activation_offloading = 4, "none", False
    config.calculate_per_token_loss, config.num_moe_experts, config.mtp_num_layers = False, None, None
    last = pp_rank == pp_size - 1
    chunks = [ChunkModel(config, v, last and v == vp_size - 1) for v in range(vp_size)]
    one = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    groups = ProcessGroupCollection(tp=one, cp=one, embd=None, pp=None, pos_embd=None, dp_cp=one)

    def step(_data, model, *_):
        return model(), lambda loss: (loss, {})

    dist.init_process_group("fake", rank=pp_rank, world_size=pp_size, store=FakeStore())
    run = schedules.forward_backward_pipelining_with_interleaving
    if vp_size == 1:
        run = schedules.forward_backward_pipelining_without_interleaving
    with OnHost():
        run(
            forward_step_func=step, data_iterator=[None] * vp_size, model=chunks, num_microbatches=num_microbatches,
            seq_length=4, micro_batch_size=1, p2p_communicator=Messages(vp_size, config), pg_collection=groups,
        )  # fmt: skip
    dist.destroy_process_group()
    return list(PASSES)


if __name__ == "__main__":
    json.dump([passes(*sizes) for sizes in json.loads(sys.argv[1])], sys.stdout)
