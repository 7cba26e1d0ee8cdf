"""Parts of torch on a scripted GPU: ``torch_parts.py PART...`` prints one JSON line, an answer per part."""

import json
import pickle
import sys
from typing import Any

import torch

MIB = 2**20


def blocks(*mebibytes: int) -> list[torch.Tensor]:
    """Return tensors of these sizes on the device."""
    return [torch.empty(n * MIB, device="cuda", dtype=torch.uint8) for n in mebibytes]


def allocator() -> dict[str, Any]:
    """Blocks are split and cached; the snapshot pickles and names the actions."""
    torch.cuda.memory._record_memory_history(max_entries=1000)
    kept = blocks(3, 5, 30, 300, 12)
    del kept[1]
    snapshot = pickle.loads(pickle.dumps(torch.cuda.memory._snapshot()))
    torch.cuda.memory._record_memory_history(enabled=None)
    return {
        "segments_mib": [each["total_size"] // MIB for each in snapshot["segments"]],
        "expandable": any(each["is_expandable"] for each in snapshot["segments"]),
        "actions": sorted({each["action"] for each in snapshot["device_traces"][0]}),
        "free": torch.cuda.mem_get_info()[0],
    }


def side_stream() -> dict[str, Any]:
    """A block that another stream used is free once that stream's event is done."""
    side = torch.cuda.Stream()
    (block,) = blocks(64)
    block.record_stream(side)
    place = block.data_ptr()
    del block
    (again,) = blocks(64)
    reused_at_once = again.data_ptr() == place
    del again
    torch.cuda.synchronize()
    (later,) = blocks(64)
    return {"reused_at_once": reused_at_once, "reused_later": later.data_ptr() == place}


def attention() -> dict[str, str]:
    """Every implementation of attention runs forward and backward; the default on an H100 is cuDNN's."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    call, found = torch.nn.functional.scaled_dot_product_attention, {}
    for name in ("default", "FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH"):
        q, k, v = (
            torch.randn(1, 16, 2048, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
        )
        with sdpa_kernel(list(SDPBackend.__members__.values()) if name == "default" else getattr(SDPBackend, name)):
            out = call(q, k, v, is_causal=True)
        out.sum().backward()
        found[name] = out.grad_fn.name()
    return found


def graph() -> dict[str, Any]:
    """A captured graph's tensors live in a private pool, which ends with it."""
    x = torch.zeros(4 * MIB, device="cuda")
    captured = torch.cuda.CUDAGraph()
    before = torch.cuda.memory_reserved()
    with torch.cuda.graph(captured):
        y = (x + 1) * 2
    captured.replay()
    pools = len({each["segment_pool_id"] for each in torch.cuda.memory._snapshot()["segments"]})
    inside = torch.cuda.memory_reserved() - before
    del y, captured
    torch.cuda.empty_cache()
    return {"pools": pools, "kept_inside": inside > 0, "kept_afterwards": torch.cuda.memory_reserved() > before}


def out_of_memory() -> dict[str, Any]:
    """torch's own error, after its own retry."""
    kept = blocks(30 * 1024, 30 * 1024)
    try:
        blocks(30 * 1024)
    except torch.OutOfMemoryError as error:
        stats = torch.cuda.memory_stats()
        return {
            "said": str(error),
            "num_ooms": stats["num_ooms"],
            "retries": stats["num_alloc_retries"],
            "kept": len(kept),
        }
    return {"said": ""}


def unscripted() -> dict[str, Any]:
    """A function that the double lacks fails by its name."""
    try:
        torch.ones(64, 64, device="cuda", dtype=torch.float64) @ torch.ones(64, 64, device="cuda", dtype=torch.float64)
    except RuntimeError as error:
        return {"failed": type(error).__name__}
    return {"failed": None}


PARTS = {part.__name__: part for part in (allocator, side_stream, attention, graph, out_of_memory, unscripted)}
answers = {}
for chosen in sys.argv[1:]:
    torch.cuda.empty_cache()
    answers[chosen] = PARTS[chosen]()
print(json.dumps(answers))
