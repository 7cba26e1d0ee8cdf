"""Runs each case of a request on real CPU tensors under three meters and prints the bytes of its backward peak over the start.

Usage: memory_oracles.py REQUEST.json -> {key: {"tracer": N, "watched": N, "allocator": N}}
"""

# ruff: noqa: E402, T201 (adaptations come before megatron)
import gc
import json
import sys
from pathlib import Path

from harness.engine import trace
from harness.records.trace import TraceRequest

trace.prepare(transformer_engine=False)

import torch

from harness.engine.tracing.chunk import Groups, build, stage_config
from harness.engine.tracing.ledger import watched_peak_bytes
from harness.engine.tracing.routing import PLACE
from harness.engine.tracing.run import prepared


def profiled_peak_bytes(run):
    """Highest running sum of the CPU allocator's own events; true where no other thread frees."""
    with torch.profiler.profile(profile_memory=True, acc_events=False) as profiler:
        run()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    current = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    return peak


def one_pass(chunk):
    chunk._received()
    chunk._backward(chunk._forward())
    chunk.gpt.set_input_tensor(None)


def meters(case, groups):
    spec = prepared(case, "local", groups)
    chunk = build(case, spec, stage_config(spec))
    for parameter in chunk.model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    m = chunk.measure()
    gc.collect()
    return {
        "tracer": max(m["saved_bytes"] + m["backward_peak_bytes"], m["forward_peak_bytes"]),
        "watched": watched_peak_bytes(lambda: one_pass(chunk)),
        "allocator": profiled_peak_bytes(lambda: one_pass(chunk)),
    }


request = TraceRequest.model_validate_json(Path(sys.argv[1]).read_text())
PLACE.device = torch.device("cpu")
groups = Groups()
print(json.dumps({case.key: meters(case, groups) for case in request.cases}))
