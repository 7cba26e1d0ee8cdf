"""Chunks of a trace under real transformer-engine on a scripted GPU: ``layers.py REQUEST OUT [REQUEST OUT ...]``.

The tracer's own code builds and runs them. An answer maps keys to requested bytes, without what the allocator
adds by rounding, or to a traceback.
"""

import gc
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from harness.records.trace import TraceCase, TraceRequest
from tests.scripted_cuda.one_rank import balance_routing, convolve


class Allocator:
    """Stands for the tracer and for its ledger: bytes in use by torch's allocator instead of counted storages."""

    phase = "forward"

    @property
    def ledger(self) -> "Allocator":
        return self

    def __enter__(self) -> "Allocator":
        return self

    def __exit__(self, *_raised: object) -> None:
        pass

    def mark(self) -> int:
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_stats()["requested_bytes.all.current"]

    @property
    def peak_bytes(self) -> int:
        return torch.cuda.memory_stats()["requested_bytes.all.peak"]


ALLOCATOR = Allocator()


def make_workspaces() -> None:
    """Make the workspaces that libraries keep per process first, because the planner counts them apart from layers."""
    from transformer_engine.pytorch.cpp_extensions.gemm import get_cublas_workspace

    for grouped in (False, True):
        get_cublas_workspace(0, False, grouped)
    weight = torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    torch.nn.functional.linear(weight, weight).sum().backward()  # the handle of autograd's thread, too


def measured(case: TraceCase, groups: Any) -> dict[str, int]:
    """Return the bytes of the second of two passes, and what the chunk keeps of both."""
    from transformer_engine.pytorch.attention.dot_product_attention import dot_product_attention
    from transformer_engine.pytorch.quantization import FP8GlobalStateManager

    from harness.engine.rank_run import seed_all
    from harness.engine.tracing import chunk, run

    spec = chunk.stage_spec(case, "transformer_engine")
    groups.join(spec.parallelism)
    seed_all(spec)
    FP8GlobalStateManager.reset()
    dot_product_attention._attention_backends["attention_params"] = None  # it holds the scales of the case before
    for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"):
        os.environ.pop(name, None)
    run._forget_shared_buffers()
    gc.collect()
    gc.freeze()  # as the tracer does: objects of imports never die
    before = ALLOCATOR.mark()
    layers = chunk.build(case, spec, chunk.stage_config(spec))
    assert layers._micro_batch
    main_grads = chunk.attach_main_grads(layers.model, layers._main_grad_dtype)
    given = sum(each.untyped_storage().nbytes() for each in (*main_grads, *layers._micro_batch.values()))
    dispatchers = [module.token_dispatcher for module in layers.model.modules() if hasattr(module, "token_dispatcher")]
    first = [dict(vars(each)) for each in dispatchers]
    layers._pass(ALLOCATOR)
    for dispatcher, attributes in zip(dispatchers, first, strict=True):  # what lingers would be freed in the next pass
        vars(dispatcher).clear()
        vars(dispatcher).update(attributes)
    gc.collect()
    forward_peak, saved, backward_peak = layers._pass(ALLOCATOR)
    gc.collect()
    found = {"saved": saved, "forward_peak": forward_peak, "backward_peak": backward_peak}
    return found | {"kept": ALLOCATOR.mark() - before - given}


def answer(request: TraceRequest, groups: Any) -> dict[str, dict[str, Any]]:
    """Measure every case; a failure does not stop the others."""
    from harness.engine.tracing.routing import ROUTING

    ROUTING.imbalance = request.imbalance
    answers: dict[str, dict[str, Any]] = {}
    for case in request.cases:
        try:
            answers[case.key] = measured(case, groups)
        except Exception:  # noqa: BLE001 (the test says which case failed, and how)
            answers[case.key] = {"failed": traceback.format_exc()}
    return answers


def main() -> None:
    """Answer all requests in one process: its start takes longer than they do."""
    torch.cuda.set_device(0)
    balance_routing(None)
    convolve()

    from transformer_engine.pytorch.module import base

    from harness.engine.tracing.chunk import Groups

    base.forget_dummy_wgrads = base._dummy_wgrads.clear  # the tracer asks its stand-in for it
    make_workspaces()
    groups, files = Groups(), map(Path, sys.argv[1:])
    for asked, out in zip(files, files, strict=True):
        out.write_text(json.dumps(answer(TraceRequest.model_validate_json(asked.read_text()), groups)))
    os._exit(0)


if __name__ == "__main__":
    main()
