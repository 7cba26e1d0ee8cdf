"""Makes run records from training logs of Megatron-Bridge and Megatron-LM."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path

import harness
from harness.errors import BadRequestError, ExitCode, Problems, SeveralMatchError, raise_all
from harness.experiment.effective import effective_recompute, settled_implementation
from harness.experiment.layout_text import LayoutError
from harness.experiment.rules.check import check
from harness.failures.failure_signs import RankFailure
from harness.failures.first_failure import FirstFailure
from harness.foreign.log import ForeignLog, Iteration
from harness.foreign.logs.sources import is_stream, log_sources
from harness.imports.job import Ending, JobTimes, ending, job_times, notes_on, size_contradictions, source_of
from harness.imports.sides import Side, read_side, side_of
from harness.launch.environment import Host, this_host
from harness.measure.experiment import Display, judge
from harness.measure.launched import Ran
from harness.measure.logged import logged_arguments, with_logged
from harness.measure.prediction import cached_prediction
from harness.measure.understanding import RunRequest, Settled, assumed_gpu, settle
from harness.records.folders import results_dir
from harness.records.gating import GateOptions
from harness.records.rank import LONGEST_STEP_S, Failure, MemoryRecord, RankRecord, StepRecord, placed
from harness.records.redact import own_command
from harness.records.run import Provenance, RunRecord, log_files
from harness.records.store import new_run_dir, write_atomically, write_record
from harness.resolve.recipe import Request

METER = "log"
UNKNOWN = "unknown"  # a host that the log does not name


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """The logs of one job, its settings, what was assumed of them, and how to judge it."""

    logs: tuple[str, ...]
    asked: Request
    gate: GateOptions
    notes: tuple[str, ...] = ()
    results_dir: Path | None = None


def with_job(logs: tuple[str, ...], asked: Request) -> tuple[Request, tuple[str, ...]]:
    """Return the request with the GPU type of the log, or of this machine, and a note. BadRequestError."""
    log_sources(logs)  # a missing file is named as such
    _require_logs(logs)
    gpu, note = (asked.gpu, "") if asked.gpu else assumed_gpu(logs, this_host())
    asked, notes = (asked, ()) if gpu == "cpu" or not note else (replace(asked, gpu=gpu), (note,))
    prints_arguments = not asked.job_name and logged_arguments(logs) is not None
    if asked.job_name or (asked.gpu and prints_arguments):
        return asked, notes
    if prints_arguments:
        wanted = f"the log names no GPU type ({logs[0]} prints all other settings)"
        raise BadRequestError(wanted, remedy="add the GPU type, e.g. -g h100")
    raise SeveralMatchError(
        "the log does not print its settings; name a recipe with -mr, or the job's file with --megatron_args, --hf or "
        "--bridge_config",
        choices=(("-mr", "RECIPE", *(() if asked.gpu else ("-g", "GPU"))),),
    )


def clock_rank(log: ForeignLog, world_size: int) -> tuple[int, bool]:
    """Return the rank that printed the iterations, and whether the log names it; else it is the last rank."""
    named = {iteration.rank for iteration in log.iterations}
    rank = named.pop() if len(named) == 1 else None
    return (world_size - 1, False) if rank is None or rank >= world_size else (rank, True)


def rank_records(
    log: ForeignLog, failure: FirstFailure | None, world_size: int, *, ended_well: bool
) -> tuple[RankRecord, ...]:
    """Return the records of the ranks that the log names, by number; the clock rank has the step times."""
    clock = clock_rank(log, world_size)[0]
    every = (failure.failure, *failure.others) if failure else ()
    memory, failures = _memory(log), {each.rank: each for each in reversed(every) if each.rank is not None}
    named = {*memory, *failures, *([clock] if log.iterations else [])}
    return tuple(
        RankRecord(
            rank=rank,
            world_size=world_size,
            hostname=(failures[rank].host if rank in failures else None) or UNKNOWN,
            pid=0,
            finished=ended_well,
            failure=_failure(failures[rank], failure) if rank in failures else None,
            steps=step_records(log.iterations) if rank == clock else (),
            memory=_with_figures(memory.get(rank), failures.get(rank), failure),
        )
        for rank in sorted(named)
        if 0 <= rank < world_size
    )


def step_records(iterations: Iterable[Iteration]) -> tuple[StepRecord, ...]:
    """Return the iterations with a time above 0 and up to 1e9 s, from 0; losses and norms only if finite."""
    return tuple(
        StepRecord(
            step=row.number - 1, seconds=row.step_time_s, loss=_finite(row.loss), grad_norm=_finite(row.grad_norm)
        )
        for row in iterations
        if row.step_time_s is not None and 0 < row.step_time_s <= LONGEST_STEP_S
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


_PEAKS = {
    "max_allocated_bytes": "max_allocated_bytes",
    "max_reserved_bytes": "max_reserved_bytes",
    "max_device_used_bytes": "device_used_bytes",
}
"""By the field of a record, the counter of a log."""


def _memory(log: ForeignLog) -> dict[int, MemoryRecord]:
    highest = {name: log.highest(attrgetter(counter)) for name, counter in _PEAKS.items()}
    return {
        rank: MemoryRecord.model_validate({"meter": METER} | {name: of.get(rank) for name, of in highest.items()})
        for rank in {report.rank for report in log.memory}
    }


def _failure(failure: RankFailure, first: FirstFailure | None) -> Failure:
    """Return the failure with steps counted from 0: after iteration 2, a phase belongs to step 2; else step 1 ended."""
    step = failure.after_step
    if step is not None and not failure.phase:
        step = step - 1 if step else None
    return Failure(
        kind="lost" if failure.kind == "peer" else failure.kind,
        message=failure.text,
        phase=failure.phase or ("step" if failure.after_step else None),
        step=step,
        request_bytes=first.verdict.request_bytes if first and failure is first.failure else None,
    )


def _with_figures(
    memory: MemoryRecord | None, failure: RankFailure | None, first: FirstFailure | None
) -> MemoryRecord | None:
    """Add the figures of the allocator's message: the size of the device, and the memory in use at the failure."""
    figures = first.verdict.figures if first and failure is first.failure else None
    if figures is None:
        return memory
    before = memory or MemoryRecord(meter=METER)
    added = {
        "max_allocated_bytes": max(filter(None, (before.max_allocated_bytes, figures.allocated_bytes)), default=None),
        "max_reserved_bytes": max(filter(None, (before.max_reserved_bytes, figures.reserved_bytes)), default=None),
        "device_total_bytes": figures.total_bytes,
    }
    return before.model_copy(update=added) if any(value is not None for value in added.values()) else memory


