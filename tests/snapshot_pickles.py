"""Snapshots made by hand: a small caching allocator that writes them as torch does, and a training step on it."""

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.units import GIB, MIB

BASE = 0x7F00_0000_0000
_MCORE = "/opt/venv/lib/python3.12/site-packages/megatron/core"
_TORCH = "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py"


def frame(path: str, line: int, name: str) -> dict[str, Any]:
    """One frame as torch writes it; megatron-core's by their path below `megatron/core`."""
    return {"filename": path if path.startswith("/") else f"{_MCORE}/{path}", "line": line, "name": name}


def stack(*frames: tuple[str, int, str]) -> list[dict[str, Any]]:
    """Innermost first, below torch's own frame and above that of a training script."""
    own = [frame(_TORCH, 1786, "_call_impl")]
    return [*own, *(frame(*one) for one in frames), frame("/home/user/train.py", 12, "<module>")]


LAYER = ("transformer/transformer_layer.py", 462, "forward")
MLP = stack(("transformer/mlp.py", 101, "forward"), LAYER)
ACTIVATION = stack(("fusions/fused_bias_swiglu.py", 60, "swiglu"), ("transformer/mlp.py", 118, "forward"), LAYER)
CORE_ATTN = stack(
    ("transformer/dot_product_attention.py", 199, "forward"), ("transformer/attention.py", 700, "forward"), LAYER
)
WEIGHTS = stack(
    ("tensor_parallel/layers.py", 700, "__init__"), ("transformer/mlp.py", 80, "__init__"),
    ("transformer/transformer_block.py", 300, "_build_layers"),
)  # fmt: skip
OPTIMIZER = stack(
    ("optimizer/optimizer.py", 520, "_copy_model_grads_to_main_grads"), ("optimizer/optimizer.py", 560, "step")
)


@dataclass
class Block:
    address: int
    size: int
    requested: int = 0
    state: str = "inactive"
    frames: list[Any] = field(default_factory=list)


@dataclass
class Segment:
    address: int
    size: int
    pool: tuple[int, int]
    blocks: list[Block]
    is_expandable: bool = False


