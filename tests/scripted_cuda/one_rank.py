"""One rank of a large job in one process: the project's own rank, with process groups that send nothing.

    one_rank.py RANK STEPS name=value ...    on a scripted machine (lane.py); names are those of harness.api.Experiment

``set=`` takes NAME=VALUE words as `--set` does. ``balanced=1``: every expert gets its equal share of the tokens, by the
planner's own routing, because kernels count tokens and kernels write nothing here. ``routing=MEAN,SPREAD``: tokens
of an expert, drawn anew for each pass, decide the share that the rank gets. ``allocator=TEXT``: settings of torch's
allocator in place of the job's. ``snapshot=FILE``: one more step is recorded for `mbr-perf snapshot`. Prints one JSON line: the peaks of torch's allocator in every step, and what the rank
recorded. If memory runs out, ``failure`` has torch's message and later steps have no peaks.
"""

import json
import os
import random
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any


def value(text: str) -> int | str:
    """Return a number where the text is one."""
    return int(text) if text.lstrip("-").isdigit() else text


def spec_of(options: dict[str, str]) -> Any:
    """Return the experiment that the options describe."""
    from harness.api import Experiment
    from harness.cli.options import JudgeOptions, LaunchOptions
    from harness.cli.requests import run_request
    from harness.launch.environment import this_host
    from harness.measure.understanding import settle

    given: dict[str, Any] = {name: value(text) for name, text in options.items() if name != "set"}
    asked = Experiment(**given, set_values=options["set"].split() if "set" in options else None)
    return settle(run_request(asked, JudgeOptions(), LaunchOptions()), this_host()).spec


def environment_of(spec: Any, rank: int) -> None:
    """Set what torchrun and the launcher would set for this rank."""
    from harness.launch.environment import child_environment, this_host

    for each in child_environment(spec, this_host().shell, (), min(spec.num_gpus, spec.gpus_per_node)):
        if each.source in ("table", "spec.env"):
            os.environ[each.name] = each.value
    where = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": spec.num_gpus, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}
    os.environ.update({name: str(text) for name, text in where.items()})


def send_nothing(rank: int, world_size: int) -> None:
    """Let torch's `fake` backend stand for every process group."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    real = dist.init_process_group

    def init(*_args: object, **_kwargs: object) -> None:
        real("fake", rank=rank, world_size=world_size, store=FakeStore())

    dist.init_process_group = init


class Uneven:
    """The load of a rank's experts, another one whenever it is asked for."""

    def __init__(self, text: str, spec: Any) -> None:
        from harness.predict.draws import ROUTING, read_tokens

        self._tokens, self._source = read_tokens(ROUTING, text), random.Random(1)
        self._num_experts = spec.model.moe.num_moe_experts // spec.parallelism.expert_model_parallel_size

    @property
    def imbalance(self) -> float:
        """Draw the share of the rank's even tokens."""
        return sum(self._tokens.drawn(self._source, self._num_experts)) / self._num_experts / self._tokens.average


def balance_routing(uneven: Uneven | None) -> None:
    """Install the planner's routing: counts on the host, selections of known length."""
    import torch
    from megatron.core.transformer.moe import token_dispatcher

    from harness.engine.tracing import routing

    routing.PLACE.device = torch.device("cuda", 0)
    routing.ROUTING = uneven or routing.ROUTING
    routing.install()
    sort = token_dispatcher.sort_chunks_by_idxs

    def sorted_chunks(values, split_sizes, sorted_idxs, probs=None, fused=False):
        sizes = (
            torch.tensor(split_sizes, device="cuda") if fused else split_sizes
        )  # transformer-engine reads the device
        return sort(values, sizes, sorted_idxs, probs=probs, fused=fused)

    token_dispatcher.sort_chunks_by_idxs = sorted_chunks

    def counts_on_the_host(dispatcher, _point, counts=None):
        """Count again after a replayed graph, which returns tensors only and therefore no counts."""
        return dispatcher.preprocess(dispatcher.routing_map) if counts is None else counts

    token_dispatcher.MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = counts_on_the_host


