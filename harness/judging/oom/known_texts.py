"""Known texts that show why a job ended: memory outside torch's allocator, other failures, results that are not finite."""

import re
from dataclasses import dataclass

from harness.judging.oom.verdict import Confidence, OomClass, OomVerdict, impossible_bytes, threshold

_SLURM = r"\bSlurm: (?:REQUEUED \d{1,6} times?, then )?"
WAITED_ADVICE = (
    "Find the rank that is missing from the collective: py-spy dump of every rank while it hangs, or TORCH_NCCL_DUMP_ON_TIMEOUT=1 with "
    "TORCH_NCCL_TRACE_BUFFER_SIZE=2000. Then check data loading, checkpoints, and branches that only some ranks take."
)
_LOST_PEER = (
    r"ncclRemoteError|remote process exited|Connection (?:closed|reset) by (?:remote )?peer|Broken pipe|recvValue failed"
    r"|communicator was aborted|NCCL communicator .{0,80}abort"
)
_WAITED = (
    r"Watchdog caught collective|collective operation timeout|operations have failed or timed out"
    r"|Heartbeat monitor timed out|due to collective timeout|Socket Timeout|detected by watchdog at work|Timeout at NCCL work"
)
# NCCL's own lines (src/misc/ibvwrap.cc, src/transport/net_ib, src/misc/socket.cc), and torch's names of its error codes.
_FABRIC = (
    r"\bibv_\w{2,40}(?: ?\(\))? (?:failed|timed out|returned)|NET/IB.{0,60}\bGot (?:completion|async)|no socket interface found|Got completion from peer"
    r"|Call to connect\b.{0,100} (?:failed|returned)|[Cc]onnect to \S{1,80}<\d{1,5}> (?:failed|returned)"
)
_SYSTEM = r"ncclSystemError|NCCL [Ee]rror 2\b|unhandled system error"
_DUPLICATE = r"Duplicate GPU|both on CUDA device"
_NO_SUCH_GPU = r"invalid device ordinal"
_INVALID_USAGE = r"ncclInvalidUsage|NCCL [Ee]rror 5\b|invalid usage \(run with NCCL_DEBUG|, invalid usage, NCCL"
PEER_LOST = rf"{_LOST_PEER}|{_WAITED}|{_FABRIC}|{_SYSTEM}"  # how a rank reports that it lost the others
LAUNCH_FAULT = re.compile(rf"{_DUPLICATE}|{_INVALID_USAGE}|{_NO_SUCH_GPU}")
DETAIL = re.compile(rf"{_DUPLICATE}|{_FABRIC}")  # more than torch's error says


@dataclass(frozen=True, slots=True)
class KnownText:
    """A row. The group ``bytes`` in ``pattern`` is the requested size. ``advice``: the next experiment."""

    oom_class: OomClass
    confidence: Confidence
    pattern: re.Pattern[str]
    reason: str
    advice: str = ""


def _text(oom_class: OomClass, confidence: Confidence, pattern: str, reason: str) -> KnownText:
    return KnownText(oom_class, confidence, re.compile(pattern), reason)


