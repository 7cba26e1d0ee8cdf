"""Measures single operations on a GPU: ``python -m harness.engine.rates TYPE``, a type of ``-g``; tiny ones on ``cpu``.

Prints the ``rows`` of every part as JSON, then the device and its software; or the ``problem`` that ends it.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple

import pynvml
import torch

from harness.engine.nvml_device import Gpu, Neighbours, optional
from harness.engine.process import die_with_parent
from harness.errors import ExitCode
from harness.experiment.gpu import GPUS, GpuType
from harness.records.rank import CLOCK_REASONS, POWER_CAP

# Tokens, width of the input, width of the output: a linear layer of one rank. Llama 3 8B and 70B (whole and TP 2, 4),
# Qwen3 30B-A3B and 235B-A22B, the latent projections and experts of DeepSeek-V3, output layers.
PRODUCTS = (
    (4096, 4096, 6144), (4096, 4096, 4096), (4096, 4096, 28672), (4096, 14336, 4096), (8192, 4096, 28672),
    (2048, 4096, 28672), (4096, 8192, 10240), (4096, 8192, 57344), (4096, 28672, 8192), (4096, 8192, 28672),
    (4096, 8192, 14336), (4096, 7168, 8192), (4096, 2048, 5120), (4096, 4096, 9216), (4096, 7168, 1536),
    (4096, 1536, 24576), (4096, 512, 32768), (4096, 16384, 7168), (2048, 7168, 4096), (1024, 2048, 1536),
    (512, 4096, 3072), (256, 7168, 4096), (4096, 4096, 32000), (4096, 8192, 16032), (4096, 2048, 151936),
)  # fmt: skip
# Sequence, heads of queries, heads of keys, width of keys, width of values.
ATTENTIONS = ((4096, 32, 8, 128, 128), (8192, 32, 8, 128, 128), (16384, 16, 2, 128, 128), (4096, 64, 8, 128, 128),
              (4096, 32, 4, 128, 128), (4096, 128, 128, 192, 128))  # fmt: skip
BUDGET_S = 0.08  # of one row
_TINY = 16
# A GPU at full load is power-capped.
_SLOWDOWNS = {bit: name for bit, name in CLOCK_REASONS.items() if bit != POWER_CAP}


class Row(NamedTuple):
    """A measured operation: what it is of, FLOPs, bytes read and written, seconds; ``host_s``: to launch it."""

    of: str
    what: str
    flops: float
    moved: float
    seconds: float
    host_s: float


class Bench:
    """Operations on one device; ``te``: transformer-engine's module, None without it."""

    def __init__(self, gpu: GpuType) -> None:
        self.gpu, self.device = gpu, torch.device("cpu" if gpu.is_cpu else "cuda")
        has_te = not gpu.is_cpu and find_spec("transformer_engine")
        self.te: Any = import_module("transformer_engine.pytorch") if has_te else None

    def random(self, *shape: int, grad: bool = False, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Return random values: zeros draw less power and run faster."""
        (sizes,) = self.shapes([shape])
        return torch.randn(*sizes, device=self.device, dtype=dtype).requires_grad_(grad)

    def seconds(self, call: Callable[[], object]) -> tuple[float, float]:
        """Return the median seconds of a call in a row of calls, and those until the host has launched it."""
        wait = (lambda: None) if self.gpu.is_cpu else torch.cuda.synchronize
        number, taken = 1, list[tuple[float, float]]()
        while len(taken) < (2 if self.gpu.is_cpu else 5):
            wait()
            began = time.perf_counter()
            for _ in range(number):
                call()
            launched = time.perf_counter() - began
            wait()
            whole = time.perf_counter() - began
            if not taken:  # the first warms up, and says how many calls fill the time
                number = max(1, min(200, int(BUDGET_S / 5 / max(whole, 1e-6))))
            taken.append((whole / number, launched / number) if taken else (whole, launched))
        whole_s, launched_s = zip(*taken[1:], strict=True)
        return statistics.median(whole_s), statistics.median(launched_s)

    def row(self, of: str, what: str, call: Callable[[], object], *, flops: float = 0.0, moved: float = 0.0) -> Row:
        """Measure one operation."""
        return Row(of, what, flops, moved, *self.seconds(call))

    def shapes(self, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
        """Yield the shapes, tiny on the processor."""
        yield from ((tuple(min(size, _TINY) for size in shape)) for shape in shapes) if self.gpu.is_cpu else shapes

    def products(self) -> Iterator[Row]:
        """Yield the three products of a linear layer in bf16."""
        for tokens, inner, outer in self.shapes(PRODUCTS):
            x, w, dy = self.random(tokens, inner), self.random(outer, inner), self.random(tokens, outer)
            size = {"flops": 2.0 * tokens * inner * outer, "moved": 2.0 * (x.numel() + w.numel() + dy.numel())}
            operands = {"forward": (x, w.t()), "input gradient": (dy, w), "weight gradient": (dy.t(), x)}
            for direction, pair in operands.items():
                what = f"{tokens} x {inner} x {outer} {direction}"
                yield self.row("gemm_bf16", what, partial(torch.matmul, *pair), **size)

    def quantised_products(self) -> Iterator[Row]:
        """Yield the same in FP8 through transformer-engine's layer, quantising included; nothing without it."""
        if self.te is None or "fp8" not in self.gpu.peak_flops:
            return
        for tokens, inner, outer in PRODUCTS:
            layer = self.te.Linear(inner, outer, bias=False, params_dtype=torch.bfloat16, device="cuda")
            x, dy = self.random(tokens, inner, grad=True), self.random(tokens, outer)
            forward = partial(_in_fp8, self.te, layer, x)
            flops, ins, outs = 2.0 * tokens * inner * outer, x.numel() + layer.weight.numel(), dy.numel()
            # An operand is read in bf16 and written in FP8 for both directions. A product reads two and writes bf16.
            name, moved = f"{tokens} x {inner} x {outer}", (5.0 * ins + 2.0 * outs, 4.0 * ins + 6.0 * outs)
            first = self.row("gemm_low_precision", f"{name} forward", forward, flops=flops, moved=moved[0])
            both = self.row("gemm_low_precision", f"{name} gradients", partial(_both_ways, forward, dy))
            rest = (max(both.seconds - first.seconds, 1e-9), max(both.host_s - first.host_s, 0.0))
            yield from (first, Row(both.of, both.what, 2 * flops, moved[1], *rest))

    def attentions(self) -> Iterator[Row]:
        """Yield causal attention, forward and both ways; backward takes 2.5 times the products of forward."""
        for length, heads, groups, wide, value in self.shapes(ATTENTIONS):
            q = self.random(length, 1, heads, wide, grad=True)
            k, v = (self.random(length, 1, groups, width, grad=True) for width in (wide, value))
            flops = float(length * length * heads * (wide + value))
            what = f"{length} x {heads} heads of {wide}, {value}"
            forward = self._attention(q, k, v)
            dy = torch.randn_like(forward())
            moved = 2.0 * (2 * q.numel() + k.numel() + v.numel())
            yield self.row("attention", f"{what} forward", forward, flops=flops, moved=moved)
            both = partial(_both_ways, forward, dy)
            yield self.row("attention", f"{what} both ways", both, flops=3.5 * flops, moved=3 * moved)

    def _attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], torch.Tensor]:
        if self.te is None:
            parts = [each.permute(1, 2, 0, 3) for each in (q, k, v)]
            sdpa = torch.nn.functional.scaled_dot_product_attention
            return lambda: sdpa(*parts, is_causal=True, enable_gqa=q.shape[2] != k.shape[2])
        widths = q.shape[3] if q.shape[3] == v.shape[3] else (q.shape[3], v.shape[3])
        masked = {"attention_dropout": 0.0, "qkv_format": "sbhd", "attn_mask_type": "causal"}
        core = self.te.DotProductAttention(q.shape[2], widths, num_gqa_groups=k.shape[2], **masked)
        return lambda: core(q, k, v)

    def memory(self) -> Iterator[Row]:
        """Yield what memory bounds: copies, sums, a norm, a gate."""
        left, right = self.random(2**28), self.random(2**28)
        yield self.row("memory", "copy", lambda: right.copy_(left), moved=2.0 * left.nbytes)
        yield self.row("memory", "add", lambda: torch.add(left, right, out=right), moved=3.0 * left.nbytes)
        x, gated = self.random(8192, 8192), self.random(8192, 16384)
        norm = (self.te or torch.nn).RMSNorm(x.shape[1], device=self.device).to(torch.bfloat16)
        yield self.row("memory", "RMSNorm", lambda: norm(x), moved=2.0 * x.nbytes)
        a, b = gated.chunk(2, -1)
        yield self.row("memory", "product of two halves", lambda: a * b, moved=3.0 * a.nbytes)

    def copies(self) -> Iterator[Row]:
        """Yield copies between the GPU and pinned memory of the host."""
        if self.gpu.is_cpu:
            return
        host = torch.empty(2**28, dtype=torch.uint8, pin_memory=True)
        there, size = torch.empty_like(host, device="cuda"), float(host.nbytes)
        yield self.row("host_copy", "to the GPU", lambda: there.copy_(host, non_blocking=True), moved=size)
        yield self.row("host_copy", "to the host", lambda: host.copy_(there, non_blocking=True), moved=size)

    def adam(self) -> Iterator[Row]:
        """Yield a step of Adam over fp32 weights: it reads four values of each and writes three."""
        weights = [torch.nn.Parameter(self.random(2**26, dtype=torch.float32)) for _ in range(4)]
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        fused = self.te.optimizers.FusedAdam if self.te else torch.optim.AdamW
        optimizer = fused(weights, lr=1e-4)
        yield self.row("adam", "step", optimizer.step, moved=28.0 * sum(weight.numel() for weight in weights))

    def host(self) -> Iterator[Row]:
        """Yield the seconds of the host for an operation with a gradient, and for the three products of a layer."""
        x, dy = self.random(16, 256, grad=True), self.random(16, 16)
        linear = (self.te or torch.nn).Linear(x.shape[1], 16, bias=False, device=self.device).to(torch.bfloat16)
        yield self.row("launch_s", "add", lambda: x + x)
        yield self.row("call_s", "linear layer, forward and backward", lambda: linear(x).backward(dy))


