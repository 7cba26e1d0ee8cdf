"""Finds out what a file or a folder is, and reads logs and runs as a log or as golden values."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from harness.errors import BadRequestError
from harness.experiment.flops import achieved_tflops, model_flops_per_step
from harness.failures.first_failure import FirstFailure, first_failure
from harness.foreign.golden import ForeignGolden, GoldenStep, looks_like_bridge, looks_like_megatron_lm
from harness.foreign.log import ForeignLog, Iteration, RankMemory
from harness.foreign.logs.sources import is_stream
from harness.foreign.reader import opened_logs
from harness.judge import readings
from harness.judge.compare import require_repeats
from harness.records.goldens import golden_file
from harness.records.references import MARKS
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_run, record_path
from harness.records.strict_json import parse_json
from harness.units import counted

Kind = Literal["log", "run", "golden", "foreign", "name"]
_LARGEST_DOCUMENT = 1 << 26
_JSON = re.compile(rb"\s*(?:\{|\[\s*[\"{\[])")


@dataclass(frozen=True)
class Side:
    """What a path is. ``paths``: logs of a job, or runs of a setting. ``given``: its name. ``what``: in words."""

    kind: Kind
    paths: tuple[str, ...]
    given: str
    what: str = ""


def side_of(given: str) -> Side:
    """Look at what a path holds. BadRequestError: a JSON document of mbr-perf that names neither a run nor a log."""
    path = Path(given)
    if is_stream(given):
        return Side("log", (given,), given)
    for kind, mark in MARKS.items():
        if path.name == mark or (path / mark).is_file():
            return Side("run" if kind == "run" else "name", (given,), given, f"a {kind} of mbr-perf")
    if path.is_dir():
        return _of_folder(path)
    if path.exists():
        return _of_file(path)
    return (
        Side("golden", (given,), given, "a golden of mbr-perf") if golden_file(given) else Side("name", (given,), given)
    )


def _of_folder(path: Path) -> Side:
    given = str(path)
    if runs := tuple(sorted(str(record.parent) for record in path.glob(f"*/{RECORD}"))):
        return Side("run", runs, given, "a folder of runs of mbr-perf")
    files = (each for each in path.rglob("*.json") if each.is_file())
    is_golden = any((_document(each) or {}).keys() >= {"promoted_by"} for each in files)
    return Side("golden", (given,), given, "a folder of goldens") if is_golden else Side("log", (given,), given)


def _of_file(path: Path) -> Side:
    given, document = str(path), _document(path)
    if document is None:
        return Side("log", (given,), given)
    if "promoted_by" in document:
        return Side("golden", (given,), given, "a golden of mbr-perf")
    if "schema_version" not in document:
        by = "Megatron-LM" if looks_like_megatron_lm(document) else "Megatron-Bridge" * looks_like_bridge(document)
        return Side("foreign", (given,), given, f"a golden of {by}" if by else "a JSON file")
    return _of_answer(path, document)


def _of_answer(path: Path, document: dict[str, object]) -> Side:
    """Return the runs or the logs that a --json document is about."""
    last, ids, log = document.get("run_dir"), _texts(document.get("run_ids")), document.get("log")
    runs = _texts(document.get("run_dirs"))
    if isinstance(last, str):
        runs = tuple(str(Path(last).parent / name) for name in ids) if len(ids) > 1 else (last,)
    found = runs or (_texts(log.get("sources")) if isinstance(log, dict) else ())
    if not found:
        raise BadRequestError(
            f"{path}: a JSON document of mbr-perf that names neither the runs of one setting nor a log",
            remedy="name a run, a log, golden values, or a --json document of run, import or compare",
        )
    return Side("run" if runs else "log", found, found[0], "a --json document of mbr-perf")


def _texts(value: object) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _document(path: Path) -> dict[str, object] | None:
    """Return the object of a JSON file; an empty one where it is damaged; None for another text."""
    with path.open("rb") as file:
        text = file.read(_LARGEST_DOCUMENT)
    if not _JSON.match(text):
        return None
    try:
        return parse_json(text.decode(errors="replace"), str(path))
    except BadRequestError as error:
        if "Extra data" in str(error):
            return None  # lines of JSON are a log
        return dict.fromkeys(("promoted_by",) if b'"promoted_by"' in text else ())  # its reader says what is wrong


def stored_run(side: Side, results: Path | None) -> Side:
    """Return a name as the run that it names under ``results``, if it names one."""
    with suppress(BadRequestError):  # whoever reads the name says what is wrong with it
        path = str(record_path(side.given, results)) if side.kind == "name" else ""
        return Side("run", (path,), path) if path else side
    return side


def is_imported(side: Side) -> bool:
    """Return whether the side is a run that was imported from a log, for which it stands."""
    return side.kind == "run" and read_run(side.paths[0]).imported is not None


def read_side(side: Side) -> tuple[ForeignLog, FirstFailure | None]:
    """Read the logs of one job, or runs as if they were its log; also return the failure that a log shows."""
    if side.kind == "run":
        return log_of([read_run(path) for path in side.paths], side.given), None
    reader, lines = opened_logs(side.paths)
    failed = first_failure(lines)
    return reader.finish(), failed


def log_of(records: Sequence[RunRecord], name: str) -> ForeignLog:
    """Return repeats as a log: median of the slowest ranks' steps, highest peaks. BadRequestError: other settings."""
    seconds, losses = dict[int, list[float]](), dict[int, float | None]()
    for record in records:
        slowest: dict[int, float] = {}
        for step in (step for rank in record.ranks for step in rank.steps):
            slowest[step.step] = max(step.seconds, slowest.get(step.step, 0.0))
            losses[step.step] = losses.get(step.step) if step.loss is None else step.loss
        for number, longest in slowest.items():
            seconds.setdefault(number, []).append(longest)
    spec, last = require_repeats(records), max(seconds, default=0) + 1
    usual = {step: median(each) for step, each in sorted(seconds.items())}
    rates = _throughput(records, usual)
    memory = (
        RankMemory(
            rank.rank,
            last,
            name,
            max_allocated_bytes=readings.allocated(rank),
            max_reserved_bytes=readings.reserved(rank),
        )
        for record in records
        for rank in record.ranks
    )
    size = spec.batch.global_batch_size
    return ForeignLog(
        None,
        (name,),
        tuple(
            Iteration(step + 1, name, each, rates.get(step), losses[step], global_batch_size=size)
            for step, each in usual.items()
        ),
        tuple(memory),
        total=max(_announced(record) for record in records),
        world_size=spec.num_gpus,
        run=records[0],
        ended=all(record.status == "ok" and _announced(record) == spec.measure.max_steps for record in records),
    )


