"""Runs one rank of a GPU spec on a processor, with CUDA's streams and graphs and NCCL recorded: SPEC.json OUT.

The recorder stands where the hardware is missing, under torch. ``OUT/calls.json`` holds what torch was asked, in order.
"""

import contextlib
import json
import sys
import types
from pathlib import Path

from harness.engine.cpu_backend import before_megatron

before_megatron()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import fp8_utils  # noqa: E402
from megatron.core.distributed import DistributedDataParallel  # noqa: E402
from megatron.core.tensor_parallel import random as megatron_random  # noqa: E402
from megatron.core.transformer import cuda_graphs  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from harness.engine import cpu_backend  # noqa: E402
from harness.engine.rank_log import RankLog  # noqa: E402
from harness.experiment.experiment import ExperimentSpec  # noqa: E402

CPU, PLAIN_TYPE = torch.device("cpu"), torch.Tensor.type
calls: list[str] = []


class OnProcessor(TorchFunctionMode):
    """Every ``cuda`` device is the processor."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.type:  # cpu_backend's, which called torch's own
            return PLAIN_TYPE(*args, **(kwargs or {}))

        def moved(value):
            is_cuda = isinstance(value, torch.device) and value.type == "cuda"
            return CPU if is_cuda or (isinstance(value, str) and value.startswith("cuda")) else value

        return func(*map(moved, args), **{name: moved(value) for name, value in (kwargs or {}).items()})


class Stream:
    """A stream with a number in order of making; 0 is CUDA's default one."""

    made = 0

    def __init__(self, *_args, **_kwargs):
        Stream.made += 1
        self.name = f"stream {Stream.made}"
        calls.append(f"make {self.name}")

    def wait_stream(self, other):
        calls.append(f"{self.name} waits for {other.name}")

    def wait_event(self, *_args):
        pass

    synchronize = wait_event


class Streams:
    """The current stream of the process."""

    def __init__(self):
        self.current = types.SimpleNamespace(name="default stream")
        self.current.wait_stream = lambda other: calls.append(f"{self.current.name} waits for {other.name}")

    def set(self, stream):
        calls.append(f"set {stream.name}")
        self.current = stream

    @contextlib.contextmanager
    def on(self, stream):
        outer, self.current = self.current, stream
        calls.append(f"enter {stream.name}")
        yield
        calls.append(f"leave {stream.name}")
        self.current = outer


class Graph:
    """A captured graph: replayed, it has run already."""

    def register_generator_state(self, _state):
        pass

    def replay(self):
        calls.append("replay graph")

    def __del__(self):
        calls.append("graph is gone")


class TeHelper:
    """transformer-engine's graphs, in megatron-core's words."""

    def __init__(self, **_kwargs):
        self.created = False

    def graphs_created(self):
        return self.created

    def create_cudagraphs(self):
        calls.append("create TE graphs")
        self.created = True

    def delete_cuda_graphs(self):
        calls.append("delete TE graphs")


@contextlib.contextmanager
def capture(_graph, stream, **options):
    calls.append(f"capture on {stream.name} with {sorted(options)}")
    yield


def stand_in_for_cuda():
    streams = Streams()
    properties = types.SimpleNamespace(name="recorded", major=9, minor=0, total_memory=80 << 30, uuid="0")
    answers = {
        "Stream": Stream, "stream": streams.on, "set_stream": streams.set, "CUDAGraph": Graph, "graph": capture,
        "current_stream": lambda *_: streams.current, "set_device": lambda device: calls.append(f"set_device {device}"),
        "get_device_properties": lambda *_: properties, "memory_stats": dict, "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0, "max_memory_reserved": lambda *_: 0, "empty_cache": lambda: None,
        "synchronize": lambda *_: calls.append("synchronize"), "graph_pool_handle": lambda: (0, 1),
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)


def generators_instead_of_states():
    """Graphs want generators, of which a processor has one that counts."""

    def get(*_args, graph_safe=False, **_kwargs):
        return torch.Generator() if graph_safe else torch.get_rng_state()

    def put(state, *_args, **_kwargs):
        if isinstance(state, torch.Tensor):
            torch.set_rng_state(state)

    megatron_random._get_cuda_rng_state, megatron_random._set_cuda_rng_state = get, put


def record_communication():
    init, barrier, destroy, wrap = (
        dist.init_process_group,
        dist.barrier,
        dist.destroy_process_group,
        DistributedDataParallel.__init__,
    )

    def recorded_init(backend, **options):
        calls.append(f"init_process_group {backend} {sorted(options)}")
        init("gloo", **options)

    def recorded_barrier(*_args, device_ids=None, **_kwargs):
        calls.append(f"barrier {device_ids}")
        barrier()

    def recorded_destroy():
        calls.append("destroy_process_group")
        destroy()

    def recorded_ddp(self, *args, **kwargs):
        calls.append("build DDP")
        wrap(self, *args, **kwargs)

    dist.init_process_group, dist.barrier, dist.destroy_process_group = (
        recorded_init,
        recorded_barrier,
        recorded_destroy,
    )
    DistributedDataParallel.__init__ = recorded_ddp
    fp8_utils.correct_amax_history_if_needed = lambda chunks: calls.append(f"correct the amax history of {len(chunks)}")
    cuda_graphs.TECudaGraphHelper = TeHelper


def main():
    spec = ExperimentSpec.model_validate_json(Path(sys.argv[1]).read_text())
    out = Path(sys.argv[2])
    (out / "ranks").mkdir()
    cpu_backend.install()
    stand_in_for_cuda()
    generators_instead_of_states()
    record_communication()
    from harness.engine.rank_run import run

    try:
        with OnProcessor(), RankLog(out, 0, 1) as log:
            run(spec, log)
    finally:
        (out / "calls.json").write_text(json.dumps(calls))


main()