def import_run(request: ImportRequest, display: Display) -> ExitCode:
    """Make a run of a log, judge and print it. BadRequestError: not of a training job, or of other settings."""
    host = this_host()
    log, failure = read_side(Side("log", request.logs, request.logs[0]))
    if not log.iterations and failure is None:
        raise BadRequestError(
            f"{', '.join(request.logs)}: no line of a training iteration or of a failure",
            remedy="name the log of the last rank, which prints the iterations, or the folder of all logs",
        )
    ended = ending(log, failure)
    asked, notes = with_logged(request.asked, request.logs, host)
    settled = settled_like(log, ended, asked, (*request.notes, *notes), host)
    times = job_times(log, datetime.now(UTC))
    run_dir = new_run_dir(results_dir(request.results_dir), f"{settled.spec.recipe}-imported")
    record = recorded(log, ended, settled, times, host, run_dir.name)
    write_atomically(run_dir / "spec.json", record.spec)
    write_record(run_dir, record)
    return judge([Ran(record, run_dir, None)], request.gate, request.results_dir, display)


def _require_logs(logs: tuple[str, ...]) -> None:
    problems = Problems()
    for given in logs:
        side = side_of(given)
        if is_stream(given):
            problem = "import cannot read standard input or a pipe, because the run keeps the log's checksum"
            problems.add(f"{given}: {problem}", "save the log, and name the file")
        elif side.what:
            problems.add(f"{given}: {side.what}, not a log", "name the log of a training job")
    problems.raise_if_any()


def settled_like(log: ForeignLog, ended: Ending, asked: Request, notes: tuple[str, ...], host: Host) -> Settled:
    """Settle the job's settings with the log's number of steps. BadRequestError: log and settings disagree."""
    if not asked.gpu:
        raise BadRequestError("the log names no GPU type", remedy="add it with -g, e.g. -g h100")
    last = log.iterations[-1].number if log.iterations else None
    steps = last if ended.provisional else asked.max_steps or log.total or last
    settled = settle(RunRequest(asked=replace(asked, max_steps=steps)), host)
    own_steps = {"measure.max_steps": "the log"} if steps is not None and asked.max_steps != steps else {}
    raise_all(size_contradictions(log, settled.spec))
    return replace(settled, sources={**settled.sources, **own_steps}, notes=(*settled.notes, *notes))


def _broken_rules(settled: Settled) -> tuple[str, ...]:
    """Return a note on the rules that refuse the settings: the job did run, maybe with others."""
    broken = dict.fromkeys(each.id for each in check(settled.spec, settled.software) if each.blocks)
    refused = f"rules refuse these settings: {', '.join(broken)}; check that the job ran with them"
    return (refused,) if broken else ()


def recorded(log: ForeignLog, ended: Ending, settled: Settled, times: JobTimes, host: Host, run_id: str) -> RunRecord:
    """Return the log as a run's record. BadRequestError: the layers do not fit the pipeline layout."""
    spec, software, implementation = settled.spec, settled.software, settled_implementation(settled.spec)
    try:
        effective = effective_recompute(spec, implementation, software)
    except LayoutError as error:
        raise BadRequestError(f"the layers do not fit the pipeline layout: {error}") from error
    ranks = rank_records(log, ended.first, spec.num_gpus, ended_well=ended.status == "ok")
    clock = clock_rank(log, spec.num_gpus)
    imported = source_of(log, clock, log_files(log.sources), ranks, spec.num_gpus, times.source, ended)
    prediction = cached_prediction(spec, software, host, starts=False)
    return RunRecord(
        run_id=run_id,
        status=ended.status,
        spec=spec,
        sources=settled.sources,
        fingerprint=spec.fingerprint,
        effective=effective,
        ranks=placed(ranks, spec),
        failure=ended.failure,
        notes=(*notes_on(log, imported), times.note, *settled.notes, *_broken_rules(settled), *ended.notes),
        prediction=prediction.prediction,
        no_prediction=prediction.reason,
        imported=imported,
        provenance=Provenance(  # the job did not run on this machine
            started_at=times.started_at,
            finished_at=times.finished_at,
            duration_s=times.duration_s,
            command=own_command(),
            mbr_perf=harness.__version__,
            hostname=UNKNOWN,
            platform=UNKNOWN,
            processor=UNKNOWN,
        ),
    )
