"""Classifies why a job ended: which kind of memory ran out, or another end."""

import re
from dataclasses import dataclass

from harness.judging.oom.allocator import judged
from harness.judging.oom.allocator_text import allocator_figures
from harness.judging.oom.library_texts import known_text
from harness.judging.oom.verdict import Confidence, OomClass, OomVerdict
from harness.records.run import RunRecord
from harness.units import counted

_SLURM = r"\bSlurm: (?:REQUEUED \d{1,6} times?, then )?"
_NCCL_DUMP = (
    "Find the rank that did not come: py-spy dump of every rank while it hangs, or TORCH_NCCL_DUMP_ON_TIMEOUT=1 with "
    "TORCH_NCCL_TRACE_BUFFER_SIZE=2000. Then look at data loading, checkpoints, and branches that some ranks alone take."
)


@dataclass(frozen=True, slots=True)
class KnownEnd:
    """One row. ``advice``: the next experiment."""

    pattern: re.Pattern[str]
    reason: str
    advice: str
    oom_class: OomClass


def _row(pattern: str, reason: str, advice: str, oom_class: OomClass = "not_oom") -> KnownEnd:
    return KnownEnd(re.compile(pattern), reason, advice, oom_class)


# The first row that matches counts: who ended the job, then the device, then the program, then what ranks say of others.
KNOWN_ENDS: tuple[KnownEnd, ...] = (
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
    _row(r"Watchdog caught collective|collective operation timeout|operations have failed or timed out"
         r"|Heartbeat monitor timed out|Socket Timeout|Timed out waiting \d|wait timeout after \d|timed out after \d",
         "ranks waited in a collective until its time limit: another one hung, fell behind or was gone", _NCCL_DUMP),
    _row(r"not finished after \d", "the run was not finished in the time that it was given",
         "Give it more (--timeout), or fewer steps (--max_steps)."),
    _row(r"gave no sign of life", "a rank hung", "Look at where the ranks stand: the stacks of all of them are in their "
         "logs. A step that is only slow needs a longer --hang_timeout."),
    _row(r"ncclRemoteError|remote process exited|Connection (?:closed|reset) by (?:remote )?peer|Broken pipe|recvValue failed"
         r"|communicator was aborted|NCCL communicator .{0,80}abort",
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
_PYTHON = re.compile(r"(?:[A-Za-z_]\w{0,99}\.){0,9}([A-Za-z_]\w{0,99})(?::|$)")


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


def python_error(text: str) -> OomVerdict:
    """The verdict on an error with its traceback, of which no row tells more."""
    match = _PYTHON.match(text)
    name = match[1] if match else "an error"
    return OomVerdict("not_oom", "high", f"the program raised {name}; memory is not what ended it",
                      advice="Read its traceback from the last line up: the first line of the job's own code in it.")  # fmt: skip


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


# What is left of a message that was cut short.
_BARE = re.compile(r"\bout of memory\b|\bOutOfMemoryError\b", re.IGNORECASE)
_KILLED = (-9, 137)  # as Python and as a shell count SIGKILL


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known beside the text; None for what is not.

    ``exit_code``: of the process, negative for a signal. ``scheduler_state``: Slurm's, such as OUT_OF_MEMORY.
    ``host_oom_kills``: by how much the cgroup's count of oom_kill rose. ``expandable_segments``: whether torch's
    allocator used them. ``device_bytes``: the memory of the job's GPUs. ``has_traceback``: the text is an
    error of Python with its traceback.
    """

    exit_code: int | None = None
    scheduler_state: str | None = None
    host_oom_kills: int | None = None
    expandable_segments: bool | None = None
    device_bytes: int | None = None
    has_traceback: bool = False


NOTHING_KNOWN = Ending()


def classify(text: str, ending: Ending = NOTHING_KNOWN) -> OomVerdict:
    """The class of a failure whose text is ``text``: torch's allocator first, then libraries and host, then the ending.

    A text may be a whole traceback; of several messages the first counts.
    """
    figures = allocator_figures(text)
    if figures is not None:
        return judged(figures, expandable_segments=ending.expandable_segments, device_bytes=ending.device_bytes)
    return known_text(text) or _without_figures(text) or non_finite(text) or known_end(text) or _by_ending(text, ending)


def _without_figures(text: str) -> OomVerdict | None:
    if not _BARE.search(text):
        return None
    return OomVerdict("capacity", "low", "the text says out of memory and gives no figures")


def _by_ending(text: str, ending: Ending) -> OomVerdict:
    if (ending.scheduler_state or "").startswith("OUT_OF_ME"):
        return OomVerdict("host_memory", "high", f"the scheduler says {ending.scheduler_state}")
    if ending.host_oom_kills:
        return OomVerdict(
            "host_memory",
            "high",
            f"the kernel killed {counted(ending.host_oom_kills, 'process', 'es')} of the job's cgroup",
        )
    if ending.exit_code in _KILLED:
        reason = "the process was killed (SIGKILL) without a word, often by the kernel when host memory runs out"
        return OomVerdict("killed", "low", reason)
    if by_signal := end_by_signal(ending.exit_code):
        return by_signal
    if ending.has_traceback:
        return python_error(text)
    sure: Confidence = "medium" if ending.exit_code is None and ending.scheduler_state is None else "high"
    return OomVerdict("not_oom", sure, "nothing tells of memory running out")


# torch reads both; where both are set the first counts.
_ALLOCATOR_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class RankOom:
    """The verdict on one rank's words; the lowest rank that ran out of memory, as in the failure of the record."""

    rank: int
    verdict: OomVerdict


def oom_of_run(record: RunRecord) -> RankOom | None:
    """None for a run that ended otherwise, and where no rank left a word."""
    ending = Ending(expandable_segments=expandable_segments(record))
    for rank in sorted(record.ranks, key=lambda rank: rank.rank):
        if rank.failure is not None and rank.failure.kind == "oom":
            return RankOom(rank.rank, classify(rank.failure.message, ending))
    return None


def expandable_segments(record: RunRecord) -> bool | None:
    """Whether torch's allocator was told to use them; None where the record does not hold its settings."""
    environment = record.provenance.environment
    told = next((environment[name] for name in _ALLOCATOR_SETTINGS if name in environment), None)
    return None if told is None else "expandable_segments:true" in told.replace(" ", "").lower()
