"""Made-up sequences for torch's caching allocator, and what plays them on an allocator, torch's own or the replay's.

An operation is a tuple: ("alloc", key, bytes, stream); ("free", key); ("uses", key, stream);
("behind", events): all events so far are done but the last ones; ("empty",); ("begin", pool), ("end", pool) and
("release", pool) of a private pool; ("limit", bytes) of the device.
"""

import json
import lzma
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

MIB, GIB = 2**20, 2**30
DEVICE_BYTES = 16 * GIB  # an expandable segment takes 1 1/8 of it, of 32 TiB of addresses in all
ANSWERS = Path(__file__).resolve().parents[1] / "data" / "allocator"
SETTINGS = {
    "native": "",
    "expandable": "expandable_segments:True",
    "max_split_128": "max_split_size_mb:128",
    "max_split_64_rounding_40": "max_split_size_mb:64,max_non_split_rounding_mb:40",
    "gc_0.5_of_0.4": "garbage_collection_threshold:0.5,per_process_memory_fraction:0.4",
    "gc_0.3_of_0.6": "garbage_collection_threshold:0.3,per_process_memory_fraction:0.6",
    "gc_0.6_of_0.2_max_split_256": "garbage_collection_threshold:0.6,per_process_memory_fraction:0.2,max_split_size_mb:256",
    "roundup_4": "roundup_power2_divisions:4",
    "roundup_list": "roundup_power2_divisions:[16:8,64:4,128:2,>:1]",
    "expandable_roundup_8": "expandable_segments:True,roundup_power2_divisions:8",
    "expandable_max_split_128": "expandable_segments:True,max_split_size_mb:128",
    "expandable_gc_0.5_of_0.4": "expandable_segments:True,garbage_collection_threshold:0.5,per_process_memory_fraction:0.4",
    "large_segment_64": "large_segment_size_mb:64",
    "expandable_large_segment_64": "expandable_segments:True,large_segment_size_mb:64",
}
REFUSED = {  # what torch says of a value, or the beginning of it
    "expandable_segments:true": "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'true'",
    "expandable_segments:": "Index out of bounds in ConfigTokenizer",
    "expandable_segments=True": "Unrecognized key 'expandable_segments=True' in Accelerator allocator config.",
    "expandable_segments:True,,max_split_size_mb:128": "Unrecognized key ',' in Accelerator allocator config.",
    "max_split_size_mb:19": "CachingAllocator option max_split_size_mb too small, must be >= 20",
    "max_split_size_mb:1e3": "CachingAllocator option max_split_size_mb too small, must be >= 20",
    "max_split_size_mb:40,large_segment_size_mb:64": "CachingAllocator option max_split_size_mb too small, must be >= 64",
    "max_split_size_mb:abc": "stoull",
    "max_split_size_mb:99999999999999999999999": "stoull",
    "max_non_split_rounding_mb:10": "CachingAllocator option max_non_split_rounding_mb too small, must be >= 20",
    "large_segment_size_mb:10": "CachingAllocator option large_segment_size_mb must be > 10 MB",
    "garbage_collection_threshold:1": "garbage_collect_threshold is invalid, set it in (0.0, 1.0)",
    "garbage_collection_threshold:nan": "garbage_collect_threshold is invalid, set it in (0.0, 1.0)",
    "garbage_collection_threshold:x": "stod",
    "per_process_memory_fraction:1.1": "per_process_memory_fraction is invalid, set it in [0.0, 1.0]",
    "roundup_power2_divisions:3": "For roundups, the divisions has to be power of 2",
    "roundup_power2_divisions:[64:8,256:3]": "For roundups, the divisions has to be power of 2 or 0 to disable roundup",
    "roundup_power2_divisions:[64:8,100:4]": "For roundups, the intervals have to be power of 2",
    "roundup_power2_divisions:[64:8": "Index out of bounds in ConfigTokenizer",
    "backend:other": "Unknown allocator backend, options are native and cudaMallocAsync",
    "release_lock_on_cudamalloc:x": "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'x'",
}
ACCEPTED = (
    "", " ", "expandable_segments: True", "expandable_segments:False,", "max_split_size_mb:17592186044416",
    "per_process_memory_fraction:0", "roundup_power2_divisions:[]",
    "roundup_power2_divisions:[64:8,]", "roundup_power2_divisions:[131072:4]", "backend:native,expandable_segments:True",
    "large_segment_size_mb:11", "pinned_use_background_threads:True", "graph_capture_record_stream_reuse:True",
)  # fmt: skip
Operation = tuple[Any, ...]


