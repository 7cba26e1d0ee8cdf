"""Brings torch's allocator into every state that a snapshot distinguishes, and takes a snapshot: ``snapshot.py FOLDER``.

``FOLDER/snapshot.pickle`` is torch's, ``FOLDER/stats.json`` what its own counters say at the same moment, in bytes.
"""

import json
import sys
from pathlib import Path

import torch

from harness.records.store import write_atomically
from harness.units import MIB

COUNTERS = {
    "allocated_bytes": "allocated_bytes.all.current",
    "active_bytes": "active_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "requested_bytes": "requested_bytes.all.current",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
    "num_segments": "segment.all.current",
    "peak_requested_bytes": "requested_bytes.all.peak",
}
SIZES = (300, 5000, 700_000, 3 * MIB, 12 * MIB + 7, 40 * MIB, 200 * MIB)


def main() -> int:
    """0 when both files are written; 2 without a GPU."""
    folder = Path(sys.argv[1])
    if not torch.cuda.is_available():
        sys.stderr.write(f"a snapshot is of torch's CUDA allocator; torch {torch.__version__} finds no GPU\n")
        return 2
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=10_000, stacks="python")
    kept = populate()
    stats = torch.cuda.memory_stats()
    torch.cuda.memory._dump_snapshot(str(folder / "snapshot.pickle"))
    document = {name: stats[key] for name, key in COUNTERS.items() if key in stats}
    facts = {"torch": torch.__version__, "cuda": torch.version.cuda, "num_kept": len(kept)}
    write_atomically(folder / "stats.json", json.dumps({**document, **facts}, indent=1) + "\n")
    return 0


def populate() -> list[object]:
    """Live tensors of all sizes, holes between them, whole free segments, and a graph with a pool of its own."""
    kept: list[object] = []
    holes = []
    for size in SIZES * 3:
        kept.append(bytes_of(size).fill_(0))  # also the kernel's first use, which may not fall into the capture
        holes.append(bytes_of(size))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # which gives back what is wholly free
        output = bytes_of(32 * MIB).fill_(1)
        bytes_of(8 * MIB).fill_(1)
    kept.extend((graph, output))
    holes.clear()
    kept.append(bytes_of(20 * MIB))  # out of a hole, whose rest is stranded
    waiting(kept)
    whole = [bytes_of(512 * MIB) for _ in range(2)]
    whole.clear()
    return kept


def waiting(kept: list[object]) -> None:
    """Freed, but another stream still computes with it."""
    stream = torch.cuda.Stream()
    lent = bytes_of(16 * MIB)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000_000)  # until long after the snapshot
        lent.record_stream(stream)
    del lent
    kept.append(stream)


def bytes_of(size: int) -> torch.Tensor:
    """So many on the GPU."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")


if __name__ == "__main__":
    sys.exit(main())
