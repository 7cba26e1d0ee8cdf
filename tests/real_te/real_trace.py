"""Traces cases as the planner does, under real transformer-engine Python: ``real_trace.py TE_FOLDER REQUEST OUT``.

The answer maps keys to bytes, or to a traceback if the case failed.
"""

import dataclasses
import json
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import loading
import torch

from harness.engine import trace as engine_trace
from harness.records.trace import TraceRequest


def main():
    """Trace every case of the request; a failure does not stop the others."""
    folder, asked, out = map(Path, sys.argv[1:])
    request = TraceRequest.model_validate_json(asked.read_text())
    loading.prepare(folder)
    engine_trace.prepare(transformer_engine=True)
    out.write_text(json.dumps({case.key: traced(case) for case in request.cases}))


def traced(case):
    """Fields of `Measured`, or {"failed": traceback}."""
    _forget_buffers(case)
    before = dict(os.environ)
    os.environ |= case.spec.env
    loading.stand_for(case.spec.gpu_type.capability)
    try:
        return measured(case)
    except Exception:  # noqa: BLE001 (the test says which case failed, and how)
        return {"failed": traceback.format_exc()}
    finally:
        os.environ.clear()
        os.environ |= before


def _forget_buffers(case):
    """Drop DeepEP's buffers, which megatron-core keeps per process, and shape the routing map without its values."""
    import deep_ep
    from megatron.core.transformer.moe import fused_a2a, token_dispatcher

    def indices_to_multihot(manager, indices, probs):
        shape = indices.shape[0], manager.num_local_experts
        return torch.empty(shape, dtype=torch.bool, device=indices.device), probs.sum(1, keepdim=True).expand(shape)

    fused_a2a._buffer = None
    fused_a2a.reset_hybrid_ep_buffer()
    deep_ep.TOPK["value"] = case.spec.model.moe.moe_router_topk if case.spec.model.moe else 1
    token_dispatcher._DeepepManager._indices_to_multihot = indices_to_multihot


def measured(case):
    """Measure as the tracer does, with user buffers as a rank makes them."""
    from harness.engine import gpu_setup
    from harness.engine.tracing.chunk import Groups, build, stage_config
    from harness.engine.tracing.run import prepared

    spec = prepared(case, "transformer_engine", GROUPS.setdefault("groups", Groups()))
    gpu_setup.make_user_buffers(spec)
    try:
        found = dataclasses.asdict(build(case, spec, stage_config(spec)).measure())
    finally:
        gpu_setup.destroy_user_buffers(spec)
    found.pop("ops")
    return found


GROUPS: dict = {}

if __name__ == "__main__":
    main()