def _row(
    pattern: str, reason: str, advice: str, oom_class: OomClass = "not_oom", *, confidence: Confidence = "high"
) -> KnownText:
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
    _text("host_memory", "high", r"[Dd]etected \d{1,6} oom[-_ ]?kill event|\bslurmstepd: error: .{0,200}oom-kill"
         r"|task \d{1,6}: Out Of Memory", "Slurm reported the kernel's out-of-memory killer"),
    _text("host_memory", "high", rf"{_SLURM}OUT_OF_ME",
         "Slurm ended the job when the memory of a node ran out"),
    _text("host_memory", "high", r"Out of memory: Killed process|oom-kill:constraint=|Memory cgroup out of memory",
         "the kernel's out-of-memory killer ended a process"),
    _text("host_memory", "medium", r"DataLoader worker \(pid\(?s?\)?[ \d,]{1,200}\) is killed by signal: Killed",
         "a data loader worker was killed; the kernel does this when host memory runs out"),
    _text("host_memory", "high", r"workers are out of shared memory|failed to extend /dev/shm|unable to allocate shared memory",
         "shared memory of the host (/dev/shm) ran out"),
    _text("host_memory", "medium", r"\bibv_\w{2,40}\b.{0,200}Cannot allocate memory",
         "InfiniBand could not pin host memory; often the limit of locked memory is too low (ulimit -l)"),
    _text("host_memory", "high", r"\[Errno 12\]|Cannot allocate memory", "an allocation of host memory failed (ENOMEM)"),
    _text("outside_allocator", "high", r"Failed to CUDA (?:host )?(?:calloc|malloc)(?: async)?(?: (?P<bytes>\d{1,20}) bytes)?",
         "NCCL could not allocate its buffers, which are outside torch's allocator"),
    _text("outside_allocator", "high", r"NCCL WARN .{0,200}out of memory|ncclUnhandledCudaError.{0,2000}out of memory",
         "NCCL could not allocate its buffers, which are outside torch's allocator"),
    _text("outside_allocator", "high", r"CUBLAS_STATUS_ALLOC_FAILED",
         "cuBLAS could not allocate its workspace, which is outside torch's allocator"),
    _text("outside_allocator", "high", r"CUDNN_STATUS_ALLOC_FAILED"
         r"|CUDNN_STATUS_INTERNAL_ERROR_(?:DEVICE|HOST)_ALLOCATION_FAILED",
         "cuDNN could not allocate its workspace, which is outside torch's allocator"),
    _text("outside_allocator", "medium", r"CUDA driver error: out of memory",
         "the driver had no memory for torch's expandable segments, so the device was completely full"),
    _text("outside_allocator", "medium", r"(?:CUDA|HIP) error: out of memory|cudaErrorMemoryAllocation"
         r"|Cuda failure (?:\d{1,4} )?'?out of memory|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory",
         "a CUDA call outside torch's allocator (a context, pinned memory, a graph, a library) found no memory"),
)  # fmt: skip

