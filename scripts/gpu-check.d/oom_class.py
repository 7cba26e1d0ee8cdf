"""Makes memory run out in one given way and records torch's message: ``oom_class.py FOLDER WAY``.

``FOLDER/oom.json``: ``text`` (null where it fitted after all), ``error`` (the type), and what allocator and driver counted.
Run without torch's CUDA it refuses every way but ``host_memory``.
Tests on scripted GPUs make the ways that torch's allocator decides alone, such as fragmentation.
"""

import ctypes
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from harness.records.store import write_atomically
from harness.units import GIB, MIB

Kept = list[object]


def main() -> int:
    """Return 0 if the outcome is written; 2 for a way that this machine does not have."""
    folder, way = Path(sys.argv[1]), sys.argv[2]
    if way not in WAYS:
        sys.stderr.write(f"no such way: {way}; of {', '.join(WAYS)}\n")
        return 2
    if way != "host_memory" and not torch.cuda.is_available():
        sys.stderr.write(f"{way} needs a GPU that torch can use; torch {torch.__version__} finds none\n")
        return 2
    kept: Kept = []
    error: BaseException | None = None
    try:
        WAYS[way](kept)
    except (RuntimeError, MemoryError) as raised:  # torch.OutOfMemoryError and AcceleratorError are RuntimeErrors
        error = raised
    said = {"error": type(error).__name__ if error else None, "text": str(error) if error else None}
    document = {"way": way, **said, "torch": torch.__version__, "cuda": torch.version.cuda, **counters()}
    write_atomically(folder / "oom.json", json.dumps(document, indent=1) + "\n")
    return 0


def counters() -> dict[str, int]:
    """Return the bytes that allocator and driver count after the failure; nothing without a GPU."""
    if not torch.cuda.is_initialized():
        return {}
    try:
        free, total = torch.cuda.mem_get_info()
    except RuntimeError:  # the error left a context that answers nothing any more
        return {}
    return {
        "allocated_bytes": torch.cuda.memory_allocated(),
        "reserved_bytes": torch.cuda.memory_reserved(),
        "free_bytes": free,
        "total_bytes": total,
        "num_alloc_retries": torch.cuda.memory_stats().get("num_alloc_retries", 0),
    }


def tensor(num_bytes: int) -> torch.Tensor:
    """Allocate ``num_bytes`` on the GPU."""
    return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")


def fill(kept: Kept, piece: int = GIB) -> None:
    """Allocate until the GPU is full, to raise the error."""
    while True:
        kept.append(tensor(piece))


def total_bytes() -> int:
    """Return the total bytes of the GPU."""
    return int(torch.cuda.get_device_properties(0).total_memory)


def larger_than_device(kept: Kept) -> None:
    """One request that no device of this size could meet."""
    kept.append(tensor(total_bytes() * 3 // 2))


def outside_allocator(kept: Kept) -> None:
    """Take three fifths of the device from the driver, outside torch's allocator."""
    from_driver(kept, total_bytes() * 3 // 5)
    fill(kept)


def library(kept: Kept) -> None:
    """Fill the device before cuBLAS makes its handle."""
    left, right = tensor(256).view(torch.bfloat16).view(8, 16), tensor(256).view(torch.bfloat16).view(16, 8)
    for piece in (GIB, 64 * MIB, 2 * MIB):
        while torch.cuda.mem_get_info()[0] > piece + 4 * MIB:
            from_driver(kept, piece)
    kept.append(left @ right)
    torch.cuda.synchronize()


def from_driver(kept: Kept, num_bytes: int) -> None:
    """Allocate from the driver in torch's own context. SystemExit if that fails, because the experiment is void."""
    torch.cuda.init()
    tensor(1)  # makes the context current
    address = ctypes.c_uint64()
    allocate = ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2
    allocate.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]
    if code := allocate(ctypes.byref(address), num_bytes):
        raise SystemExit(f"cuMemAlloc of {num_bytes} bytes: CUDA error {code}")
    kept.append(address)


def cuda_graph_pools(kept: Kept) -> None:
    """Let a captured graph hold half of the device."""
    graph, outputs = torch.cuda.CUDAGraph(), []
    tensor(1).fill_(0)  # a kernel's first use may not fall into the capture
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(total_bytes() // 2 // GIB):
            outputs.append(tensor(GIB).fill_(1))
    kept.extend((graph, outputs))
    fill(kept)


def self_imposed_limit(kept: Kept) -> None:
    """Limit this process to a fifth of the device."""
    torch.cuda.set_per_process_memory_fraction(0.2)
    fill(kept)


def host_memory(kept: Kept) -> None:
    """Request more host memory than this process may have, under a limit: the kernel may promise any size."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hardest = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + GIB, hardest))
    kept.append(torch.empty(8 * GIB, dtype=torch.uint8))


_NAMED = (larger_than_device, outside_allocator, library, cuda_graph_pools, self_imposed_limit, host_memory)
WAYS: dict[str, Callable[[Kept], None]] = {"capacity": fill, **{way.__name__: way for way in _NAMED}}


if __name__ == "__main__":
    sys.exit(main())