class Allocator:
    """First fit, 512 bytes at a time, segments of 2 or 20 MiB or as large as asked for. One event per millisecond."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.trace: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.time_us = 1_700_000_000_000_000
        self._next = BASE

    def alloc(self, size: int, frames: list[Any], pool: tuple[int, int] = (0, 0)) -> Block:
        rounded = max(512, -(-size // 512) * 512)
        fits = [
            (s, b)
            for s in self.segments
            if s.pool == pool
            for b in s.blocks
            if b.state == "inactive" and b.size >= rounded
        ]
        segment, block = fits[0] if fits else self._grow(rounded, pool)
        if block.size > rounded:
            rest = Block(block.address + rounded, block.size - rounded)
            segment.blocks.insert(segment.blocks.index(block) + 1, rest)
            block.size = rounded
        block.state, block.requested, block.frames = "active_allocated", size, frames
        self._told("alloc", block.address, size, frames)
        return block

    def free(self, block: Block, *, pending: bool = False) -> None:
        requested = block.requested
        self._told("free_requested", block.address, requested, [])
        block.state, block.requested = ("active_pending_free" if pending else "inactive"), 0
        if not pending:
            self._told("free_completed", block.address, requested, [])
            block.frames = []
            self._merge()

    def oom(self, size: int, device_free: int, frames: list[Any]) -> None:
        entry = {"action": "oom", "size": size, "device_free": device_free, "stream": 0, "frames": frames}
        self.trace.append({**entry, "time_us": self._tick()})

    def annotate(self, name: str, stage: str) -> None:
        self.annotations.append({"name": name, "stage": stage, "device": 0, "time_us": self._tick()})

    def snapshot(self) -> dict[str, Any]:
        """As torch writes it, at this moment."""
        return {
            "segments": [self._written(segment) for segment in self.segments],
            "device_traces": [[dict(entry) for entry in self.trace]],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
            "external_annotations": list(self.annotations),
        }

    def _grow(self, size: int, pool: tuple[int, int]) -> tuple[Segment, Block]:
        total = 2 * MIB if size <= MIB else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        block = Block(self._next, total)
        segment = Segment(self._next, total, pool, [block])
        self.segments.append(segment)
        self._next += total + 2 * MIB
        self._told("segment_alloc", segment.address, total, [])
        return segment, block

    def _merge(self) -> None:
        for segment in self.segments:
            merged: list[Block] = []
            for block in segment.blocks:
                if merged and merged[-1].state == block.state == "inactive":
                    merged[-1].size += block.size
                else:
                    merged.append(block)
            segment.blocks = merged

    def _told(self, action: str, address: int, size: int, frames: list[Any]) -> None:
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self._tick()}
        self.trace.append({**entry, "compile_context": "N/A", "user_metadata": "", "frames": frames})

    def _tick(self) -> int:
        self.time_us += 1000
        return self.time_us

    def _written(self, segment: Segment) -> dict[str, Any]:
        used = [block for block in segment.blocks if block.state == "active_allocated"]
        return {
            "device": 0, "address": segment.address, "total_size": segment.size, "stream": 0,
            "allocated_size": sum(block.size for block in used),
            "active_size": sum(block.size for block in segment.blocks if block.state != "inactive"),
            "requested_size": sum(block.requested for block in used),
            "segment_type": "small" if segment.size == 2 * MIB else "large", "segment_pool_id": segment.pool,
            "is_expandable": segment.is_expandable, "frames": [],
            "blocks": [
                {"address": b.address, "size": b.size, "requested_size": b.requested, "state": b.state, "frames": b.frames}
                for b in segment.blocks
            ],
        }  # fmt: skip


def trained(
    num_layers: int = 8, num_steps: int = 2, activation: int = 96 * MIB, *, keeps_scores: bool = False
) -> Allocator:
    """A model, an optimizer and steps of forward, backward and update; ``keeps_scores``: as without recompute of core_attn."""
    allocator = Allocator()
    for _ in range(num_layers):
        allocator.alloc(64 * MIB, WEIGHTS)
    states = [allocator.alloc(128 * MIB, OPTIMIZER) for _ in range(num_layers)]
    for step in range(num_steps):
        kept: list[list[Block]] = []
        allocator.annotate(f"step {step} forward", "START")
        for _ in range(num_layers):
            scores = allocator.alloc(activation // 2, CORE_ATTN)
            kept.append([allocator.alloc(activation, MLP), allocator.alloc(activation // 2, ACTIVATION)])
            if keeps_scores:
                kept[-1].append(scores)
            else:
                allocator.free(scores)
        allocator.annotate(f"step {step} forward", "END")
        allocator.annotate(f"step {step} backward", "START")
        for blocks in reversed(kept):
            gradient = allocator.alloc(activation, MLP)
            for block in blocks:
                allocator.free(block)
            allocator.free(gradient)
        allocator.annotate(f"step {step} backward", "END")
        allocator.annotate(f"step {step} optimizer", "START")
        allocator.free(allocator.alloc(states[0].size, OPTIMIZER))
        allocator.annotate(f"step {step} optimizer", "END")
    return allocator


def fragmented(request: int = 2 * GIB, num: int = 400, large: int = 22, small: int = 2, every: int = 2) -> Allocator:
    """Nearly half of what is reserved lies free in pieces of 22 MiB, and a request larger than each of them fails."""
    allocator = Allocator()
    for whole in [allocator.alloc((large + small) * MIB, MLP) for _ in range(num)]:
        allocator.free(whole)
    pairs = [(allocator.alloc(large * MIB, MLP), allocator.alloc(small * MIB, CORE_ATTN)) for _ in range(num)]
    for piece, _ in pairs[::every]:
        allocator.free(piece)
    allocator.oom(request, 512 * MIB, MLP)
    return allocator


def holes() -> Allocator:
    """40 segments of 100 MiB with 60 free in each; then 2 GiB are asked for in vain."""
    return fragmented(num=40, large=60, small=40, every=1)


def written(path: Path, snapshot: object, protocol: int = 4) -> Path:
    """The file as `_dump_snapshot` leaves it."""
    path.write_bytes(pickle.dumps(snapshot, protocol=protocol))
    return path
