"""What is kept of the log behind a record, what it did not say, and where it contradicts the settings it is given."""

from collections.abc import Sequence

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.imports.log.values import ForeignLog
from harness.records.rank import RankRecord
from harness.records.run import IMPORTED, ImportedLog, LogFile, LoggedThroughput, StartSource
from harness.units import counted

_TITLES = {"bridge": "Megatron-Bridge", "megatron-lm": "Megatron-LM"}
_MANY_RANKS = 8


def disagreements(log: ForeignLog, spec: ExperimentSpec) -> list[BadRequestError]:
    """What the log says otherwise than the settings: such a record would be of a job that never ran."""
    found = []
    if log.world_size not in (None, spec.num_gpus):
        found.append(
            BadRequestError(
                f"the log is of {counted(log.world_size or 0, 'rank')}, the settings of {spec.num_gpus}",
                remedy=f"-ng {log.world_size}",
            )
        )
    beyond = sorted({one.rank for one in log.memory if one.rank >= spec.num_gpus})
    if beyond and log.world_size is None:
        found.append(
            BadRequestError(
                f"the log tells of rank {beyond[-1]}, the settings have {counted(spec.num_gpus, 'rank')}", remedy="-ng"
            )
        )
    sizes = {one.global_batch_size for one in log.iterations if one.global_batch_size is not None}
    if sizes and sizes != {spec.batch.global_batch_size}:
        told = ", ".join(map(str, sorted(sizes)))
        remedy = f"-gb {told}" if len(sizes) == 1 else "a batch that grows has no one step time"
        found.append(
            BadRequestError(
                f"the log has a global batch size of {told}, the settings of {spec.batch.global_batch_size}",
                remedy=remedy,
            )
        )
    return found


def source_of(
    log: ForeignLog,
    clock: tuple[int, bool],
    files: tuple[LogFile, ...],
    ranks: Sequence[RankRecord],
    spec: ExperimentSpec,
    start_source: StartSource,
    imported_at: str,
) -> ImportedLog:
    """The log as the record keeps it. ``clock``: the rank that printed the iterations, and whether that is told."""
    return ImportedLog(
        source_format=log.format,
        files=files,
        interval=log.interval,
        clock_rank=clock[0],
        is_clock_told=clock[1],
        total_iterations=log.total,
        throughput=tuple(
            LoggedThroughput(step=one.number - 1, tflops_per_gpu=one.tflops_per_gpu)
            for one in log.iterations
            if one.tflops_per_gpu is not None and 0 < one.tflops_per_gpu < float("inf")
        ),
        first_line=log.first_time,
        last_line=log.last_time,
        start_source=start_source,
        imported_at=imported_at,
        unsaid=_unsaid(ranks, spec),
    )


def notes_on(log: ForeignLog, imported: ImportedLog) -> tuple[str, ...]:
    """For people: what the record is, what its figures are, what the log does not say."""
    whose = _TITLES[imported.source_format] if imported.source_format else "unknown origin"
    files = "1 file" if len(imported.files) == 1 else f"{len(imported.files)} files"
    mean = (
        (f"a line every {imported.interval} iterations: each time is a mean over them",)
        if imported.interval > 1
        else ()
    )
    clock = f"step times are those that rank {imported.clock_rank} printed; an iteration ends for all ranks at once"
    taken = "" if imported.is_clock_told else " (the log does not name the rank; the format prints them on the last)"
    return (
        f"{IMPORTED}a training log ({whose}, {files}): mbr-perf measured nothing",
        *([clock + taken] if log.iterations else []),
        *mean,
        *(f"the log does not tell {what}" for what in imported.unsaid),
        *log.notes,
    )


def _unsaid(ranks: Sequence[RankRecord], spec: ExperimentSpec) -> tuple[str, ...]:
    return (
        "software, driver and device; the settings are those it was imported with",
        *_unsaid_memory(ranks, spec.num_gpus),
    )


def _unsaid_memory(ranks: Sequence[RankRecord], num_ranks: int) -> tuple[str, ...]:
    read = [rank.rank for rank in ranks if rank.memory]
    if not read:
        return ("the memory of any rank",)
    if len(read) == num_ranks:
        return ()
    listed = ", ".join(map(str, read[:_MANY_RANKS])) + (" and others" if len(read) > _MANY_RANKS else "")
    return (f"the memory of {num_ranks - len(read)} of {num_ranks} ranks; it has that of rank {listed}",)
