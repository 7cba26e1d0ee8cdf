"""Makes a case of training logs: the first failure, and the speed and memory before it."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import median

from harness.diagnose.symptoms import names_symptom
from harness.diagnose.values import Case, FailedRank, Message, RankFigures, Status
from harness.experiment.experiment import ExperimentSpec
from harness.failures.entries import entry
from harness.failures.failure_scan import expandable_segments_in
from harness.failures.first_failure import LOCAL_RANK, FirstFailure, RankFailure
from harness.failures.verdict import Confidence, OomVerdict
from harness.foreign.log import ForeignLog, NotFinite
from harness.foreign.logs.lines import LogLine
from harness.records.redact import redact

_MOST_MESSAGES = 200
_MOST_NAMED = 8
_LONGEST = 2000
# Skipped steps count as iterations: those before the window warm up.
_WARM_UP_SHARE = 0.5
# What torch's builder of extensions and Megatron print before a compiler runs, or before they wait for a lock.
_COMPILING = re.compile(
    r"^(?:> compiling and loading fused kernels|Using .{1,300} as PyTorch extensions root|Building extension module |Emitting ninja build file |Allowing ninja to set)"
)
# slurmstepd counts every process of a step that the kernel ended, also helpers and data loader workers.
_KILL_COUNT = "slurm_kill_count"
_HARMLESS_KILL = "Training ended well. Slurm counted a kill ({where}): the kernel ended another process of the step, such as a data loader worker."
_HARMLESS_MENTION = "Training ended well, although a line mentions an error: {text} ({where})."
_STAYED = (
    "training had ended, but the job had not: Slurm ended it at its time limit",
    "Training itself is complete; see whether its last checkpoint is. Find the process that stays (ps, py-spy dump on the node): a profiler, a save in the background, a data loader worker or a logger.",
)
_LOCKED = OomVerdict(
    "unknown",
    "medium",
    "the log ends where an extension is compiled: the compiler still runs, or the job waits for a lock that an earlier job left",
    advice="If no compiler runs on the node (ps; nvcc, ninja, cicc), delete the file named lock in the extension's folder: ~/.cache/torch_extensions (TORCH_EXTENSIONS_DIR), "
    "or megatron/fused_kernels/build. Then start the job again.",
)

_NO_END = "no line shows how the job ended"
_STILL_RUNS = (
    "See whether the job still runs (squeue, nvidia-smi). If it hangs, take a py-spy dump of every rank; if it ended, ask the scheduler why "
    "(sacct -j JOB, kubectl describe pod), and pass the logs of all ranks to their end."
)
_RISE = 1.3  # times the lowest loss; the last losses are also at least 1 above it
_FEWEST_LOSSES = 5

_EMPTY = OomVerdict(
    "unknown",
    "low",
    "the log is empty",
    advice="See whether the job started, and where its output goes (--output of sbatch, --log-dir of torchrun, a redirection).",
)


class Listener:
    """Passes lines on and keeps the few that name a symptom."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.expandable_segments: bool | None = None
        self.num_lines = 0
        self.last = ""

    def over(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """Yield the same lines."""
        for line in lines:
            self.num_lines += 1
            self.last = line.text or self.last
            setting = expandable_segments_in(line.text)
            self.expandable_segments = self.expandable_segments if setting is None else setting
            if len(self.messages) < _MOST_MESSAGES and names_symptom(line.text):
                self.messages.append(Message(redact(line.text[:_LONGEST]), line.where))
            yield line


def case_of_log(
    name: str,
    log: ForeignLog,
    first: FirstFailure | None,
    listener: Listener,
    spec: ExperimentSpec | None = None,
    survived: RankFailure | None = None,
) -> Case:
    """Return the job that the lines describe, with its settings if they are known.

    Results that are not finite explain a job that ended well, was ended from outside, or whose end is unknown.
    """
    harmless = first if first is not None and _is_harmless(first, log) else None
    first = None if harmless else _after_training(first) if first and log.ended else first
    broken = log.not_finite()
    is_cause = broken is not None and (first is None or _is_weak(first))
    status: Status = "failed" if is_cause else _status(log, first)
    return Case(
        name=name,
        origin="log",
        status=status,
        verdict=_verdict(first, broken if is_cause else None, status, last=listener.last, log=log),
        failed=_diverged(broken) if broken and is_cause else _failed(first) if first else None,
        spec=spec,
        ranks=_ranks(log, first, spec),
        tflops_per_gpu=_late([iteration.tflops_per_gpu for iteration in log.iterations]),
        step_time_s=_late([iteration.step_time_s for iteration in log.iterations]),
        has_nan=broken is not None or (first is not None and first.verdict.entry == "non_finite"),
        expandable_segments=listener.expandable_segments,
        messages=tuple(listener.messages),
        notes=(
            *([f"Not finite: {_divergence(broken)}."] if broken and not is_cause else []),
            *([f"How it ended: {first.verdict.reason} ({first.failure.where})."] if first and is_cause else []),
            *([_harmless_note(harmless.failure)] if harmless else []),
            *_others(first),
            *([] if broken else _rise(log)),
            *(
                [f"Iterations follow this line, so the job survived it: {survived.text} ({survived.where})."]
                if survived
                else []
            ),
            *log.notes,
        ),
    )


def _harmless_note(failure: RankFailure) -> str:
    text = _HARMLESS_MENTION if failure.is_mention else _HARMLESS_KILL
    return text.format(text=failure.text, where=failure.where)


def _is_harmless(first: FirstFailure, log: ForeignLog) -> bool:
    """Return whether training ended, and the only other sign is a mention or Slurm's count of processes that the kernel ended."""
    is_at_its_end = log.ended or (bool(log.iterations) and log.total is not None and log.truncated is None)
    is_alone = not first.victims and all(failure.entry == _KILL_COUNT for failure in first.also)
    return is_at_its_end and is_alone and (first.failure.is_mention or first.failure.entry == _KILL_COUNT)


def _after_training(first: FirstFailure) -> FirstFailure:
    """Return the failure of a job whose training had ended; only its time limit is judged otherwise."""
    if first.verdict.oom_class != "time_limit":
        return first
    reason, advice = _STAYED
    return replace(first, verdict=replace(first.verdict, reason=reason, advice=advice))


def _is_weak(first: FirstFailure) -> bool:
    """Return whether the failure does not explain itself: a time limit, a cancelled job, lost peers, a launcher's report."""
    return first.failure.kind == "peer" or first.verdict.oom_class in ("unknown", "time_limit", "killed")


def _verdict(
    first: FirstFailure | None, broken: NotFinite | None, status: Status, *, last: str, log: ForeignLog
) -> OomVerdict:
    if broken is not None:
        sure: Confidence = "high" if broken.is_printed else "medium"
        return OomVerdict("not_oom", sure, _divergence(broken), advice=entry("non_finite").advice, entry="non_finite")
    if first is None and _COMPILING.search(last):
        return _LOCKED
    if first is None and not last:
        return _EMPTY
    if first is None and status != "ok" and log.truncated:
        return OomVerdict("not_oom", "medium", f"{_NO_END}; {log.truncated}", advice=_STILL_RUNS)
    if first is None:
        return OomVerdict("not_oom", "medium", "the job ended well" if status == "ok" else _NO_END)
    return first.verdict


def _rise(log: ForeignLog) -> list[str]:
    """Return a note on a loss that is far above its lowest value in the last two iterations of the log."""
    rows = [row for row in log.iterations if row.loss is not None and math.isfinite(row.loss)]
    if len(rows) < _FEWEST_LOSSES or log.ended:
        return []
    lowest = min(rows, key=lambda row: row.loss or 0.0)
    last, low = rows[-1], lowest.loss or 0.0
    if min(row.loss or 0.0 for row in rows[-2:]) < max(_RISE * low, low + 1):
        return []
    return [
        f"The loss rose from {low:.3g} (iteration {lowest.number}) to {last.loss:.3g} (iteration {last.number}): training diverged. "
        "Go back to a checkpoint before the rise, with other data or a smaller learning rate."
    ]


def _divergence(broken: NotFinite) -> str:
    """Return what is not finite, since which iteration, on which rank, and on which line."""
    row = broken.first
    rank = "" if row.rank is None else f"rank {row.rank}, "
    more = f"; {broken.count} of the {broken.of} iterations from there on" if broken.of > 1 else ""
    return f"{broken.reason} at iteration {row.number} ({rank}{row.where}){more}"


def _diverged(broken: NotFinite) -> FailedRank:
    row = broken.first
    message = f"iteration {row.number}: lm loss {_shown(row.loss)}, grad norm {_shown(row.grad_norm)}"
    return FailedRank(row.rank, "non_finite_loss", message, f"in iteration {row.number}", row.where)


def _shown(value: float | None) -> str:
    return "missing" if value is None else f"{value:g}"


def _others(first: FirstFailure | None) -> list[str]:
    """Return how many other ranks failed, in the same way or because of the first."""
    rows = (
        ("failed in the same way", first.also if first else ()),
        ("also failed, probably because of this failure", first.victims if first else ()),
    )
    return [
        f"{len(failures)} other rank{'s' if len(failures) > 1 else ''} {how}: {_named(failures)}"
        for how, failures in rows
        if failures
    ]


def _named(failures: Iterable[RankFailure]) -> str:
    names = [f"rank {failure.rank}" if failure.rank is not None else failure.where for failure in failures]
    return ", ".join(names[:_MOST_NAMED]) + (" ..." if len(names) > _MOST_NAMED else "")


def _status(log: ForeignLog, first: FirstFailure | None) -> Status:
    if first is not None:
        return "oom" if first.verdict.is_oom else "failed"
    return "ok" if log.ended or (log.iterations and log.truncated is None) else "unknown"


def _failed(first: FirstFailure) -> FailedRank:
    failure = first.failure
    when = [f"in {failure.phase}"] if failure.phase else []
    when += [f"after iteration {failure.after_step}"] if failure.after_step is not None else []
    return FailedRank(failure.rank, failure.kind, failure.text, " ".join(when), failure.where, _place(first))


def _place(first: FirstFailure) -> str:
    """Return ``GPU 3 of node07``, with the GPU's number as the process counts the GPUs that it sees."""
    failure, figures = first.failure, first.verdict.figures
    texts = (failure.text, *(line.text for line in failure.evidence))
    local = next((match[1] for match in map(LOCAL_RANK.search, texts) if match), None)
    device = figures.device if figures else None
    parts = (f"GPU {device}" if device is not None else "", f"local rank {local}" if local is not None else "")
    known = ", ".join(part for part in parts if part)
    return " of ".join(part for part in (known, failure.host or "") if part)


def _ranks(log: ForeignLog, first: FirstFailure | None, spec: ExperimentSpec | None) -> tuple[RankFigures, ...]:
    """Return the peaks of ranks that reported memory, and the ranks that ran out of it."""
    full = set()
    if first is not None and first.failure.kind == "oom":
        full = {failure.rank for failure in (first.failure, *first.also) if failure.rank is not None}
    reported = {figures.rank for figures in log.memory}
    allocated, reserved = (
        log.highest(lambda figures: figures.max_allocated_bytes),
        log.highest(lambda figures: figures.max_reserved_bytes),
    )
    return tuple(
        RankFigures(rank, stage_of(rank, spec), allocated.get(rank), reserved.get(rank), has_oom=rank in full)
        for rank in sorted(full | reported)
    )


def stage_of(rank: int, spec: ExperimentSpec | None) -> int | None:
    """Return the pipeline stage of a rank in megatron-core's default order, in which stages vary slowest."""
    if spec is None or rank >= spec.num_gpus:
        return None
    return rank * spec.parallelism.pipeline_model_parallel_size // spec.num_gpus


def _late(values: list[float | None]) -> float | None:
    """Return the median of the second half, after the warm-up."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    late = known[int(len(known) * _WARM_UP_SHARE) :]
    return median(late) if late else None