# The first row that matches counts: who ended the job, the device, the program, then reports about other ranks.
KNOWN_ENDS: tuple[KnownText, ...] = (
    _row(rf"{_SLURM}(?:TIMEOUT|DEADLINE)\b|DUE TO TIME LIMIT", "Slurm ended the job at its time limit",
         "Ask for more time (--time of sbatch, --time_limit of mbr-perf) or fewer steps. If the time was enough before, "
         "compare it with a job that was in time: mbr-perf diagnose --against.", "time_limit"),
    _row(rf"{_SLURM}(?:NODE_FAIL|BOOT_FAIL)\b|DUE TO NODE FAILURE", "Slurm lost a node of the job",
         "Run it again without that node (sbatch --exclude), and report the node to your administrators.", "node_failure"),
    _row(rf"{_SLURM}PREEMPTED\b|DUE TO PREEMPTION", "Slurm preempted the job",
         "Run it again; for important jobs, use a partition or QOS without preemption."),
    _row(rf"{_SLURM}(?:LAUNCH_FAILED|RECONFIG_FAIL)\b|{_SLURM}never started", "Slurm never started the job's script",
         "Check the reason that Slurm gives (scontrol show job, sacct -j), and the job's log file and folder."),
    _row(rf"{_SLURM}STEP ENDED\b", "Slurm ended the job step, but not the job",
         "Look in the job's log for the task that failed (srun: error: NODE: task N), and read the logs of its ranks."),
    _row(rf"{_SLURM}CANCELLED\b", "a user cancelled the job", "Ask who ran scancel; the job itself does not show the reason."),
    _row(r"\bXid\b.{0,80}?: (?:48|62|63|64|74|79|92|94|95|119|120|140|143|145|149|154)\b|GPU is lost|fallen off the bus"
         r"|[Uu]ncorrectable ECC|CUDA error: no CUDA-capable device|system not yet initialized",
         "a GPU failed or was lost", "Take the node out of use, and check its kernel log (dmesg, lines with Xid) and "
         "nvidia-smi -q -d ECC,PAGE_RETIREMENT; run the job on another node."),
    _row(r"No module named ['\"]?transformer_engine\b", "transformer-engine is not installed where the job ran",
         "Install it there (`mbr-perf doctor` lists what is missing), or use megatron-core's own layers "
         "(--transformer-impl local; in mbr-perf, --set kernels.transformer_impl=local), which have no FP8."),
    _row(r"No module named ['\"]?apex\b", "apex is not installed where the job ran",
         "Install it there, or switch off the features that need it, such as fused weight gradients (--no-gradient-accumulation-fusion)."),
    _row(r"No module named ['\"]?megatron\b", "megatron-core is not installed where the job ran, or not on its path",
         "Install megatron-core there, or put Megatron-LM on its PYTHONPATH; `mbr-perf doctor` lists what is missing."),
    _row(r"device-side assert", "a check inside a GPU kernel failed, usually an index out of range",
         "Run it with CUDA_LAUNCH_BLOCKING=1, which names the call. Compare the largest token id with the vocabulary size."),
    _row(r"illegal memory access|misaligned address|unspecified launch failure|illegal instruction was encountered"
         r"|\bXid\b.{0,80}?: (?:13|31|43|45)\b", "a GPU kernel of the program accessed memory outside its buffers",
         "Run it with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer, which name the kernel; then without CUDA graphs."),
    _row(r"No space left on device|\[Errno 28\]", "a disk is full", "Free some space, or write to another file system (df -h)."),
    _row(r"EADDRINUSE|[Aa]ddress already in use", "the port for the ranks' rendezvous was in use",
         "End ranks that an earlier job left behind, or use another port (--master_port)."),
    _row(r"\bwaiting for clients\b", "not all ranks joined the rendezvous in time",
         "See which ranks started: all nodes must run the same command with the same MASTER_ADDR, MASTER_PORT and number of nodes, and reach that port. "
         "Read the log of a rank that is missing first."),
    _row(rf"{_WAITED}|Timed out waiting \d|wait timeout after \d|timed out after \d",
         "ranks waited in a collective until its time limit: another rank hung, was slow, or had ended", WAITED_ADVICE),
    _row(r"not finished after \d", "the run reached its time limit",
         "Give it more time (--timeout) or fewer steps (--max_steps)."),
    _row(r"gave no sign of life", "a rank hung", "Read the stacks of all ranks, which are in their "
         "logs. If a step is only slow, use a longer --hang_timeout."),
    _row(_DUPLICATE, "two processes of the launch use the same GPU",
         "Start one process per GPU: as many per node as it has GPUs (--nproc_per_node, --ntasks-per-node). Each process must select its own: "
         "torch.cuda.set_device(LOCAL_RANK), and CUDA_VISIBLE_DEVICES must list every GPU once."),
    _row(_NO_SUCH_GPU, "a process of the launch selected a GPU that it does not see",
         "Start as many processes per node as it has GPUs (--nproc_per_node, --ntasks-per-node). Compare LOCAL_RANK with CUDA_VISIBLE_DEVICES, or "
         "with --gpus-per-task, which shows each task one GPU only."),
    _row(r"[Mm]ismatch between collectives", "ranks called different collectives",
         "Compare the two calls that the message names: look for branches, data or settings that differ between the ranks."),
    _row(_INVALID_USAGE, "NCCL was used wrongly: a fault of the launch, usually two processes on one GPU",
         "Run it with NCCL_DEBUG=WARN, which names the two ranks or the wrong call. Compare the processes per node with its GPUs, and LOCAL_RANK "
         "with CUDA_VISIBLE_DEVICES."),
    _row(_FABRIC, "the network between nodes failed",
         "Check the link between both ends: ibstat and ibv_devinfo (port ACTIVE), ib_write_bw, NCCL_IB_HCA, NCCL_IB_GID_INDEX with RoCE, "
         "NCCL_SOCKET_IFNAME. If another rank failed before, read its log first."),
    _row(_SYSTEM, "the network failed, or another system call of NCCL: its error does not name which",
         "Run it with NCCL_DEBUG=WARN: its lines before the error name the call, the device and the peer. A rank that ended also causes this error on the others, "
         "so read the logs of all ranks.", confidence="medium"),
    _row(_LOST_PEER,
         "the connection to another rank broke: that rank failed first, but these logs do not show why",
         "Pass the logs of all ranks and nodes; the log that ends first is the most useful."),
    _row(r"ncclInvalidArgument|NCCL [Ee]rror 4\b|invalid argument, NCCL", "NCCL refused an argument of the program",
         "Run it with NCCL_DEBUG=WARN, which names the argument; TORCH_DISTRIBUTED_DEBUG=DETAIL compares shapes and types of all ranks."),
    _row(r"ncclInternalError|NCCL [Ee]rror|ncclUnhandledCudaError", "NCCL failed",
         "Run it with NCCL_DEBUG=WARN, which names the call that failed; the first such line of any rank is the cause."),
    _row(r"[Ss]egmentation fault|[Cc]aught signal 11|SIGSEGV", "native code crashed (SIGSEGV)",
         "Run it with PYTHONFAULTHANDLER=1, which names the Python line. Then look for an extension that was built for "
         "another torch or CUDA (transformer-engine, apex, flash-attn)."),
    _row(r"\bBus error|SIGBUS", "native code crashed (SIGBUS)",
         "Check shared memory (df -h /dev/shm) and the disk of memory-mapped data: a reader gets SIGBUS if it is full or lost."),
    _row(r"[Ii]llegal instruction|SIGILL", "native code crashed (SIGILL)",
         "An extension was built for another processor: install a build for this processor."),
    _row(r"Floating point exception|SIGFPE", "native code crashed (SIGFPE)",
         "Run it with PYTHONFAULTHANDLER=1, which names the Python line: a library divided by zero."),
    _row(r"terminate called|Fatal Python error: Aborted|\bAborted\b|SIGABRT", "native code aborted (SIGABRT)",
         "Read the lines before it: an uncaught C++ exception, or torch ending a rank that waited too long for others."),
    _row(r"SIGTERM|SIGINT|KeyboardInterrupt", "the process was ended from outside",
         "Find out who ended it: a user, the scheduler, or a launcher after another rank failed."),
)  # fmt: skip
# The signals that a row explains, by the name in the row.
_SIGNALS = {2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV", 15: "SIGTERM"}


def known_text(text: str) -> OomVerdict | None:
    """Return the verdict of the first row that matches; None without a match. A request too large for any node is a bad size."""
    for row in KNOWN_TEXTS:
        match = row.pattern.search(text)
        if match is None:
            continue
        asked = match.groupdict().get("bytes")
        request_bytes = int(asked) if asked else None
        most = threshold("impossible_host_bytes") if row.oom_class == "host_memory" else impossible_bytes()
        if request_bytes is not None and request_bytes > most:
            reason = f"the request is for {request_bytes} bytes, which no device has"
            return OomVerdict("bad_size", "high", reason, request_bytes)
        return OomVerdict(row.oom_class, row.confidence, row.reason, request_bytes)
    return None


def known_end(text: str) -> OomVerdict | None:
    """Return the verdict of the first row that matches; None without a match. Keep Slurm's own text as the reason."""
    row = next((row for row in KNOWN_ENDS if row.pattern.search(text)), None)
    if row is None:
        return None
    slurm_text = text.splitlines()[0][:300] if text.startswith("Slurm: ") else ""
    return OomVerdict(
        row.oom_class, row.confidence, slurm_text or f"{row.reason}{_where(text, row.reason)}", advice=row.advice
    )


_PAIR = re.compile(r"rank (\d{1,6}) and rank (\d{1,6}) both on CUDA device ([0-9a-f]{1,16})")
_CALL = re.compile(
    r"\b(ibv_\w{2,40})\b.{0,40}?(Connection timed out|timed out|No route to host|Network is unreachable)"
)
_DEVICE = re.compile(r"\bon dev ([\w.:-]{1,40})")
_PEER = re.compile(
    r"remote GID ([0-9A-Fa-f:.]{2,60})|remoteGids?:? ?([0-9A-Fa-f:.]{2,60})|from peer ([\w.:<>\[\]-]{2,80})"
    r"|[Cc]onnect to ([\w.:<>\[\]-]{2,80})"
)


def _where(text: str, reason: str) -> str:
    """Return the ranks on one GPU, or the call, device and peer of a network error, as the text names them."""
    if pair := _PAIR.search(text):
        is_glued = text.startswith(" and rank", pair.end())  # another rank's words follow without a blank
        return f": rank {pair[1]} and rank {pair[2]}{'' if is_glued else f' both on CUDA device {pair[3]}'}"
    if not reason.startswith("the network"):
        return ""
    call, device, peer = _CALL.search(text), _DEVICE.search(text), _PEER.search(text)
    known = (
        f"{call[1]}: {call[2]}" if call else "",
        f"on {device[1]}" if device else "",
        f"peer {next(group for group in peer.groups() if group)}" if peer else "",
    )
    found = ", ".join(part for part in known if part)
    return f" ({found})" if found else ""


def end_by_signal(exit_code: int | None) -> OomVerdict | None:
    """Return the verdict for a signal's exit code (negative or above 128); None for other codes and for SIGKILL."""
    if exit_code is None:
        return None
    name = _SIGNALS.get(-exit_code if exit_code < 0 else exit_code - 128)
    return known_end(name) if name else None


# Messages of megatron-core's checks of gradients and losses, and of its rerun state machine.
_NON_FINITE = re.compile(
    r"found (?P<found>NaN|Inf) in local (?:grad norm|forward loss)|Unexpected result (?P<result>nan|-?inf)\b"
    r"|\bvalidation loss at .{0,80}\blm loss value: (?P<value>nan|NAN|-?inf|-?INF)\b|\b[Bb]ad grad[_ ]norm detected|\b(?:loss|grad[_ ]norm) (?:is|was|became) (?P<said>nan|NaN|-?inf)\b"
)
_RANK = re.compile(r"\b[Rr]ank (\d{1,6})\b")
_ITERATION = re.compile(r"\biteration #?(\d{1,9})\b")
NOT_FINITE_ADVICE = (
    "Check the losses before it. A rising loss points to the learning rate or the data; otherwise suspect precision or a "
    "GPU. With FP8 and recompute: recompute only core_attn, not layernorm. Then run the same job with -c bf16."
)


def is_non_finite(text: str) -> bool:
    """Return whether the line reports a result that is not finite."""
    return _NON_FINITE.search(text) is not None


def rank_in(text: str) -> int | None:
    """Return the rank that such a line names."""
    match = _RANK.search(text)
    return int(match[1]) if match else None


def non_finite(text: str) -> OomVerdict | None:
    """Return the verdict on such a line, with rank and iteration; None for other lines."""
    match = _NON_FINITE.search(text)
    if match is None:
        return None
    what = "a gradient" if "grad" in text else "the loss" if "loss" in text else "a result"
    what = "the validation loss" if match["value"] else what
    rank, iteration = rank_in(text), _ITERATION.search(text)
    where = f" on rank {rank}" if rank is not None else ""
    when = f" at iteration {iteration[1]}" if iteration else ""
    value = match["found"] or match["result"] or match["said"] or match["value"]
    reason = f"{what} was not finite{f' ({value})' if value else ''}{where}{when}"
    return OomVerdict("not_oom", "high", reason, advice=NOT_FINITE_ADVICE)
