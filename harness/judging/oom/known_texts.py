"""Texts that tell why a job ended: memory that is not torch's caching allocator's, other ends, a result that is no number."""

import re
from dataclasses import dataclass

from harness.judging.oom.verdict import Confidence, OomClass, OomVerdict, impossible_bytes, threshold

_SLURM = r"\bSlurm: (?:REQUEUED \d{1,6} times?, then )?"
_NCCL_DUMP = (
    "Find the rank that did not come: py-spy dump of every rank while it hangs, or TORCH_NCCL_DUMP_ON_TIMEOUT=1 with "
    "TORCH_NCCL_TRACE_BUFFER_SIZE=2000. Then look at data loading, checkpoints, and branches that some ranks alone take."
)
_LOST_PEER = (
    r"ncclRemoteError|remote process exited|Connection (?:closed|reset) by (?:remote )?peer|Broken pipe|recvValue failed"
    r"|communicator was aborted|NCCL communicator .{0,80}abort"
)
_WAITED = (
    r"Watchdog caught collective|collective operation timeout|operations have failed or timed out"
    r"|Heartbeat monitor timed out|Socket Timeout"
)
PEER_LOST = rf"{_LOST_PEER}|{_WAITED}"  # how a rank says that it lost the others


@dataclass(frozen=True, slots=True)
class KnownText:
    """One row. A group named ``bytes`` in ``pattern`` is what was asked for. ``advice``: the next experiment."""

    oom_class: OomClass
    confidence: Confidence
    pattern: re.Pattern[str]
    reason: str
    advice: str = ""


def _text(oom_class: OomClass, confidence: Confidence, pattern: str, reason: str) -> KnownText:
    return KnownText(oom_class, confidence, re.compile(pattern), reason)


def _row(pattern: str, reason: str, advice: str, oom_class: OomClass = "not_oom") -> KnownText:
    return KnownText(oom_class, "high", re.compile(pattern), reason, advice)


# Of the host, the driver, NCCL, cuBLAS, cuDNN, our ranks. The first row that matches counts.
KNOWN_TEXTS: tuple[KnownText, ...] = (
    _text("self_imposed_limit", "high", r"out of memory under --memory_limit\. Tried to allocate (?P<bytes>\d{1,20}) bytes",
         "the run was held to --memory_limit"),
    _text("bad_size", "high", r"Storage size calculation overflowed|[Ii]nteger multiplication overflow",
         "the size of a tensor overflowed"),
    _text("bad_size", "high", r"\bnegative dimensions? (?:-?\d|are not allowed)|\binvalid shape dimension -\d",
         "a tensor was asked for with a negative dimension"),
    _text("host_memory", "high", r"DefaultCPUAllocator: (?:can't allocate|not enough) memory: you tried to allocate "
         r"(?P<bytes>\d{1,20}) bytes", "an allocation of host memory failed"),
    _text("host_memory", "high", r"\bstd::bad_alloc\b", "an allocation of host memory failed in C++ (std::bad_alloc)"),
    _text("host_memory", "high", r"(?<![A-Za-z])_?(?:Array)?MemoryError\b",
         "an allocation of host memory failed in Python (MemoryError)"),
    _text("host_memory", "high", r"[Dd]etected \d{1,6} oom[-_ ]?kill event|\bslurmstepd: error: .{0,200}oom-kill"
         r"|task \d{1,6}: Out Of Memory", "Slurm saw the kernel's out-of-memory killer at work"),
    _text("host_memory", "high", rf"{_SLURM}OUT_OF_ME",
         "Slurm ended the job when the memory of a node ran out"),
    _text("host_memory", "high", r"Out of memory: Killed process|oom-kill:constraint=|Memory cgroup out of memory",
         "the kernel's out-of-memory killer ended a process"),
    _text("host_memory", "medium", r"DataLoader worker \(pid\(?s?\)?[ \d,]{1,200}\) is killed by signal: Killed",
         "a data loader worker was killed, as the kernel does when host memory runs out"),
    _text("host_memory", "high", r"workers are out of shared memory|unable to allocate shared memory",
         "shared memory of the host (/dev/shm) ran out"),
    _text("host_memory", "medium", r"\bibv_\w{2,40}\b.{0,200}Cannot allocate memory",
         "InfiniBand could not pin memory of the host: often the limit of locked memory (ulimit -l)"),
    _text("host_memory", "high", r"\[Errno 12\]|Cannot allocate memory", "an allocation of host memory failed (ENOMEM)"),
    _text("outside_allocator", "high", r"Failed to CUDA (?:host )?(?:calloc|malloc)(?: async)?(?: (?P<bytes>\d{1,20}) bytes)?",
         "NCCL could not allocate its buffers, which lie outside torch's allocator"),
    _text("outside_allocator", "high", r"NCCL WARN .{0,200}out of memory|ncclUnhandledCudaError.{0,2000}out of memory",
         "NCCL could not allocate its buffers, which lie outside torch's allocator"),
    _text("outside_allocator", "high", r"CUBLAS_STATUS_ALLOC_FAILED",
         "cuBLAS could not allocate its workspace, which lies outside torch's allocator"),
    _text("outside_allocator", "high", r"CUDNN_STATUS_ALLOC_FAILED"
         r"|CUDNN_STATUS_INTERNAL_ERROR_(?:DEVICE|HOST)_ALLOCATION_FAILED",
         "cuDNN could not allocate its workspace, which lies outside torch's allocator"),
    _text("outside_allocator", "medium", r"CUDA driver error: out of memory",
         "the driver had no memory to map into torch's expandable segments, so the device was full to the last page"),
    _text("outside_allocator", "medium", r"(?:CUDA|HIP) error: out of memory|cudaErrorMemoryAllocation"
         r"|Cuda failure (?:\d{1,4} )?'?out of memory|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory",
         "a CUDA call beside torch's allocator (a context, pinned memory, a graph, a library) found no memory"),
)  # fmt: skip