def _throughput(records: Sequence[RunRecord], seconds: Mapping[int, float]) -> dict[int, float]:
    """Return TFLOP/s/GPU by step: as the logs of imported runs state it, else counted from the settings."""
    stated, spec = dict[int, list[float]](), records[0].spec
    for row in (row for record in records if record.imported for row in record.imported.throughput):
        stated.setdefault(row.step, []).append(row.tflops_per_gpu)
    if records[0].imported or not spec.is_described:
        return {step: median(each) for step, each in stated.items()}
    flops = model_flops_per_step(spec)
    return {step: achieved_tflops(flops, each, spec.num_gpus) for step, each in seconds.items()}


def _announced(record: RunRecord) -> int:
    """Return the number of steps of the job, of which the log of an imported run may have the first only."""
    log = record.imported
    return (log.total_iterations if log and log.provisional else None) or record.spec.measure.max_steps


def golden_of(log: ForeignLog) -> ForeignGolden:
    """Return a log as golden values: every iteration, and its peaks. BadRequestError: it has no iteration."""
    if not log.iterations:
        name, lines = ", ".join(log.sources), counted(log.num_lines, "line")
        raise BadRequestError(f"{name}: no line of a training iteration in {lines}", remedy="name another reference")
    counters = ("max_allocated_bytes", "max_reserved_bytes")
    sizes = {row.global_batch_size for row in log.iterations}
    return ForeignGolden(
        Path(log.sources[0]),
        "mbr-perf" if log.run else log.format or "bridge",
        "log",
        {row.number: GoldenStep(row.step_time_s, row.tflops_per_gpu, row.loss) for row in log.iterations},
        memory={name: worst.value for name in counters if (worst := log.worst(name))},
        of_whole_run=True,
        num_gpus=log.world_size,
        global_batch_size=sizes.pop() if len(sizes) == 1 else None,
        notes=log.notes,
        log=log,
    )