def main() -> int:
    """0 when everything was measured, 2 without the GPU, 6 where the GPU is shared or slowed down."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="harness.engine.rates")
    parser.add_argument("gpu", choices=GPUS)
    gpu = GPUS[parser.parse_args().gpu]
    if gpu.is_cpu:
        return _measured(Bench(gpu), None)
    if not torch.cuda.is_available():
        return _refused(ExitCode.BAD_REQUEST, f"torch {torch.__version__} finds no GPU")
    pynvml.nvmlInit()
    watch = _Watch(_device())  # before torch has used the GPU
    return _measured(Bench(gpu), watch)


class _Watch:
    """The GPU between the parts: its processes, clocks and the bytes outside torch's allocator."""

    def __init__(self, device: Gpu) -> None:
        self.device, self.clocks = device, list[int]()
        self.neighbours = Neighbours(run_pid=os.getpid())
        self.neighbours.before_ranks(device.processes() or {})

    def problem(self) -> str:
        """Look once; say why what is measured now says nothing of the GPU by itself, empty if it does."""
        self.neighbours.during_run(self.device.processes() or {})
        if self.neighbours.foreign:
            return f"other processes use the GPU: {', '.join(self.neighbours.foreign.values())}"
        if clock := self.device.sm_clock_mhz():
            self.clocks.append(clock)
        bits = self.device.clock_reasons() or 0
        slow = ", ".join(name for bit, name in _SLOWDOWNS.items() if bits & bit)
        return f"the GPU is slowed down: {slow}" if slow else ""

    def found(self) -> dict[str, Any]:
        used, _, _ = self.device.memory()
        return {
            "device": self.device.name,
            "driver": optional(pynvml.nvmlSystemGetDriverVersion),
            "clocks_mhz": [min(self.clocks), max(self.clocks)] if self.clocks else None,
            "outside_bytes": used - torch.cuda.memory_reserved(),
        }