def convolve() -> None:
    """Stand in for causal_conv1d, which needs nvcc: save the input, return a tensor of its size."""
    import torch

    class Convolution(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return torch.empty_like(x)

        @staticmethod
        def backward(ctx, _grad):
            return tuple(map(torch.empty_like, ctx.saved_tensors))

    sys.modules["causal_conv1d"] = module = ModuleType("causal_conv1d")
    module.causal_conv1d_fn = lambda x, weight, **_options: Convolution.apply(x, weight)


def take_any_norm() -> None:
    """Let gradients have any norm: no kernel computes it, and the root of a negative number is complex."""
    from megatron.core.optimizer import optimizer

    norm = optimizer.get_grad_norm_fp32
    optimizer.get_grad_norm_fp32 = lambda *args, **kwargs: abs(norm(*args, **kwargs))


def believe_shards() -> None:
    """Drop Megatron-FSDP's check of its shards: it reads what other ranks sent and what a kernel found."""
    from megatron.core.distributed.fsdp.src.megatron_fsdp import param_and_grad_buffer

    param_and_grad_buffer.validate_uneven_dtensor = lambda _: None


def measure(spec: Any, rank: int, steps: int, snapshot: str | None) -> dict[str, Any]:
    """Build and train; return what the allocator saw."""
    import torch

    from harness.engine import rank_run
    from harness.engine.memory import recorded_step
    from harness.engine.rank_log import RankLog

    folder = Path(tempfile.mkdtemp())
    for name in ("ranks", "logs"):
        (folder / name).mkdir()
    found: dict[str, Any] = {"rank": rank, "peak_allocated_bytes": [], "peak_reserved_bytes": [], "failure": None}
    with RankLog(folder, rank, spec.num_gpus) as log:
        log.enter("import")
        try:
            device = rank_run.join(spec, log)
            trainer = rank_run.build(spec, log, device)
            found["after_build_bytes"] = torch.cuda.memory_allocated()
            for index in range(steps):
                torch.cuda.reset_peak_memory_stats()
                rank_run.measured_step(log, trainer, device, index)
                found["peak_allocated_bytes"].append(torch.cuda.max_memory_allocated())
                found["peak_reserved_bytes"].append(torch.cuda.max_memory_reserved())
            if snapshot:
                with recorded_step(Path(snapshot)) as on_phase:
                    trainer.step(index=steps, on_phase=on_phase)
        except torch.OutOfMemoryError as error:
            found["failure"] = str(error)
    fields, stats = log.fields, torch.cuda.memory_stats()
    return found | {
        "coordinates": fields["coordinates"].model_dump(), "num_parameters": fields.get("num_parameters"),
        "num_microbatches": spec.num_microbatches, "recompute": spec.recompute.text, "versions": fields["versions"],
        "step_seconds": [round(step.seconds, 2) for step in log.steps], "num_ooms": stats["num_ooms"],
        "num_alloc_retries": stats["num_alloc_retries"], "host_peak_bytes": torch.cuda.host_memory_stats().get("allocated_bytes.peak"),
    }  # fmt: skip


def main() -> None:
    """Print the answer and exit at once: nothing waits for communication."""
    rank, steps = int(sys.argv[1]), int(sys.argv[2])
    options = dict(word.split("=", 1) for word in sys.argv[3:])
    names = ("balanced", "snapshot", "routing", "allocator")
    balanced, snapshot, tokens, allocator = (options.pop(name, None) for name in names)
    spec = spec_of(options)
    environment_of(spec, rank)
    os.environ.update({"PYTORCH_CUDA_ALLOC_CONF": allocator} if allocator else {})
    send_nothing(rank, spec.num_gpus)
    take_any_norm()
    convolve()
    if balanced:
        balance_routing(Uneven(tokens, spec) if tokens else None)
    if spec.ddp.use_megatron_fsdp:
        believe_shards()
    print(json.dumps(measure(spec, rank, steps, snapshot)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
