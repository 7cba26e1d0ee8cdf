"""Known texts that show that memory ran out outside torch's allocator, and the row of such a text."""

import re
from dataclasses import dataclass

from harness.failures.verdict import Confidence, OomClass, OomVerdict, impossible_bytes, threshold

SLURM = r"\bSlurm: (?:REQUEUED \d{1,6} times?, then )?"
SLURM_KILLS = r"[Dd]etected \d{1,6} oom[-_ ]?kill event"


@dataclass(frozen=True, slots=True)
class KnownText:
    """A row. The group ``bytes`` in ``pattern`` is the requested size. ``advice``: the next experiment."""

    oom_class: OomClass
    confidence: Confidence
    pattern: re.Pattern[str]
    reason: str
    advice: str = ""


_SHARED_ADVICE = (
    "Give the container more shared memory (docker --shm-size=64g or --ipc=host; in Kubernetes, a volume of medium Memory at /dev/shm), or use fewer data "
    "loader workers. See df -h /dev/shm on the node while it runs."
)


def _text(oom_class: OomClass, confidence: Confidence, pattern: str, reason: str, advice: str = "") -> KnownText:
    return KnownText(oom_class, confidence, re.compile(pattern), reason, advice)


def row(
    pattern: str, reason: str, advice: str, oom_class: OomClass = "not_oom", *, confidence: Confidence = "high"
) -> KnownText:
    """Return the row of a failure with another cause than memory."""
    return KnownText(oom_class, confidence, re.compile(pattern), reason, advice)