class Side(Protocol):
    """An allocator that plays sequences. ``alloc``: None if it is refused."""

    def alloc(self, num_bytes: int, stream: int) -> Any: ...
    def address(self, block: Any) -> int: ...
    def free(self, block: Any) -> None: ...
    def uses(self, block: Any, stream: int) -> None: ...
    def behind(self, events: int) -> None: ...
    def empty(self) -> None: ...
    def begin(self, pool: int) -> None: ...
    def end(self, pool: int) -> None: ...
    def release(self, pool: int) -> None: ...
    def limit(self, num_bytes: int) -> None: ...
    def totals(self) -> tuple[int, int, int]: ...
    def segments(self) -> list[Any]: ...
    def peaks(self) -> list[int]: ...


@dataclass
class Script:
    """A sequence while it is written."""

    random: Random
    operations: list[Operation] = field(default_factory=list)
    bytes_of: dict[int, int] = field(default_factory=dict)

    def alloc(self, num_bytes: int, stream: int = 0) -> int:
        key = len(self.bytes_of)
        self.bytes_of[key] = num_bytes
        self.operations.append(("alloc", key, num_bytes, stream))
        return key

    def free(self, *keys: int) -> None:
        self.operations.extend(("free", key) for key in keys)

    def size(self) -> int:
        """Return 1 B to 512 MiB: 40 % up to 1 MiB, 20 % up to 10 MiB; some of them round."""
        r = self.random
        bits = r.choice((r.randrange(20), r.randrange(20), 20 + r.randrange(3), *[23 + r.randrange(6)] * 2))
        size = (1 << bits) + r.randrange(1 << bits)
        return r.choice((size, max(1, size // MIB * MIB), 10 * MIB, 20 * MIB)) if r.random() < 0.3 else size


@dataclass
class Wild(Script):
    """Sizes over nine orders, any lifetime, several streams whose events are late, private pools, empty_cache."""

    most_bytes: int = 4 * GIB
    streams: int = 3
    live: list[int] = field(default_factory=list)
    pool: int = 0
    ended: list[int] = field(default_factory=list)

    def request(self) -> None:
        size, r = self.size(), self.random
        if size + sum(self.bytes_of[key] for key in self.live) <= self.most_bytes:
            self.live.append(self.alloc(size, r.choice([0] * 4 + list(range(1, self.streams)))))

    def give_back(self) -> None:
        r = self.random
        key = self.live.pop(r.randrange(len(self.live)) if r.random() < 0.5 else -1)
        for _ in range(r.choice((0, 0, 0, 0, 0, 0, 1, 2))):
            self.operations.append(("uses", key, r.randrange(self.streams)))
        self.free(key)

    def change_pool(self, new: int) -> None:
        if self.pool:
            self.operations.append(("end", self.pool))
            self.ended.append(self.pool)
            self.pool = 0
        elif self.ended and self.random.random() < 0.4:
            self.operations.append(("release", self.ended.pop(self.random.randrange(len(self.ended)))))
        else:
            self.pool = new
            self.operations.append(("begin", new))


def wild(seed: int, steps: int, *, most: int = 4 * GIB, streams: int = 3, pools: bool = False) -> list[Operation]:
    """Return a wild sequence of so many steps."""
    script = Wild(Random(seed), most_bytes=most, streams=streams)
    for step in range(steps):
        x = script.random.random()
        if x < 0.52 or not script.live:
            script.request()
        elif x < 0.93:
            script.give_back()
        elif x < 0.97:
            script.operations.append(("behind", script.random.choice((0, 1, 3, 10, 40))))
        elif x < 0.98 and not script.pool:
            script.operations.append(("empty",))
        elif pools:
            script.change_pool(seed * 10_000 + step + 1)
    if script.pool:
        script.change_pool(0)
    script.free(*script.live)
    return [*script.operations, *(("release", each) for each in script.ended), ("behind", 0)]


def training(seed: int, *, layers: int = 3, steps: int = 2, drawn: bool = False, side: bool = True) -> list[Operation]:
    """Weights, gradient buffers, saved tensors, logits, states made late, gathered weights on a side stream."""
    script, hidden, tokens = Script(Random(seed)), 1024, 2048
    r, weight, states = script.random, 12 * 1024 * 1024, []
    kept = [
        script.alloc(2 * n * hidden) for _ in range(layers) for n in (3 * hidden, hidden, 4 * hidden, 4 * hidden, 1)
    ]
    kept += [script.alloc(layers * weight) for _ in range(4)]
    for _ in range(steps):
        saved = []
        for _ in range(layers):
            routed = tokens * r.randrange(50, 200) // 100 if drawn else tokens
            gathered = script.alloc(2 * weight, 1) if side else None
            held = [script.alloc(n * tokens * hidden) for n in (2, 6, 2)] + [script.alloc(64 * tokens)]
            workspace = script.alloc(2 * tokens * hidden)
            held += [script.alloc(n * routed * hidden) for n in (2, 8, 8)]
            script.free(workspace)
            if gathered is not None:
                script.operations.append(("uses", gathered, 0))
                script.free(gathered)
                script.operations.append(("behind", r.choice((0, 2, 5))))
            saved.append((held, routed))
        logits = [script.alloc(n * tokens * 8000) for n in (2, 4, 4)]
        script.free(*logits[:2])
        gradient = script.alloc(2 * tokens * hidden)
        script.free(logits[2])
        for held, routed in reversed(saved):
            for rows, width in ((routed, 8), (routed, 2), (tokens, 6), (tokens, 2)):
                following, of_weight = script.alloc(width * rows * hidden), script.alloc(4 * weight // 3)
                script.free(held.pop(), gradient)
                gradient = following
                if side and r.random() < 0.5:
                    script.operations.append(("uses", of_weight, 2))
                script.free(of_weight)
            script.free(*held)
            script.operations.append(("behind", r.choice((0, 1, 3))))
        script.free(gradient)
        states = states or [script.alloc(4 * n * hidden) for _ in range(2 * layers) for n in (3 * hidden, hidden, 1)]
    script.free(*kept, *states)
    return [*script.operations, ("behind", 0)]


def edges() -> list[Operation]:
    """Return requests of exactly the sizes at which rules change, a full device, and a capture with others' blocks."""
    script = Script(Random(0))
    for split in (64, 128, 256):
        for cached in (10, 20, 40):
            script.free(script.alloc((split + cached) * MIB))
            script.free(script.alloc(split * MIB))
            script.operations.append(("empty",))
    script.operations.append(("limit", 1000 * MIB))
    for cached, wanted in (((300, 400, 250), 320), ((300, 250, 200), 520)):
        script.free(*[script.alloc(each * MIB) for each in cached])
        script.free(script.alloc(wanted * MIB))
        script.free(script.alloc(100 * MIB))
        script.operations.append(("empty",))
    used = [script.alloc(n * MIB) for n in (100, 200, 300)]
    script.operations += [
        ("uses", used[0], 1),
        ("begin", 1),
        ("uses", used[1], 1),
        ("uses", used[2], 1),
        ("uses", used[2], 2),
    ]
    script.free(*used)
    inside = script.alloc(500 * MIB)  # refused: nobody waits or gives back during a capture
    script.operations.append(("end", 1))
    after = [script.alloc(n * MIB) for n in (300, 200, 100)]
    script.operations.append(("behind", 0))
    script.free(script.alloc(100 * MIB), inside, *after)
    return [*script.operations, ("release", 1), ("behind", 0), ("limit", DEVICE_BYTES), ("empty",)]


def suite(settings: str) -> dict[str, list[Operation]]:
    """Return the sequences, to be played one after another."""
    found = {"edges": edges()}
    found |= {f"wild {seed}": wild(seed, 700, most=gib * GIB) for seed, gib in ((0, 3), (1, 10))}
    found |= {f"wild, one stream {seed}": wild(seed, 500, streams=1) for seed in (10, 11)}
    found |= {
        "training": training(20),
        "training, one stream": training(21, side=False),
        "drawn": training(22, drawn=True),
    }
    for seed, mib in ((30, 800), (31, 1600), (32, 3000)):
        full = wild(seed, 700, most=mib * MIB)
        found[f"a device of {mib} MiB"] = [("limit", mib * MIB), *full, ("limit", DEVICE_BYTES), ("empty",)]
    for seed in (40, 41):
        pools = wild(seed, 500, pools=True)
        if (
            "expandable" in settings
        ):  # torch 2.11 fails an assertion of its own: an expandable pool given back in pieces
            pools = [each for each in pools if each[0] != "release"]
        found[f"private pools {seed}"] = pools
    return found


def played(side: Side, operations: list[Operation], start: int) -> dict[str, Any]:
    """Return what the allocator answered: of each request its address and the totals, then the segments and peaks."""
    live: dict[int, Any] = {}
    rows = []
    for name, *arguments in operations:
        if name == "alloc":
            block = side.alloc(*arguments[1:])
            rows.append((None if block is None else side.address(block) - start, *side.totals()))
            if block is not None:
                live[arguments[0]] = block
        elif name == "free" and arguments[0] in live:
            side.free(live.pop(arguments[0]))
        elif name == "uses" and arguments[0] in live:
            side.uses(live[arguments[0]], arguments[1])
        elif name not in ("free", "uses"):
            getattr(side, name)(*arguments)
    segments = [
        [first - start, size, [[at - start, *of] for at, *of in blocks]] for first, size, blocks in side.segments()
    ]
    side.behind(0)
    side.empty()
    return {
        "requests": [list(column) for column in zip(*rows, strict=True)],
        "segments": segments,
        "peaks": side.peaks(),
    }


def read_answers(name: str) -> dict[str, Any]:
    """Return what torch answered under one of SETTINGS."""
    return json.loads(lzma.decompress((ANSWERS / f"{name}.json.xz").read_bytes()))


def write_answers(name: str, answers: dict[str, Any]) -> None:
    """Write what torch answered."""
    ANSWERS.mkdir(exist_ok=True)
    text = json.dumps(answers, separators=(",", ":"))
    (ANSWERS / f"{name}.json.xz").write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
