"""Measures single operations on a GPU: ``rates.py FOLDER GPU``, a type of ``-g``. On ``cpu`` with tiny sizes.

``FOLDER/rates.json``: ``device``, its name; ``constants`` as the planner names them, shares of the data sheet's rates and seconds of the host for
a call; ``rows``, what a share is the mean of: the constant, work and seconds.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from harness.experiment.gpu import GPUS
from harness.records.store import write_atomically

GPU = GPUS[sys.argv[2]]
DEVICE = torch.device("cpu" if GPU.is_cpu else "cuda")
TOKENS = 8192  # so that the GPU and not the host sets the pace
LAYERS = ((4096, 6144), (4096, 28672), (14336, 4096), (8192, 57344), (28672, 8192), (7168, 4096), (4096, 32000))
HEADS = ((32, 8), (64, 8))  # of queries, of keys; 128 wide
MASKED = {"attention_dropout": 0.0, "qkv_format": "sbhd", "attn_mask_type": "causal"}

Row = tuple[str, float, float]


def main() -> int:
    """0 when the file is written; 2 without the GPU."""
    if not GPU.is_cpu and not torch.cuda.is_available():
        sys.stderr.write(f"rates of {GPU.name} need a GPU; torch {torch.__version__} finds none\n")
        return 2
    te = import_module("transformer_engine.pytorch") if not GPU.is_cpu and find_spec("transformer_engine") else None
    rows, constants, flops = list(measured(te)), of_the_host(te), GPU.peak_flops
    peaks = {"memory": GPU.memory_bandwidth, "gemm_bf16": flops.get("bf16"), "attention": flops.get("bf16"),
             "gemm_low_precision": flops.get("fp8")}  # fmt: skip
    for name in dict.fromkeys(name for name, _, _ in rows):
        measured_of = [(work, seconds) for row, work, seconds in rows if row == name]
        if peak := peaks[name]:
            constants[name] = sum(work for work, _ in measured_of) / sum(s for _, s in measured_of) / peak
    path = Path(sys.argv[1]) / "rates.json"
    device = "cpu" if GPU.is_cpu else torch.cuda.get_device_name()
    write_atomically(path, json.dumps({"device": device, "constants": constants, "rows": rows}) + "\n")
    return 0


def measured(te: Any) -> Iterator[Row]:
    """Yield copies, products and attention; ``te``: transformer-engine, if it is here."""
    left, right = random(2**29), random(2**29)
    yield "memory", 2.0 * left.nbytes, seconds_of(lambda: right.copy_(left))
    for inner, outer in LAYERS:
        yield "gemm_bf16", 6.0 * TOKENS * inner * outer, seconds_of(product(inner, outer))
        if te and "fp8" in GPU.peak_flops:
            yield "gemm_low_precision", 6.0 * TOKENS * inner * outer, seconds_of(quantised(te, inner, outer))
    for heads, groups in HEADS:  # backward 2.5 times the products of forward, of which half are masked
        yield "attention", 3.5 * TOKENS**2 * heads * 2 * 128, seconds_of(attention(te, heads, groups))


def of_the_host(te: Any) -> dict[str, float]:
    """Return seconds of the host for an operation with a gradient, and for each product of a linear layer."""
    x, dy = random(16, 256, grad=True), random(16, 16)
    linear = (te or torch.nn).Linear(x.shape[1], 16, bias=False, device=DEVICE).to(torch.bfloat16)
    calls = {"launch_s": lambda: x + x, "call_s": lambda: linear(x).backward(dy)}
    launch, three = (seconds_of(call, 300, waits=False) for call in calls.values())
    return {"launch_s": launch, "call_s": three / 3}


def product(inner: int, outer: int) -> Callable[[], object]:
    """Multiply as a linear layer does: forward, gradient of the input, gradient of the weight."""
    x, w, dy = random(TOKENS, inner), random(outer, inner), random(TOKENS, outer)
    return lambda: (x @ w.t(), dy @ w, dy.t() @ x)


def quantised(te: Any, inner: int, outer: int) -> Callable[[], object]:
    """Do the same in FP8 through transformer-engine's layer, quantising included."""
    recipe = import_module("transformer_engine.common.recipe").Float8CurrentScaling()
    layer = te.Linear(inner, outer, bias=False, params_dtype=torch.bfloat16, device="cuda")
    x, dy = random(TOKENS, inner, grad=True), random(TOKENS, outer)

    def both() -> None:
        with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
            y = layer(x)
        y.backward(dy)

    return both


def attention(te: Any, heads: int, groups: int) -> Callable[[], object]:
    """Attend causally, forward and backward."""
    q, k, v = (random(TOKENS, 1, number, 128, grad=True) for number in (heads, groups, groups))
    dy = random(TOKENS, 1, heads * 128)
    if te:
        core = te.DotProductAttention(heads, 128, num_gqa_groups=groups, **MASKED)
        return lambda: core(q, k, v).backward(dy)
    sdpa, parts = torch.nn.functional.scaled_dot_product_attention, [each.permute(1, 2, 0, 3) for each in (q, k, v)]
    return lambda: sdpa(*parts, is_causal=True, enable_gqa=True).sum().backward(retain_graph=True)


def random(*shape: int, grad: bool = False) -> torch.Tensor:
    """Return random values: zeros draw less power and run faster. Tiny sizes on the processor."""
    sizes = [min(size, 16) for size in shape] if GPU.is_cpu else shape
    return torch.randn(*sizes, device=DEVICE, dtype=torch.bfloat16).requires_grad_(grad)


def seconds_of(call: Callable[[], object], count: int = 10, *, waits: bool = True) -> float:
    """Return the median seconds of a call, those of the host alone if it does not wait."""
    taken, wait = list[float](), (lambda: None) if GPU.is_cpu else torch.cuda.synchronize
    for _ in range(4):
        wait()
        began = time.perf_counter()
        for _ in range(1 if GPU.is_cpu else count):
            call()
        if waits:
            wait()
        taken.append((time.perf_counter() - began) / (1 if GPU.is_cpu else count))
    return statistics.median(taken[1:])  # the first warms up


if __name__ == "__main__":
    sys.exit(main())