# Messages of the host, the driver, NCCL, cuBLAS, cuDNN and mbr-perf's ranks. The first row that matches counts.
KNOWN_TEXTS: tuple[KnownText, ...] = (
    _text("self_imposed_limit", "high", r"out of memory under --memory_limit\. Tried to allocate (?P<bytes>\d{1,20}) bytes",
         "the run reached --memory_limit"),
    _text("bad_size", "high", r"Storage size calculation overflowed|[Ii]nteger multiplication overflow",
         "the size of a tensor overflowed"),
    _text("bad_size", "high", r"\bnegative dimensions? (?:-?\d|are not allowed)|\binvalid shape dimension -\d",
         "the program requested a tensor with a negative dimension"),
    _text("host_memory", "high", r"DefaultCPUAllocator: (?:can't allocate|not enough) memory: you tried to allocate "
         r"(?P<bytes>\d{1,20}) bytes", "an allocation of host memory failed"),
    _text("host_memory", "high", r"\bstd::bad_alloc\b", "an allocation of host memory failed in C++ (std::bad_alloc)"),
    _text("host_memory", "high", r"(?<![A-Za-z])_?(?:Array)?MemoryError\b",
         "an allocation of host memory failed in Python (MemoryError)"),
    _text("host_memory", "high", rf"{SLURM_KILLS}" r"|\bslurmstepd: error: .{0,200}oom-kill"
         r"|task \d{1,6}: Out Of Memory", "Slurm reported the kernel's out-of-memory killer"),
    _text("host_memory", "high", r"\bOOMKilled\b", "Kubernetes ended the container when it exceeded its memory limit",
         "Raise the memory limit of the container (resources.limits.memory), or use fewer data loader workers and less CPU offloading."),
    _text("host_memory", "high", r"The node was low on resource: memory",
         "Kubernetes evicted the pod, because the memory of its node ran out",
         "Request as much memory as the job uses (resources.requests.memory), or use fewer data loader workers and less CPU offloading."),
    _text("host_memory", "high", r"due to the node running low on memory|killed due to memory pressure",
         "Ray ended a worker because the memory of its node ran out"),
    _text("host_memory", "high", rf"{SLURM}OUT_OF_ME",
         "Slurm ended the job when the memory of a node ran out"),
    _text("host_memory", "high", r"Out of memory: Killed process|oom-kill:constraint=|Memory cgroup out of memory",
         "the kernel's out-of-memory killer ended a process"),
    _text("host_memory", "medium", r"DataLoader worker \(pid\(?s?\)?[ \d,]{1,200}\) is killed by signal: Killed",
         "a data loader worker was killed; the kernel does this when host memory runs out"),
    _text("host_memory", "high", r"workers are out of shared memory|failed to extend /dev/shm|unable to allocate shared memory|insufficient shared memory \(shm\)"
         r"|Error while (?:creating|attaching to) shared memory segment(?!.{0,200}No such file)|posix_fallocate failed.{0,40}No space left|No space left on device: '/dev/shm"
         r"|unable to (?:write to|resize|stretch|mmap \d{1,20} bytes from) file <(?:/dev/shm)?/torch_",
         "shared memory of the host (/dev/shm) ran out", _SHARED_ADVICE),
    _text("host_memory", "medium", r"DataLoader worker .{0,200}killed by signal: Bus error",
         "a data loader worker got SIGBUS, usually because shared memory of the host (/dev/shm) ran out", _SHARED_ADVICE),
    _text("host_memory", "medium", r"\bibv_\w{2,40}\b.{0,200}Cannot allocate memory",
         "InfiniBand could not pin host memory; often the limit of locked memory is too low (ulimit -l)"),
    _text("host_memory", "high", r"\[Errno 12\]|Cannot allocate memory", "an allocation of host memory failed (ENOMEM)"),
    _text("outside_allocator", "high", r"Failed to CUDA (?:host )?(?:calloc|malloc)(?: async)?(?: (?P<bytes>\d{1,20}) bytes)?",
         "NCCL could not allocate its buffers, which are outside torch's allocator"),
    _text("outside_allocator", "high", r"NCCL WARN .{0,200}out of memory|ncclUnhandledCudaError.{0,2000}out of memory",
         "NCCL could not allocate its buffers, which are outside torch's allocator"),
    _text("other_process", "medium", r"Free memory on device .{0,80}on startup is less than desired GPU memory utilization",
         "vLLM found less free memory on the GPU at its start than gpu_memory_utilization asks for: another process holds it",
         "See whose processes hold it (nvidia-smi): a trainer on the same GPU, or an earlier job. Otherwise lower gpu_memory_utilization."),
    _text("self_imposed_limit", "medium", r"No available memory for the cache blocks|larger than the maximum number of tokens that can be stored in KV cache|larger than the available KV cache memory",
         "under gpu_memory_utilization, vLLM had too little GPU memory left for its KV cache",
         "Raise gpu_memory_utilization, lower max_model_len, or shard the model over more GPUs (tensor_parallel_size)."),
    _text("outside_allocator", "high", r"CUBLAS_STATUS_ALLOC_FAILED|cuBLAS [Ee]rror: the resource allocation failed",
         "cuBLAS could not allocate its workspace, which is outside torch's allocator"),
    _text("outside_allocator", "high", r"CUDNN_STATUS_ALLOC_FAILED"
         r"|CUDNN_STATUS_INTERNAL_ERROR_(?:DEVICE|HOST)_ALLOCATION_FAILED",
         "cuDNN could not allocate its workspace, which is outside torch's allocator"),
    _text("outside_allocator", "high", r"status: 2 cuMem\w{2,30} failed", "NVSHMEM could not allocate its heap on the GPU, which is outside torch's allocator",
         "Leave it more room: a smaller micro-batch or more recompute, no other processes on the GPU (nvidia-smi), or a smaller heap (NVSHMEM_SYMMETRIC_SIZE, the buffers of DeepEP)."),
    _text("capacity", "medium", r"NVML_SUCCESS == .{1,120}INTERNAL ASSERT FAILED at .{0,200}CUDACachingAllocator",
         "torch's allocator found no memory, and could not ask the driver for the figures (NVML fails with MIG and in some containers)"),
    _text("outside_allocator", "medium", r"CUDA driver error: out of memory",
         "the driver had no memory for torch's expandable segments, so the device was completely full"),
    _text("outside_allocator", "high", r"CUDA [Ee]rror: out of memory at .{0,200}\bcumem_allocator\b", "vLLM found too little free GPU memory for its weights or KV cache (at its start or wake_up): usually a trainer on the same GPU holds it",
         "Before vLLM starts or wakes up, offload the trainer's parameters and optimizer to the host and empty torch's cache, or lower gpu_memory_utilization. Processes of an earlier job on the GPU have the same effect (nvidia-smi)."),
    _text("outside_allocator", "medium", r"(?:CUDA|HIP) [Ee]rror: out of memory|cudaErrorMemoryAllocation"
         r"|Cuda failure (?:\d{1,4} )?'?out of memory|CUDA_ERROR_OUT_OF_MEMORY|CUresult error: 2\b|\bcuMem\w{2,30}(?:\([^)]{0,200}\))? failed: out of memory|hipErrorOutOfMemory",
         "a CUDA call outside torch's allocator (a context, pinned memory, a graph, a library) found no memory"),
)  # fmt: skip


def known_text(text: str) -> OomVerdict | None:
    """Return the verdict of the first row that matches; None without a match. A request too large for any node is a bad size."""
    for found in KNOWN_TEXTS:
        match = found.pattern.search(text)
        if match is None:
            continue
        asked = match.groupdict().get("bytes")
        request_bytes = int(asked) if asked else None
        most = threshold("impossible_host_bytes") if found.oom_class == "host_memory" else impossible_bytes()
        if request_bytes is not None and request_bytes > most:
            reason = f"the request is for {request_bytes} bytes, which no device has"
            return OomVerdict("bad_size", "high", reason, request_bytes)
        return OomVerdict(found.oom_class, found.confidence, found.reason, request_bytes, advice=found.advice)
    return None