def _measured(bench: Bench, watch: "_Watch | None") -> int:
    parts = (bench.products, bench.quantised_products, bench.attentions, bench.memory, bench.copies)
    parts += (bench.adam, bench.host)
    for done, part in enumerate(parts, 1):
        if watch and (problem := watch.problem()):
            return _refused(ExitCode.INCONCLUSIVE, problem)
        _say(part=part.__name__.replace("_", " "), done=done, of=len(parts), rows=[*part()])
        if watch:
            torch.cuda.empty_cache()
    if watch and (problem := watch.problem()):
        return _refused(ExitCode.INCONCLUSIVE, problem)
    te = version("transformer-engine") if bench.te else None
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "transformer-engine": te}
    _say(versions=versions, **(watch.found() if watch else {"device": "cpu"}))
    return 0


def _device() -> Gpu:
    """Return NVML's handle of torch's first device, which the shell may have hidden others before."""
    own = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    found = [Gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return next((gpu for gpu in found if gpu.uuid == own), found[0])


def _in_fp8(te: Any, layer: Any, x: torch.Tensor) -> torch.Tensor:
    recipe = import_module("transformer_engine.common.recipe").Float8CurrentScaling()
    with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
        return layer(x)


def _both_ways(forward: Callable[[], torch.Tensor], gradient: torch.Tensor) -> None:
    forward().backward(gradient)


def _refused(code: ExitCode, problem: str) -> int:
    _say(problem=problem)
    return int(code)


def _say(**found: object) -> None:
    print(json.dumps(found), flush=True)  # noqa: T201 (the answer)


if __name__ == "__main__":
    sys.exit(main())
