"""Reads golden files of mbr-perf, Megatron-Bridge and Megatron-LM, and has what Megatron-Bridge puts in its own."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.errors import BadRequestError, Problems
from harness.experiment.experiment import MeasureSpec
from harness.foreign.log import ForeignLog, LogFormat
from harness.records.golden import GoldenRecord
from harness.records.goldens import read_golden
from harness.records.reading import read_text
from harness.records.strict_json import parse_json
from harness.units import GB, counted, shortened

LOSS, TIME_MS, THROUGHPUT = "lm loss", "elapsed time per iteration (ms)", "GPU utilization"
MEMORY = {"alloc": "allocated_bytes", "max_alloc": "max_allocated_bytes", "max_reserved": "max_reserved_bytes"}
# A number, because Megatron-Bridge ignores numbers that it does not know.
OF_WHOLE_RUN = "mbr_perf_peaks_of_whole_run"

_MAY_BE_NAN = (TIME_MS, THROUGHPUT)  # of some steps; a window that holds one is inconclusive
_OF_MEGATRON_LM = ("iteration-time", "throughput", LOSS)
_MEMORY_BY_STEP = {
    "mem-allocated-bytes": "allocated_bytes",
    "mem-max-allocated-bytes": "max_allocated_bytes",
    "mem-reserved-bytes": "reserved_bytes",
}
_PEAKS = {"max_allocated_bytes": "peak_allocated_bytes", "max_reserved_bytes": "peak_reserved_bytes"}
_WRAPPERS = ("baseline", "current")

_STEP = re.compile(r"[0-9]{1,9}")
_DATE = re.compile(r"(\d{1,4})[.\-/_](\d{1,2})[.\-/_](\d{1,4})(?:\D.*)?", re.DOTALL)
_MISSING = {"nan", "inf", "-inf"}
_MAX_BYTES = 256 * 1024**2
_MAX_PROBLEMS = 10
_LARGEST = 1e18

GoldenFormat = LogFormat | Literal["mbr-perf"]


@dataclass(frozen=True, slots=True)
class GoldenStep:
    """The golden's values of one iteration. None: not in the file; NaN: the file says NaN."""

    step_time_s: float | None = None
    tflops_per_gpu: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class ForeignGolden:
    """A parsed golden: ``steps`` by iteration from 1, ``memory`` in bytes, as RankMemory; ``own``: of mbr-perf."""

    path: Path
    format: GoldenFormat
    layout: str
    steps: Mapping[int, GoldenStep]
    memory: Mapping[str, int] = field(default_factory=dict)
    memory_by_iteration: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    of_whole_run: bool = False
    num_gpus: int | None = None
    global_batch_size: int | None = None
    gpu: str = ""
    compute_dtype: str = ""
    notes: tuple[str, ...] = ()
    own: GoldenRecord | None = None
    log: ForeignLog | None = None

    @property
    def timed(self) -> tuple[int, ...]:
        """Return the iterations that a window can use. In Megatron-LM, each metric has its own steps."""
        if self.format != "megatron-lm":
            return tuple(self.steps)
        timed = (n for n, step in self.steps.items() if step.step_time_s is not None or step.tflops_per_gpu is not None)
        return tuple(timed) or tuple(self.steps)

    @property
    def has_throughput(self) -> bool:
        return any(step.tflops_per_gpu is not None for step in self.steps.values())

    @property
    def has_loss(self) -> bool:
        return any(step.loss is not None for step in self.steps.values())


def looks_like_bridge(document: Mapping[str, object]) -> bool:
    """Return whether the keys are those of a known layout of Megatron-Bridge."""
    parts = (document, *(part for part in document.values() if isinstance(part, dict)))
    return any(name in document for name in _WRAPPERS) or any(map(_has_steps, parts))


def looks_like_megatron_lm(document: Mapping[str, object]) -> bool:
    """Return whether the document holds metrics with values by step."""
    return any(isinstance(part, dict) and {"values", "start_step"} <= part.keys() for part in document.values())


def read_foreign_golden(path: Path) -> ForeignGolden:
    """Read the golden values in the file. BadRequestError names the file and the keys of invalid values."""
    document = parse_json(read_text(path, str(path), most_bytes=_MAX_BYTES), str(path))
    if document.keys() >= {"promoted_by", "metrics"}:
        return _of_mbr_perf(path, read_golden(path))
    reading = _Reading(path)
    golden = (_of_megatron_lm if looks_like_megatron_lm(document) else _of_bridge)(reading, document)
    reading.problems.raise_if_any()
    return golden


class _Reading:
    def __init__(self, path: Path) -> None:
        self.path, self.problems = path, Problems()

    def refuse(self, *words: str) -> None:
        if len(self.problems.found) < _MAX_PROBLEMS:
            self.problems.add(": ".join((str(self.path), *words)))

    def table(self, value: object, *keys: str) -> Mapping[str, object]:
        if isinstance(value, dict):
            return value
        self.refuse(*keys, f"must be an object, is {_shown(value)}")
        return {}

    def number(self, value: Any, *keys: str) -> float | None:
        """Return the number; NaN where the metric may have one, None for null and for anything else."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and abs(value) <= _LARGEST:
            return float(value)
        if keys[-1] in _MAY_BE_NAN and isinstance(value, float) and not math.isfinite(value):
            return math.nan
        if value is not None:
            self.refuse(*keys, f"{_shown(value)} is not a number up to {_LARGEST:g}")
        return None

    def series(self, metric: object, name: str) -> dict[int, float]:
        """Return the values of one of Megatron-LM's metrics by step, without those that it says it lacks."""
        table = self.table(metric, name)
        found: dict[int, float] = {}
        for key, value in self.table(table.get("values"), name, "values").items() if table else ():
            if not _STEP.fullmatch(key):
                self.refuse(name, "values", key, "not a step number")
            elif not (isinstance(value, str) and value.lower() in _MISSING):
                number = self.number(value, name, "values", key)
                found |= {} if number is None else {int(key): number}
        return dict(sorted(found.items()))


