"""Recognises and reads golden files of Megatron-Bridge and Megatron-LM."""

import re
from collections.abc import Mapping
from pathlib import Path

from harness.errors import BadRequestError, raise_all
from harness.experiment.experiment import MeasureSpec
from harness.foreign.bridge_goldens import MAY_BE_NAN, read_bridge
from harness.foreign.golden import ForeignGolden, GoldenStep, number, problem, read_plain, shown
from harness.records.golden import GoldenRecord
from harness.records.goldens import in_force, read_golden
from harness.units import counted

_TIME, _THROUGHPUT, _LOSS = "iteration-time", "throughput", "lm loss"
_MEMORY = {
    "mem-allocated-bytes": "allocated_bytes",
    "mem-max-allocated-bytes": "max_allocated_bytes",
    "mem-reserved-bytes": "reserved_bytes",
}
_PEAKS = {"max_allocated_bytes": "peak_allocated_bytes", "max_reserved_bytes": "peak_reserved_bytes"}
_STEP = re.compile(r"\d{1,9}")
_MISSING = {"nan", "inf", "-inf"}

Series = dict[int, float]


def looks_like_megatron_lm(document: Mapping[str, object]) -> bool:
    """Return whether the document holds metrics with values by step."""
    return any(isinstance(part, dict) and {"values", "start_step"} <= part.keys() for part in document.values())


def read_megatron_lm(path: Path, document: Mapping[str, object]) -> ForeignGolden:
    """Read the golden in ``document``. Leave out metrics that logs do not print, and name them in its notes."""
    found: list[BadRequestError] = []
    known = (_TIME, _THROUGHPUT, _LOSS, *_MEMORY)
    series = {name: _series(path, name, document[name], found) for name in known if name in document}
    raise_all(found[:10])
    numbers = sorted({step for name in (_TIME, _THROUGHPUT, _LOSS) for step in series.get(name, {})})
    if not numbers:
        raise BadRequestError(
            f"{path}: neither {_TIME} nor {_LOSS} has a value; its metrics: {', '.join(map(repr, list(document)[:10]))}"
        )
    steps = {
        step: GoldenStep(*(series.get(name, {}).get(step) for name in (_TIME, _THROUGHPUT, _LOSS))) for step in numbers
    }
    memory = {
        field: {step: round(value) for step, value in series[name].items()}
        for name, field in _MEMORY.items()
        if name in series
    }
    left_out = sorted(set(document) - set(known))
    notes = (f"not compared, because logs do not have them: {', '.join(left_out)}",) if left_out else ()
    return ForeignGolden(path, "megatron-lm", "per metric", steps, memory_by_iteration=memory, notes=notes)


def _series(path: Path, name: str, metric: object, found: list[BadRequestError]) -> Series:
    if not isinstance(metric, dict) or "values" not in metric:
        found.append(problem(path, (name,), f"must be an object with values, is {shown(metric)}"))
        return {}
    values = metric["values"]
    if isinstance(values, list):
        values = _numbered(path, name, metric, values, found)
    if not isinstance(values, dict):
        found.append(problem(path, (name, "values"), f"must be an object of steps, is {shown(values)}"))
        return {}
    read: Series = {}
    for key, value in values.items():
        if not _STEP.fullmatch(key):
            found.append(problem(path, (name, "values", key), "not a step number"))
        elif not (isinstance(value, str) and value.lower() in _MISSING):
            parsed = number(path, (name, "values", key), value, found)
            if parsed is not None:
                read[int(key)] = parsed
    return dict(sorted(read.items()))


def _numbered(
    path: Path, name: str, metric: Mapping[str, object], values: list[object], found: list[BadRequestError]
) -> dict[str, object]:
    start, interval = metric.get("start_step"), metric.get("step_interval")
    if not (isinstance(start, int) and isinstance(interval, int) and start >= 0 and interval > 0):
        found.append(problem(path, (name,), "a list of values needs start_step and step_interval"))
        return {}
    return {str(start + index * interval): value for index, value in enumerate(values)}


def _own(path: Path, golden: GoldenRecord) -> ForeignGolden:
    """Take a golden of mbr-perf as `golden export` writes it. A log proves only the size of the job."""
    values = {name: metric.value for name, metric in golden.metrics.items()}
    step = GoldenStep(values.get("step_time_s"), values.get("tflops_per_gpu"))
    if step == GoldenStep():
        raise BadRequestError(
            f"{path}: has neither throughput nor step time, so a log cannot be compared with it",
            remedy="import the log, which also compares memory: mbr-perf import --log FILE -mr RECIPE -g GPU",
        )
    steps = dict.fromkeys(range(1, 1 + (golden.max_steps or MeasureSpec().max_steps)), step)
    peaks = {key: round(values[name]) for key, name in _PEAKS.items() if name in values}
    where = golden.measured_on
    software = [f"{name} {version}" for name, version in where.versions.items() if version]
    driver = [f"driver {where.driver_version}"] if where.driver_version else []
    unproven = ", ".join([golden.recipe, golden.recompute, where.device_name or golden.gpu, *driver, *software])
    notes = (
        f"not checked, because a log does not prove them: hardware, software, and settings that it does not print. "
        f"The golden is for {unproven}",
        "the golden's throughput is by the formula of mbr-perf, the log's by that of its trainer",
        *golden.caveats,
    )
    batch = golden.spec.get("batch")
    size = batch.get("global_batch_size") if isinstance(batch, dict) else None
    layout = f"{golden.kind}, median of {counted(golden.num_runs, 'run')}"
    return ForeignGolden(
        path, "mbr-perf", layout, steps, memory=peaks, of_whole_run=True, num_gpus=golden.num_gpus,
        global_batch_size=size if isinstance(size, int) else None, gpu=golden.gpu,
        compute_dtype=golden.compute_dtype, notes=notes, own=golden,
    )  # fmt: skip


_INFERENCE = ("input_prompt", "generated_text")


def _refuse_inference(path: Path, document: Mapping[str, object]) -> None:
    parts = [document, *(part for part in document.values() if isinstance(part, dict))]
    found = next((name for part in parts for name in _INFERENCE if name in part), None)
    if found:
        raise BadRequestError(
            f"{path}: golden values of an inference test of Megatron-LM ({found!r}), not of training",
            remedy="name the golden values of a training test; they have 'iteration-time' or 'lm loss'",
        )


def read_foreign_golden(path: Path) -> ForeignGolden:
    """Read the golden values in the file. BadRequestError names the file and the key."""
    document = read_plain(path, MAY_BE_NAN)
    if document.keys() >= {"fingerprint", "promoted_by", "metrics"}:
        return _own(path, in_force(path, read_golden(path)))
    _refuse_inference(path, document)
    return (read_megatron_lm if looks_like_megatron_lm(document) else read_bridge)(path, document)
