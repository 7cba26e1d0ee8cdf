"""Out-of-memory texts that are not torch's caching allocator's: of the host, the driver, NCCL, cuBLAS, cuDNN, our ranks."""

import re
from dataclasses import dataclass

from harness.judging.oom.verdict import Confidence, OomClass, OomVerdict, impossible_bytes, threshold


@dataclass(frozen=True, slots=True)
class KnownText:
    """One row. A group named ``bytes`` in ``pattern`` is what was asked for."""

    oom_class: OomClass
    confidence: Confidence
    pattern: re.Pattern[str]
    reason: str


def _row(oom_class: OomClass, confidence: Confidence, pattern: str, reason: str) -> KnownText:
    return KnownText(oom_class, confidence, re.compile(pattern), reason)


# The first row that matches counts.
KNOWN_TEXTS: tuple[KnownText, ...] = (
    _row("self_imposed_limit", "high", r"out of memory under --memory_limit\. Tried to allocate (?P<bytes>\d{1,20}) bytes",
         "the run was held to --memory_limit"),
    _row("bad_size", "high", r"Storage size calculation overflowed|[Ii]nteger multiplication overflow",
         "the size of a tensor overflowed"),
    _row("bad_size", "high", r"\bnegative dimensions? (?:-?\d|are not allowed)|\binvalid shape dimension -\d",
         "a tensor was asked for with a negative dimension"),
    _row("host_memory", "high", r"DefaultCPUAllocator: (?:can't allocate|not enough) memory: you tried to allocate "
         r"(?P<bytes>\d{1,20}) bytes", "an allocation of host memory failed"),
    _row("host_memory", "high", r"\bstd::bad_alloc\b", "an allocation of host memory failed in C++ (std::bad_alloc)"),
    _row("host_memory", "high", r"(?<![A-Za-z])_?(?:Array)?MemoryError\b",
         "an allocation of host memory failed in Python (MemoryError)"),
    _row("host_memory", "high", r"[Dd]etected \d{1,6} oom[-_ ]?kill event|\bslurmstepd: error: .{0,200}oom-kill"
         r"|task \d{1,6}: Out Of Memory", "Slurm saw the kernel's out-of-memory killer at work"),
    _row("host_memory", "high", r"\bSlurm: (?:REQUEUED \d{1,6} times?, then )?OUT_OF_ME",
         "Slurm ended the job when the memory of a node ran out"),
    _row("host_memory", "high", r"Out of memory: Killed process|oom-kill:constraint=|Memory cgroup out of memory",
         "the kernel's out-of-memory killer ended a process"),
    _row("host_memory", "medium", r"DataLoader worker \(pid\(?s?\)?[ \d,]{1,200}\) is killed by signal: Killed",
         "a data loader worker was killed, as the kernel does when host memory runs out"),
    _row("host_memory", "high", r"workers are out of shared memory|unable to allocate shared memory",
         "shared memory of the host (/dev/shm) ran out"),
    _row("host_memory", "medium", r"\bibv_\w{2,40}\b.{0,200}Cannot allocate memory",
         "InfiniBand could not pin memory of the host: often the limit of locked memory (ulimit -l)"),
    _row("host_memory", "high", r"\[Errno 12\]|Cannot allocate memory", "an allocation of host memory failed (ENOMEM)"),
    _row("outside_allocator", "high", r"Failed to CUDA (?:host )?(?:calloc|malloc)(?: async)?(?: (?P<bytes>\d{1,20}) bytes)?",
         "NCCL could not allocate its buffers, which lie outside torch's allocator"),
    _row("outside_allocator", "high", r"NCCL WARN .{0,200}out of memory|ncclUnhandledCudaError.{0,2000}out of memory",
         "NCCL could not allocate its buffers, which lie outside torch's allocator"),
    _row("outside_allocator", "high", r"CUBLAS_STATUS_ALLOC_FAILED",
         "cuBLAS could not allocate its workspace, which lies outside torch's allocator"),
    _row("outside_allocator", "high", r"CUDNN_STATUS_ALLOC_FAILED"
         r"|CUDNN_STATUS_INTERNAL_ERROR_(?:DEVICE|HOST)_ALLOCATION_FAILED",
         "cuDNN could not allocate its workspace, which lies outside torch's allocator"),
    _row("outside_allocator", "medium", r"CUDA driver error: out of memory",
         "the driver had no memory to map into torch's expandable segments, so the device was full to the last page"),
    _row("outside_allocator", "medium", r"(?:CUDA|HIP) error: out of memory|cudaErrorMemoryAllocation"
         r"|Cuda failure (?:\d{1,4} )?'?out of memory|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory",
         "a CUDA call beside torch's allocator (a context, pinned memory, a graph, a library) found no memory"),
)  # fmt: skip


def known_text(text: str) -> OomVerdict | None:
    """The verdict of the first row that is in ``text``; None where none is. A request that no node can hold is a bad size."""
    for row in KNOWN_TEXTS:
        match = row.pattern.search(text)
        if match is None:
            continue
        asked = match.groupdict().get("bytes")
        request_bytes = int(asked) if asked else None
        most = threshold("impossible_host_bytes") if row.oom_class == "host_memory" else impossible_bytes()
        if request_bytes is not None and request_bytes > most:
            return OomVerdict(
                "bad_size", "high", f"{request_bytes} bytes were asked for, as no device has", request_bytes
            )
        return OomVerdict(row.oom_class, row.confidence, row.reason, request_bytes)
    return None
