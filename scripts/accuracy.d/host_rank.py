"""Times the host in layers of a trace request, on a scripted GPU: ``host_rank.py REQUEST OUT``.

An answer maps keys to processor seconds of a forward and of a backward pass: of thirty the shortest, which other work disturbed least.
"""

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from harness.engine.rank_run import seed_all
from harness.engine.tracing import chunk
from harness.records.trace import TraceCase, TraceRequest
from tests.scripted_cuda.layers import Allocator, make_workspaces
from tests.scripted_cuda.one_rank import balance_routing

PASSES = 30


def built(case: TraceCase, groups: chunk.Groups) -> chunk.Chunk:
    """Return the layers, after passes that compile and allocate."""
    spec = chunk.stage_spec(case, "transformer_engine")
    groups.join(spec.parallelism)
    seed_all(spec)
    layers = chunk.build(case, spec, chunk.stage_config(spec))
    chunk.attach_main_grads(layers.model, layers._main_grad_dtype)
    for _ in range(2):
        passed(layers)
    return layers


class Clock(Allocator):
    """Stands for the tracer and for its ledger: the processor's time instead of bytes."""

    def mark(self) -> int:
        """Return the processor's nanoseconds so far."""
        return time.process_time_ns()

    peak_bytes = property(mark)


def passed(layers: Any) -> tuple[float, float]:
    """Run both passes, whose kernels do nothing, and return the processor seconds of each."""
    forward, _, backward = layers._pass(Clock())
    return forward / 1e9, backward / 1e9


def main() -> None:
    """Run the cases in turn, so that other work of the machine disturbs all alike."""
    torch.cuda.set_device(0)
    balance_routing(None)
    make_workspaces()
    groups, request = chunk.Groups(), TraceRequest.model_validate_json(Path(sys.argv[1]).read_text())
    made = {case.key: built(case, groups) for case in request.cases}
    gc.collect()
    gc.freeze()
    gc.disable()
    rounds = [{key: passed(layers) for key, layers in made.items()} for _ in range(PASSES)]
    found = {key: [min(times) for times in zip(*(each[key] for each in rounds), strict=True)] for key in made}
    Path(sys.argv[2]).write_text(json.dumps(found))
    os._exit(0)


if __name__ == "__main__":
    main()