# The first row that matches counts: who ended the job, then the device, then the program, then what ranks say of others.
KNOWN_ENDS: tuple[KnownText, ...] = (
    _row(rf"{_SLURM}(?:TIMEOUT|DEADLINE)\b|DUE TO TIME LIMIT", "Slurm ended the job at its time limit",
         "Ask for more time (--time of sbatch, --time_limit of mbr-perf) or fewer steps. Where it was enough before, "
         "diagnose it --against a job that was in time.", "time_limit"),
    _row(rf"{_SLURM}(?:NODE_FAIL|BOOT_FAIL)\b|DUE TO NODE FAILURE", "Slurm lost a node of the job",
         "Run it again without that node (sbatch --exclude), and have the node examined.", "node_failure"),
    _row(rf"{_SLURM}PREEMPTED\b|DUE TO PREEMPTION", "Slurm gave the job's nodes to another one",
         "Run it again, where it matters in a partition or QOS that is not preempted."),
    _row(rf"{_SLURM}(?:LAUNCH_FAILED|RECONFIG_FAIL)\b|{_SLURM}never started", "Slurm never started the job's script",
         "Look at the reason that Slurm gives: scontrol show job, sacct -j, and the job's log file and its folder."),
    _row(rf"{_SLURM}STEP ENDED\b", "Slurm ended the step and not the job",
         "Look in the job's log for the task that ended badly (srun: error: NODE: task N), and at the logs of its ranks."),
    _row(rf"{_SLURM}CANCELLED\b", "somebody cancelled the job", "Ask who ran scancel; nothing in the job explains it."),
    _row(r"\bXid\b.{0,80}?: (?:48|62|63|64|74|79|92|94|95|119|120|140|143|145|149|154)\b|GPU is lost|fallen off the bus"
         r"|[Uu]ncorrectable ECC|CUDA error: no CUDA-capable device|system not yet initialized",
         "a GPU failed or was lost", "Take the node out of use and look at its kernel log (dmesg, lines with Xid) and at "
         "nvidia-smi -q -d ECC,PAGE_RETIREMENT; run the job on another node."),
    _row(r"No module named ['\"]?transformer_engine\b", "transformer-engine is not installed where the job ran",
         "Install it there (`mbr-perf doctor` says what is missing), or take megatron-core's own layers "
         "(--transformer-impl local; of mbr-perf --set kernels.transformer_impl=local), which have no FP8."),
    _row(r"No module named ['\"]?apex\b", "apex is not installed where the job ran",
         "Install it there, or drop what needs it, such as fused weight gradients (--no-gradient-accumulation-fusion)."),
    _row(r"No module named ['\"]?megatron\b", "megatron-core is not installed where the job ran, or not on its path",
         "Install megatron-core there, or put Megatron-LM on its PYTHONPATH; `mbr-perf doctor` says what is missing."),
    _row(r"device-side assert", "a check inside a GPU kernel failed, mostly an index out of range",
         "Run it with CUDA_LAUNCH_BLOCKING=1, which names the call; hold the largest token id against the vocabulary."),
    _row(r"illegal memory access|misaligned address|unspecified launch failure|illegal instruction was encountered"
         r"|\bXid\b.{0,80}?: (?:13|31|43|45)\b", "a GPU kernel of the program used memory that is not its own",
         "Run it with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer, which name the kernel; then without CUDA graphs."),
    _row(r"No space left on device|\[Errno 28\]", "a disk is full", "Make room, or write to another file system (df -h)."),
    _row(r"EADDRINUSE|[Aa]ddress already in use", "the port at which ranks meet was taken",
         "Look for ranks that an earlier job left behind, or take another port (--master_port)."),
    _row(rf"{_WAITED}|Timed out waiting \d|wait timeout after \d|timed out after \d",
         "ranks waited in a collective until its time limit: another one hung, fell behind or was gone", _NCCL_DUMP),
    _row(r"not finished after \d", "the run was not finished in the time that it was given",
         "Give it more (--timeout), or fewer steps (--max_steps)."),
    _row(r"gave no sign of life", "a rank hung", "Look at where the ranks stand: the stacks of all of them are in their "
         "logs. A step that is only slow needs a longer --hang_timeout."),
    _row(_LOST_PEER,
         "the connection to another rank broke: that one failed first, and nothing given shows how",
         "Give the logs of all ranks and nodes; the one that ends first tells most."),
    _row(r"ncclSystemError|ncclInternalError|ncclInvalidUsage|NCCL error|ncclUnhandledCudaError", "NCCL failed",
         "Run it with NCCL_DEBUG=WARN, whose lines name the call; then look at the network: ibstat, NCCL_SOCKET_IFNAME."),
    _row(r"[Ss]egmentation fault|[Cc]aught signal 11|SIGSEGV", "native code crashed (SIGSEGV)",
         "Run it with PYTHONFAULTHANDLER=1, which names the Python line; then look for an extension that was built for "
         "another torch or CUDA (transformer-engine, apex, flash-attn)."),
    _row(r"\bBus error|SIGBUS", "native code crashed (SIGBUS)",
         "Look at shared memory (df -h /dev/shm) and at the disk of mapped data: one that is full or lost ends a reader so."),
    _row(r"[Ii]llegal instruction|SIGILL", "native code crashed (SIGILL)",
         "An extension was built for another processor: install one that was built for this one."),
    _row(r"Floating point exception|SIGFPE", "native code crashed (SIGFPE)",
         "Run it with PYTHONFAULTHANDLER=1, which names the Python line: some library divided by zero."),
    _row(r"terminate called|Fatal Python error: Aborted|\bAborted\b|SIGABRT", "native code gave up (SIGABRT)",
         "Read what stands before it: an uncaught C++ exception, or torch ending a rank that waited too long for others."),
    _row(r"SIGTERM|SIGINT|KeyboardInterrupt", "the process was ended from outside",
         "Look for who ended it: a person, the scheduler, or a launcher after another rank had failed."),
)  # fmt: skip
# The signals whose meaning a row tells, by the row's own name for it.
_SIGNALS = {2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV", 15: "SIGTERM"}


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
            reason = f"{request_bytes} bytes were asked for, as no device has"
            return OomVerdict("bad_size", "high", reason, request_bytes)
        return OomVerdict(row.oom_class, row.confidence, row.reason, request_bytes)
    return None


def known_end(text: str) -> OomVerdict | None:
    """The verdict of the first row that is in ``text``; None where none is. Slurm's own words are kept with it."""
    row = next((row for row in KNOWN_ENDS if row.pattern.search(text)), None)
    if row is None:
        return None
    said = text.splitlines()[0][:300] if text.startswith("Slurm: ") else ""
    return OomVerdict(row.oom_class, "high", said or row.reason, advice=row.advice)


def end_by_signal(exit_code: int | None) -> OomVerdict | None:
    """By an exit code, negative or above 128 for a signal; None for others, and for SIGKILL, which is no crash."""
    if exit_code is None:
        return None
    name = _SIGNALS.get(-exit_code if exit_code < 0 else exit_code - 128)
    return known_end(name) if name else None


# As its checks of gradients and losses say it, and its rerun state machine around them.
_NON_FINITE = re.compile(
    r"found (?P<found>NaN|Inf) in local (?:grad norm|forward loss)|Unexpected result (?P<result>nan|-?inf)\b"
)
_RANK = re.compile(r"\b[Rr]ank (\d{1,6})\b")
_ITERATION = re.compile(r"\biteration #?(\d{1,9})\b")
_ADVICE = (
    "Look at the losses before it: one that rose points at learning rate or data, one that did not at precision or a "
    "GPU. With FP8 and recompute: recompute core_attn only, not layernorm; then the same job with -c bf16."
)


def is_non_finite(text: str) -> bool:
    """Whether the line says so."""
    return _NON_FINITE.search(text) is not None


def rank_in(text: str) -> int | None:
    """The rank that such a line names."""
    match = _RANK.search(text)
    return int(match[1]) if match else None


def non_finite(text: str) -> OomVerdict | None:
    """The verdict on such a line, with what it names; None for any other."""
    match = _NON_FINITE.search(text)
    if match is None:
        return None
    what = "a gradient" if "grad" in text else "the loss" if "loss" in text else "a result"
    rank, iteration = rank_in(text), _ITERATION.search(text)
    where = f" on rank {rank}" if rank is not None else ""
    when = f" at iteration {iteration[1]}" if iteration else ""
    reason = f"{what} was not finite ({match['found'] or match['result']}){where}{when}"
    return OomVerdict("not_oom", "high", reason, advice=_ADVICE)