def _shown(value: object) -> str:
    return shortened(json.dumps(value, default=repr), 40)


def _of_megatron_lm(reading: _Reading, document: Mapping[str, object]) -> ForeignGolden:
    known = (*_OF_MEGATRON_LM, *_MEMORY_BY_STEP)
    series = {name: reading.series(document[name], name) for name in known if name in document}
    of_steps = [series.get(name, {}) for name in _OF_MEGATRON_LM]
    numbers = sorted({step for values in of_steps for step in values})
    if not numbers and not reading.problems.found:
        reading.refuse(f"neither {_OF_MEGATRON_LM[0]} nor {LOSS} has a value; its metrics: {_listed(document)}")
    left_out = sorted(set(document) - set(known))
    return ForeignGolden(
        reading.path,
        "megatron-lm",
        "per metric",
        {step: GoldenStep(*(values.get(step) for values in of_steps)) for step in numbers},
        memory_by_iteration={
            field: {step: round(value) for step, value in series[name].items()}
            for name, field in _MEMORY_BY_STEP.items()
            if name in series
        },
        notes=(f"not compared, because logs do not have them: {', '.join(left_out)}",) if left_out else (),
    )


def _of_bridge(reading: _Reading, document: Mapping[str, object]) -> ForeignGolden:
    layout, inner, notes = _unwrapped(reading, document)
    steps: dict[int, GoldenStep] = {}
    for key in sorted(filter(_STEP.fullmatch, inner), key=int):
        step = reading.table(inner[key], key)
        seconds, tflops, loss = (reading.number(step.get(name), key, name) for name in (TIME_MS, THROUGHPUT, LOSS))
        steps[int(key) + 1] = GoldenStep(None if seconds is None else seconds / 1000, tflops, loss)
    sizes = {name: reading.number(inner.get(key), key) for key, name in MEMORY.items()}
    if not reading.problems.found and all(step == GoldenStep() for step in steps.values()):
        reading.refuse(f"no step has {LOSS!r}, {TIME_MS!r} or {THROUGHPUT!r}")
    memory = {name: round(size * GB) for name, size in sizes.items() if size is not None}
    whole = inner.get(OF_WHOLE_RUN) == 1
    return ForeignGolden(reading.path, "bridge", layout, steps, memory=memory, of_whole_run=whole, notes=notes)


def _unwrapped(reading: _Reading, document: Mapping[str, object]) -> tuple[str, Mapping[str, object], tuple[str, ...]]:
    if _has_steps(document):
        return "flat", document, ()
    parts = {name: part for name, part in document.items() if isinstance(part, dict) and _has_steps(part)}
    if name := next((name for name in _WRAPPERS if name in parts), None):
        return name, parts[name], ()
    if not parts:
        raise BadRequestError(
            f"{reading.path}: unknown layout of golden values; its keys: {_listed(document)}",
            remedy="Megatron-Bridge: steps '0', '1', ... or baseline, current, MM.DD.YY around them; "
            "Megatron-LM: metrics with start_step and values",
        )
    name = max(parts, key=_date)
    note = f"{reading.path} holds {len(parts)} snapshots; mbr-perf reads {name}"
    return f"snapshot {name}", parts[name], (note,) if len(parts) > 1 else ()


def _date(name: str) -> tuple[int, ...]:
    """Return year, month and day of MM.DD.YY or YYYY-MM-DD; a name without a date is older than all others."""
    match = _DATE.fullmatch(name)
    if match is None:
        return ()
    first, second, third = map(int, match.groups())
    return (first, second, third) if len(match[1]) == 4 else (third % 100 + 2000, first, second)


def _has_steps(document: Mapping[str, object]) -> bool:
    return any(map(_STEP.fullmatch, document))


def _listed(document: Mapping[str, object]) -> str:
    return shortened(", ".join(map(repr, document)), 200) or "none"


def _of_mbr_perf(path: Path, golden: GoldenRecord) -> ForeignGolden:
    values = {name: metric.value for name, metric in golden.metrics.items()}
    step = GoldenStep(values.get("step_time_s"), values.get("tflops_per_gpu"))
    if step == GoldenStep():
        raise BadRequestError(
            f"{path}: has neither throughput nor step time, so a log cannot be compared with it",
            remedy="import the log, which also compares memory: mbr-perf import --log FILE -mr RECIPE -g GPU",
        )
    peaks = {key: round(values[name]) for key, name in _PEAKS.items() if name in values}
    notes = (
        "not checked, because a log does not prove them: hardware, software, and settings that it does not print",
        "the golden's throughput is by the formula of mbr-perf, the log's by that of its trainer",
        *golden.caveats,
    )
    batch = golden.spec.get("batch")
    size = batch.get("global_batch_size") if isinstance(batch, dict) else None
    return ForeignGolden(
        path,
        "mbr-perf",
        f"{golden.kind}, median of {counted(golden.num_runs, 'run')}",
        dict.fromkeys(range(1, 1 + (golden.max_steps or MeasureSpec().max_steps)), step),
        memory=peaks,
        of_whole_run=True,
        num_gpus=golden.num_gpus,
        global_batch_size=size if isinstance(size, int) else None,
        gpu=golden.gpu,
        compute_dtype=golden.compute_dtype,
        notes=notes,
        own=golden,
    )


Document = dict[str, object]


def bridge_text(document: Mapping[str, object]) -> str:
    """Write JSON; ValueError for NaN, which JSON does not have."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
