"""Which kind of thing a side of a comparison is, and a run or a log as a log or as golden values."""

from pathlib import Path
from typing import Literal

from harness.failures.first_failure import FirstFailure, first_failure
from harness.foreign.golden import ForeignGolden, GoldenStep
from harness.foreign.log import ForeignLog, Iteration, RankMemory
from harness.foreign.logs.sources import STDIN, log_sources
from harness.foreign.reader import opened_logs
from harness.judge import readings
from harness.records.references import MARKS
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_run

Kind = Literal["log", "run", "golden", "name"]


def kind_of(given: str) -> Kind:
    """Return what a path is; ``name`` where only the reader of runs can tell: an id, a golden, a night, a sweep."""
    path = Path(given)
    if given == STDIN or path.is_fifo():
        return "log"
    if path.name == RECORD or (path / RECORD).is_file():
        return "run"
    if path.name in MARKS.values() or any((path / mark).is_file() for mark in MARKS.values()):
        return "name"
    if path.is_dir():
        return "golden" if any(path.rglob("*.json")) else "log"
    if not path.is_file():
        return "name"
    with path.open("rb") as file:
        return "golden" if file.read(4096).lstrip()[:1] in (b"{", b"[") else "log"


def is_foreign_golden(given: str) -> bool:
    """Return whether a file has golden values of Megatron-Bridge or Megatron-LM, not of mbr-perf."""
    if kind_of(given) != "golden" or not Path(given).is_file():
        return False
    with Path(given).open("rb") as file:
        return b'"promoted_by"' not in file.read(1 << 20)


def read_side(logs: tuple[str, ...]) -> tuple[ForeignLog, FirstFailure | None]:
    """Read the logs of one job, or a run as if it were its log; also return the failure that a log shows."""
    if len(logs) == 1 and kind_of(logs[0]) == "run":
        return log_of(read_run(logs[0]), logs[0]), None
    reader, lines = opened_logs(logs)
    failed = first_failure(lines)
    return reader.finish(), failed


def require_logs(logs: tuple[str, ...]) -> None:
    """BadRequestError: a log does not exist, or is none."""
    if len(logs) != 1 or kind_of(logs[0]) != "run":
        log_sources(logs)


def log_of(record: RunRecord, name: str) -> ForeignLog:
    """Return a run as a log: every step takes as long as on its slowest rank."""
    slowest: dict[int, float] = {}
    losses: dict[int, float | None] = {}
    for rank in record.ranks:
        for step in rank.steps:
            slowest[step.step] = max(step.seconds, slowest.get(step.step, 0.0))
            losses[step.step] = losses.get(step.step) if step.loss is None else step.loss
    size, last = record.spec.batch.global_batch_size, max(slowest, default=0) + 1
    memory = [
        RankMemory(rank.rank, last, name, max_allocated_bytes=readings.allocated(rank),
                   max_reserved_bytes=readings.reserved(rank))
        for rank in record.ranks
    ]  # fmt: skip
    return ForeignLog(
        None,
        (name,),
        tuple(
            Iteration(step + 1, name, step_time_s=seconds, loss=losses[step], global_batch_size=size)
            for step, seconds in sorted(slowest.items())
        ),
        tuple(memory),
        total=record.spec.measure.max_steps,
        world_size=record.spec.num_gpus,
        ended=record.status == "ok",
    )


def golden_of(log: ForeignLog) -> ForeignGolden:
    """Return a log as golden values: every iteration, and the peaks over all ranks and the whole log."""
    counters = ("max_allocated_bytes", "max_reserved_bytes")
    sizes = {row.global_batch_size for row in log.iterations}
    return ForeignGolden(
        Path(log.sources[0]),
        log.format or "bridge",
        "log",
        {row.number: GoldenStep(row.step_time_s, row.tflops_per_gpu, row.loss) for row in log.iterations},
        memory={name: worst.value for name in counters if (worst := log.worst(name))},
        of_whole_run=True,
        num_gpus=log.world_size,
        global_batch_size=sizes.pop() if len(sizes) == 1 else None,
        notes=log.notes,
        log=log,
    )
