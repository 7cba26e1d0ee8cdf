"""Plays the sequences of allocator_sequences.py on torch's own allocator, under the settings in the environment.

allocator_answers.py          print the answers; on a scripted GPU, with the environment's Python
allocator_answers.py record   start that for all settings, and write tests/data/allocator
"""

import ctypes
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.scripted_cuda.allocator_sequences import DEVICE_BYTES, MIB, SETTINGS, played, suite, write_answers


class Torch:
    """torch's allocator on device 0."""

    def __init__(self) -> None:
        import torch

        self.torch, self.cuda = torch, ctypes.CDLL(None)
        torch.cuda.init()
        self.streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.behind(0)

    def next_address(self) -> int:
        """Return the address that the double gives next: it gives none twice, and keeps 2 MiB free behind each."""
        probe = ctypes.c_void_p()
        assert self.cuda.cudaMalloc(ctypes.byref(probe), ctypes.c_size_t(2 * MIB)) == 0
        self.cuda.cudaFree(probe)
        return probe.value + 4 * MIB

    def alloc(self, num_bytes: int, stream: int) -> Any:
        try:
            with self.torch.cuda.stream(self.streams[stream]):
                return [self.torch.empty(num_bytes, dtype=self.torch.uint8, device="cuda")]
        except self.torch.OutOfMemoryError:
            return None

    def address(self, block: Any) -> int:
        return block[0].data_ptr()

    def free(self, block: Any) -> None:
        block.clear()

    def uses(self, block: Any, stream: int) -> None:
        block[0].record_stream(self.streams[stream])

    def behind(self, events: int) -> None:
        self.cuda.scripted_behind(ctypes.c_ulonglong(events))

    def empty(self) -> None:
        self.torch.cuda.empty_cache()

    def begin(self, pool: int) -> None:
        self.torch._C._cuda_beginAllocateCurrentThreadToPool(0, (0, pool))

    def end(self, pool: int) -> None:
        self.torch._C._cuda_endAllocateToPool(0, (0, pool))

    def release(self, pool: int) -> None:
        self.torch._C._cuda_releasePool(0, (0, pool))

    def limit(self, num_bytes: int) -> None:
        os.environ["SCRIPTED_CUDA_BYTES"] = str(num_bytes)  # the double asks at every allocation, torch asked once

    def totals(self) -> tuple[int, int, int]:
        stats = self.torch._C._cuda_memoryStats(0)
        reserved, allocated, active = (
            stats[f"{name}_bytes"]["all"]["current"] for name in ("reserved", "allocated", "active")
        )
        return reserved, allocated, active

    def segments(self) -> list[Any]:
        found = self.torch.cuda.memory._snapshot()["segments"]
        return sorted(
            [
                each["address"],
                each["total_size"],
                [[b["address"], b["size"], b["state"] != "inactive"] for b in each["blocks"]],
            ]
            for each in found
        )

    def peaks(self) -> list[int]:
        stats = self.torch._C._cuda_memoryStats(0)
        found = [
            *(stats[f"{name}_bytes"]["all"]["peak"] for name in ("reserved", "allocated")),
            stats["num_alloc_retries"],
        ]
        self.torch.cuda.reset_peak_memory_stats()
        self.torch.cuda.reset_accumulated_memory_stats()
        return found


def answers() -> dict[str, Any]:
    """Return what torch answers under the settings in the environment."""
    side, settings = Torch(), os.environ["PYTORCH_CUDA_ALLOC_CONF"]
    start = side.next_address()
    found = {name: played(side, operations, start) for name, operations in suite(settings).items()}
    return {"torch": side.torch.__version__, "settings": settings, "sequences": found}


def answers_of(folder: Path, settings: str) -> dict[str, Any]:
    """Return what torch answers on a scripted GPU, in a process of its own."""
    from tests.scripted_cuda.lane import Machine

    machine = Machine(folder, num_devices=1, device_bytes=DEVICE_BYTES)
    done = machine.run(Path(__file__), more={"PYTORCH_CUDA_ALLOC_CONF": settings})
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        with tempfile.TemporaryDirectory() as folder:
            for name, settings in SETTINGS.items():
                write_answers(name, answers_of(Path(folder), settings))
    else:
        print(json.dumps(answers()), flush=True)
        os._exit(0)  # torch's teardown asks the driver for more than is scripted
